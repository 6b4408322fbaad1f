"""What a model says is in each box after every sentence, computed no more often than needed.

A model is asked box by box: after "Box A" it says what Box A holds, then it reads ". Box B" and so
on. So the answer to Box C stands behind its own answers to A and B. To ask one after the other
would take a pass for each box. Instead, all are asked at once behind a guess of what the others are
(what the story says), and asked again behind what came of it, until nothing changes. As no model
here sees later tokens, what does not change is what asking in order gives. A model that is right
needs one pass, for all sentences together; a story that grows by a sentence needs only the new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch

from chacal.play.models import BoxesModel
from chacal.tasks.phrases import START
from chacal.tasks.stories import LETTERS, Sentence, carry_out

REMEMBERED = 4096
"""Answers that are kept: about a hundred stories of forty sentences."""


class Answer(NamedTuple):
    """What a model says after some sentences, for each box in order."""

    items: tuple[str, ...]
    """The thing, or nothing."""
    sure: tuple[float, ...]
    """The probability that the model gives to it."""


def states(story: Sequence[Sentence], boxes: int) -> list[tuple[str, ...]]:
    """What the story says is in each box, at first and after every sentence."""
    state: dict[str, list[str]] = {box: [] for box in LETTERS[:boxes]}
    found = [tuple("" for _ in state)]
    for sentence in story:
        carry_out(state, sentence)
        found.append(tuple(items[0] if items else "" for items in state.values()))
    return found


class Answers:
    """The answers of one model, remembered."""

    def __init__(self, model: BoxesModel) -> None:
        self.model = model
        self.known: OrderedDict[tuple[float | None, tuple[Sentence, ...]], Answer] = OrderedDict()

    def after_each(self, story: Sequence[Sentence], gamma: float | None = None) -> list[Answer]:
        """The answers after 1, 2, ... sentences.

        Args:
            story: sentences as models read them.
            gamma: stands in for the model's own γ.
        """
        keys = [(gamma, tuple(story[:count])) for count in range(1, len(story) + 1)]
        new = [key for key in keys if key not in self.known]
        if new:
            truth = states(story, self.model.task.boxes)
            guesses = [truth[len(told)] for _, told in new]
            found = self._ask([told for _, told in new], guesses, gamma)
            self.known.update(zip(new, found, strict=True))
        answers = [self.known[key] for key in keys]
        for key in keys:
            self.known.move_to_end(key)
        while len(self.known) > REMEMBERED:
            self.known.popitem(last=False)
        return answers

    def sequence(self, story: Sequence[Sentence], items: Sequence[str]) -> list[int]:
        """Tokens of a story and of the answer that these things are."""
        model = self.model
        ids = model.task.tokenizer.ids
        row = [ids[START], *(ids[piece] for sentence in story for piece in sentence.pieces)]
        for name, item in zip(model.names, items, strict=True):
            row += [name, ids[f" contains the {item}"] if item else ids[" is empty"]]
        return row

    def _ask(
        self,
        stories: Sequence[Sequence[Sentence]],
        guesses: Sequence[tuple[str, ...]],
        gamma: float | None,
    ) -> list[Answer]:
        model = self.model
        options = torch.tensor(model.contents)
        items = ("", *model.objects)
        found: dict[int, Answer] = {}
        said = list(guesses)
        left = list(range(len(stories)))
        # each pass makes at least one box more final, so this many are enough
        for _ in range(model.task.boxes + 1):
            rows = [self.sequence(stories[i], said[i]) for i in left]
            scores = model.scores(model.padded(rows), gamma)
            changed = []
            for i, row, its in zip(left, rows, scores, strict=True):
                asked = its[len(row) - 2 * len(model.names) : len(row) : 2]
                best = torch.softmax(asked[:, options], -1).max(-1)
                told = tuple(items[place] for place in best.indices.tolist())
                found[i] = Answer(told, tuple(best.values.tolist()))
                if told != said[i]:
                    said[i] = told
                    changed.append(i)
            left = changed
            if not left:
                break
        return [found[i] for i in range(len(stories))]
