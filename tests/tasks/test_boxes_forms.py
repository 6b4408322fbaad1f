"""Stories in Kim and Schuster's forms: a reader of its own follows every sentence."""

import re

import numpy as np
import pytest

from chacal.tasks import IGNORE, SPLITS, BoxesForms
from chacal.tasks.boxes_files import items
from chacal.tasks.boxes_forms import FORMS, MOST

SENTENCES = [
    (r"Move the contents of (\S+ \w) to (\S+ \w)", "whole"),
    (r"Move (.+) from (\S+ \w) to (\S+ \w)", "move"),
    (r"Pick up (.+) in (\S+ \w) and place (?:it|them) into (\S+ \w)", "move"),
    (r"(?:Remove|Take) (.+) (?:from|out of) (\S+ \w)", "remove"),
    (r"(?:Put|Place) (.+) (?:into|inside) (\S+ \w)", "put"),
]


def follow(prompt):
    """What every box holds after a prompt, and how often each changed."""
    first, *sentences, box = prompt.split(". ")
    state = {}
    for clause in first.split(", "):
        if told := re.fullmatch(r"(\S+ \w) (contains .*|is empty)", clause):
            state[told[1]] = set(items(told[2]))
        elif told := re.fullmatch(r"[Tt]here is nothing in (\S+ \w)", clause):
            state[told[1]] = set()
        else:
            told = re.fullmatch(r"(.*) (is|are) in (\S+ \w)", clause)
            state[told[3]] = set(items(told[1].replace("The ", "the ")))
            assert (told[2] == "are") == (len(state[told[3]]) > 1)
    changed = dict.fromkeys(state, 0)
    for sentence in sentences:
        before = {name: set(things) for name, things in state.items()}
        told, kind = next(
            (told, kind) for form, kind in SENTENCES if (told := re.fullmatch(form, sentence))
        )
        if kind == "whole":
            things, source, target = set(state[told[1]]), told[1], told[2]
        else:
            things, source, target = set(items(told[1])), told[2], told[2]
            if kind == "move":
                target = told[3]
        if kind != "put":
            assert things <= state[source], "what is not there was taken"
            state[source] -= things
        else:
            assert not any(things & held for held in state.values())
        if kind != "remove":
            state[target] |= things
        assert things
        assert all(len(held) <= MOST for held in state.values())
        for name in state:
            changed[name] += state[name] != before[name]
    return box, state, changed


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_what_a_reader_finds(form):
    task = BoxesForms(form=form, boxes=4, operations=9)
    numops = set()
    for told in task.stories("test", 3, 0, 200):
        box, state, changed = follow(told.prompt)
        assert items(told.answer) == state[box]
        assert told.answer.endswith(".")
        assert told.numops == changed[box]
        numops.add(told.numops)
    assert {0, 1, 2, 3, 4} <= numops


def test_the_forms_tell_the_same_stories_and_share_hardly_a_word():
    texts = {
        form: " ".join(s.prompt for s in BoxesForms(form=form).stories("test", 0, 0, 50))
        for form in FORMS
    }
    assert "Move the contents of Box" in texts["contents"]
    assert "contents" not in texts["base"] + texts["alternative"]
    base, other = (set(re.findall(r"\w\w+", texts[f].lower())) for f in ("base", "alternative"))
    assert base & other == {"the", "is", "and", "into", "of"} & base & other
    again = {f: BoxesForms(form=f).stories("test", 0, 0, 50) for f in ("base", "contents")}
    assert [s.answer for s in again["base"]] == [s.answer for s in again["contents"]]


def test_training_is_told_otherwise_and_is_shorter():
    task = BoxesForms(train_form="alternative", train_operations=2)
    trained = task.stories("train", 0, 0, 100)
    assert all("Container" in story.prompt for story in trained)
    assert max(story.prompt.count(". ") for story in trained) == 3
    measured = task.stories("test", 0, 0, 100)
    assert all("Box" in story.prompt for story in measured)
    assert max(story.prompt.count(". ") for story in measured) > 10
    assert "trained in the alternative form, trained on at most 2" in task.describe()


def test_splits_share_no_signature_and_batches_are_pure():
    task = BoxesForms(boxes=4, operations=2)
    signatures = {}
    for split in SPLITS:
        for story in task.stories(split, 0, 0, 200):
            first = story.prompt.partition(".")[0].split(", ")
            signature = tuple(clause.count("the ") for clause in first)
            assert signatures.setdefault(signature, split) == split
    assert task.batch("train", 1, 2, 8).tokens.tobytes() == (
        task.batch("train", 1, 2, 8).tokens.tobytes()
    )
    assert task.batch("train", 1, 3, 8).tokens.tobytes() != (
        task.batch("train", 1, 2, 8).tokens.tobytes()
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", ["words", "bytes"])
def test_the_answer_is_asked_and_an_order_of_things_is_free(form, cut, byte_tokenizer):
    tokenizer = byte_tokenizer if cut == "bytes" else None
    task = BoxesForms(form=form, boxes=3, operations=3, tokenizer=tokenizer)
    batch, told = task.batch("test", 0, 0, 60), task.stories("test", 0, 0, 60)
    assert batch.tokens.shape[1] <= task.length
    swapped, losses = batch.targets.copy(), batch.targets * 0.0
    turned = 0
    for row, story in enumerate(told):
        at = np.flatnonzero(batch.targets[row] != IGNORE)
        assert "".join(task.show(batch.targets[row][at])) == story.answer
        assert "".join(task.show(batch.tokens[row][: at[0] + 1])) == story.prompt
        things = story.answer[:-1].removeprefix(" contains ").split(" and ")
        if len(things) == 2:
            other = f" contains {things[1]} and {things[0]}."
            cut_again = task._tokenizer.encode(other, add_special_tokens=False).ids
            swapped[row, at] = cut_again
            turned += 1
    assert turned > 3
    assert task.summarise(task.count(batch.targets, losses, batch))["exact_match"] == 1
    got = task.summarise(task.count(swapped, losses, batch))
    assert got["exact_match"] == got["exact_match/numops=00"] == 1
    assert got["accuracy"] < 1
    wrong = np.where(batch.targets == IGNORE, IGNORE, batch.targets[0].max())
    assert task.summarise(task.count(wrong, losses, batch))["exact_match"] < 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"form": "verse"}, "form='verse': expected one of base, contents, alternative"),
        ({"train_form": "verse"}, "train_form='verse': expected one of"),
        ({"boxes": 1}, "boxes=1: expected an integer in 2..10"),
        ({"train_operations": -1}, "train_operations=-1: expected an integer at least 0"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        BoxesForms(**fields)
