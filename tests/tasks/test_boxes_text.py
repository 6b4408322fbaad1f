"""Boxes as text: the stories of Boxes, and a simulator that reads them again."""

import re

import numpy as np
import pytest

from chacal.tasks import IGNORE, Boxes, BoxesText, parse_answer, parse_story, simulate
from chacal.tasks.base import group_of

SETTINGS = {"boxes": 4, "objects": 20, "max_items": 2, "updates": 6}


@pytest.fixture
def task(byte_tokenizer):
    return BoxesText(tokenizer=byte_tokenizer, **SETTINGS)


def texts(task, batch):
    """(story, answer) of every row."""
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        asked = np.flatnonzero(targets != IGNORE)
        assert (np.diff(asked) == 1).all()
        story = "".join(task.show(tokens[: asked[0] + 1]))
        yield story, "".join(task.show(targets[asked]))


@pytest.mark.parametrize("split", ["train", "test"])
def test_stories_are_those_of_boxes_and_answers_follow_from_them(task, split):
    batch = task.batch(split, 1, 400, 12)
    phrases = Boxes(**SETTINGS)
    theirs = phrases.batch(split, 1, 400, 12)
    assert batch.info["updates"].tolist() == theirs.info["updates"].tolist()
    for (story, answer), row in zip(texts(task, batch), theirs.tokens, strict=True):
        told = "".join(phrases.show(row[1:])).replace("<pad>", "").strip()
        assert told.startswith(story)
        state = simulate(parse_story(story, 4), 4, 2)
        assert parse_answer(answer.strip()) == state
    assert batch.tokens.shape[1] <= task.length


def test_a_box_is_right_where_all_that_is_said_of_it_is(task):
    batch = task.batch("valid", 0, 0, 8)
    losses = np.where(batch.targets != IGNORE, 0.5, 0.0)
    got = task.summarise(task.count(batch.targets, losses, batch))
    whole = (got["loss"], got["accuracy"], got["box_accuracy"], got["exact_match"])
    assert whole == (0.5, 1.0, 1.0, 1.0)
    assert {group_of(name).by for name in got if group_of(name)} == {"updates"}
    guesses = batch.targets.copy()
    # in one story, one letter of what is said of Box B
    _, answer = next(texts(task, batch))
    at = np.flatnonzero(batch.targets[0] != IGNORE)[re.search(r"Box B", answer).start()]
    guesses[0, at] = 0
    got = task.summarise(task.count(guesses, losses, batch))
    assert got["box_accuracy"] == 1 - 1 / 32
    assert got["exact_match"] == 1 - 1 / 8


def test_it_needs_a_tokenizer():
    with pytest.raises(ValueError, match="tokenizer='': expected"):
        BoxesText()
