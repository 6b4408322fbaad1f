"""Stories in the forms of Kim and Schuster (2023), made here: for who does not have their files.

    base         Box 0 contains the key, Box 1 is empty. Move the key from Box 0 to Box 1. Box 1
    contents     the same, but: Move the contents of Box 0 to Box 1.
    alternative  The key is in Container A, there is nothing in Container B. Pick up the key in
                 Container A and place it into Container B. Container B

What follows is the answer: " contains the key." The alternative form has things of its own, so that
it shares hardly a word with the others. Training can be told in another form than what is measured,
and have fewer operations. As in their data, no two splits share a signature: how many things each
box holds at first.
"""

import hashlib
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chacal.tasks.assignments import Draw, distinct
from chacal.tasks.base import (
    IGNORE,
    Batch,
    Task,
    Totals,
    by_group,
    check_choice,
    check_int,
    check_split,
    option,
    split_of,
    stream,
    uniforms,
)
from chacal.tasks.boxes_files import items
from chacal.tasks.stories import OBJECTS
from chacal.tasks.texts import Asked, ThroughTokenizer, Words, ask, stack
from chacal.tasks.tokenizers import load_tokenizer

MOST = 3
"""Things that a box can hold."""
AT_FIRST = (0.1, 0.3, 0.6)
"""A box holds 0, 1 or 2 things at first for a number below these, and else 3: two on average."""
HALF = len(OBJECTS) // 2

State = tuple[frozenset[str], ...]


class Form(NamedTuple):
    """How a story is told; "{}" stands for things, and 0 and 1 for boxes."""

    box: str
    names: str
    things: tuple[str, ...]
    move: str
    remove: str
    put: str


_BASE = Form(
    "Box", string.digits, OBJECTS[:HALF], "Move {} from {0} to {1}.", "Remove {} from {0}.",
    "Put {} into {0}.",
)  # fmt: skip
FORMS = {
    "base": _BASE,
    "contents": _BASE,
    "alternative": Form(
        "Container", string.ascii_uppercase, OBJECTS[HALF:],
        "Pick up {} in {0} and place {it} into {1}.", "Take {} out of {0}.",
        "Place {} inside {0}.",
    ),
}  # fmt: skip
"""By the names of the options."""
_WORDS = (
    "Box Container the there is are in nothing empty contains and it them Move Remove Put Pick up "
    "Take Place place out of from to into inside contents"
)
WHOLE = "Move the contents of {0} to {1}."
"""In the form "contents", of a box that is emptied into another."""


class Told(NamedTuple):
    """A story up to its question, what is right, and how many operations changed that box."""

    prompt: str
    answer: str
    numops: int


@dataclass(frozen=True, kw_only=True)
class BoxesForms(ThroughTokenizer, Task):
    """Stories in the forms of Kim and Schuster, generated: what one box holds at the end."""

    form: str = option("base", f"how stories are told: {', '.join(FORMS)}")
    train_form: str | None = option(None, "how those of the training are told, if otherwise")
    boxes: int = option(7, "number of boxes")
    operations: int = option(12, "most operations of a story")
    train_operations: int | None = option(None, "most of a training story, if other")
    tokenizer: str | None = option(
        None, "file, folder or hub name of a tokenizer; default: words of these stories"
    )

    name: ClassVar[str] = "boxes-forms"
    metric: ClassVar[str] = "exact_match"
    maximise: ClassVar[bool] = True
    generates: ClassVar[bool] = True
    free_running: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice(self, "form", tuple(FORMS))
        check_int(self, "boxes", 2, 10)
        check_int(self, "operations", 0)
        if self.train_form is not None:
            check_choice(self, "train_form", tuple(FORMS))
        if self.train_operations is not None:
            check_int(self, "train_operations", 0)

    @cached_property
    def _tokenizer(self) -> Any:
        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        words = [*_WORDS.split(), *string.digits, *string.ascii_uppercase, *OBJECTS]
        return Words(["Box", "The", "There", ".", ",", *(f" {word}" for word in words)])

    @cached_property
    def length(self) -> int:
        """A bound: every sentence as long as the longest."""

        def cut(text: str) -> int:
            return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

        things = MOST * max(cut(f" and the {thing}") for thing in OBJECTS)
        told = things + cut(" Pick up in Container A and place them into Container A.")
        operations = max(self.operations, self.train_operations or 0)
        return (self.boxes + operations + 1) * told

    def stories(self, split: str, seed: int, step: int, size: int) -> list[Told]:
        """The batch of these arguments before it is cut into tokens."""
        check_split(split)
        form, most = self.form, self.operations
        if split == "train":
            form = self.train_form or form
            most = most if self.train_operations is None else self.train_operations
        draw = uniforms(stream("boxes-forms", split, seed, step))
        made: list[Told] = []
        while len(made) < size:
            state = _first(draw, self.boxes, FORMS[form].things)
            signature = "".join(str(len(things)) for things in state)
            if split_of(hashlib.sha256(signature.encode()).digest()[0] >> 6) == split:
                made.append(_tell(draw, form, state, int(draw() * (most + 1))))
        return made

    def encode(self, told: Told) -> Asked:
        """A story as tokens; the answer with its period is asked."""
        whole = told.prompt + told.answer
        return ask(self._tokenizer, whole, [(len(told.prompt), len(whole))])

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh stories, padded to the longest of them."""
        told = self.stories(split, seed, step, size)
        tokens, targets, _ = stack([self.encode(story) for story in told])
        return Batch(tokens, targets, {"numops": np.array([story.numops for story in told])})

    def batches(self, split: str, size: int) -> None:
        """None: stories never run out."""

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy of the answer's tokens; exact sets of things, also by operations."""
        asked = batch.targets != IGNORE
        right = asked & (predictions == batch.targets)
        match = np.array(
            [
                items(self._decode(guess[at])) == items(self._decode(target[at]))
                for guess, target, at in zip(predictions, batch.targets, asked, strict=True)
            ]
        )
        return {
            "loss": (float(losses.sum(dtype=np.float64)), float(asked.sum())),
            "accuracy": (float(right.sum()), float(asked.sum())),
            "exact_match": (float(match.sum()), float(len(match))),
        } | by_group("exact_match/numops", batch.info["numops"], match)

    def _decode(self, tokens: np.ndarray) -> str:
        """The text of an answer, up to its first period."""
        return str(self._tokenizer.decode(tokens.tolist())).partition(".")[0]

    def describe(self) -> str:
        """One line for a person."""
        form, most = self.train_form or self.form, self.train_operations
        trained = "" if form == self.form else f", trained in the {form} form"
        trained += "" if most is None else f", trained on at most {most}"
        unit = "words" if self.tokenizer is None else f"tokens of {self.tokenizer}"
        return (
            f"boxes-forms: {self.form} form, {self.boxes} boxes, at most {self.operations} "
            f"operations{trained}, {unit}"
        )


def _first(draw: Draw, boxes: int, things: Sequence[str]) -> State:
    points = [draw() for _ in range(boxes)]
    counts = [sum(point >= below for below in AT_FIRST) for point in points]
    names = [things[i] for i in distinct(draw, len(things), sum(counts))]
    return tuple(frozenset(names.pop() for _ in range(count)) for count in counts)


def _tell(draw: Draw, name: str, state: State, operations: int) -> Told:
    """A story of so many operations from a state on, and one of its boxes."""
    form = FORMS[name]
    boxes = [f"{form.box} {form.names[i]}" for i in range(len(state))]
    clauses = [_clause(name, box, things) for box, things in zip(boxes, state, strict=True)]
    text = ", ".join(clauses) + "."
    text = text[0].upper() + text[1:]
    asked = int(draw() * len(boxes))
    numops = 0
    for _ in range(operations):
        told, after = _operation(draw, name, boxes, state)
        numops += after[asked] != state[asked]
        text, state = f"{text} {told}", after
    return Told(f"{text} {boxes[asked]}", f" {_holds(state[asked])}.", numops)


def _operation(
    draw: Draw, name: str, boxes: Sequence[str], state: State
) -> tuple[str, tuple[frozenset[str], ...]]:
    """A sentence and the state after it; one that cannot be is drawn again."""
    form, after = FORMS[name], list(state)
    while True:
        kind = ("move", "remove", "put")[int(draw() * 3)]
        one, other = distinct(draw, len(boxes), 2)
        held = sorted(state[one])
        if kind == "put":
            room = MOST - len(held)
            free = [thing for thing in form.things if not any(thing in box for box in state)]
            if not room:
                continue
            chosen = frozenset(free[i] for i in distinct(draw, len(free), 1 + int(draw() * room)))
            after[one] |= chosen
            return form.put.replace("{}", _list(chosen)).replace("{0}", boxes[one]), tuple(after)
        if not held:
            continue
        count = 1 + int(draw() * len(held))
        chosen = frozenset(held[i] for i in distinct(draw, len(held), count))
        if kind == "move" and len(state[other]) + count > MOST:
            continue
        after[one] -= chosen
        if kind == "move":
            after[other] |= chosen
        whole = name == "contents" and kind == "move" and count == len(held)
        told = WHOLE if whole else form.move if kind == "move" else form.remove
        for mark, text in (("{}", _list(chosen)), ("{0}", boxes[one]), ("{1}", boxes[other]),
                           ("{it}", "it" if count == 1 else "them")):  # fmt: skip
            told = told.replace(mark, text)
        return told, tuple(after)


def _list(things: frozenset[str]) -> str:
    return " and ".join(f"the {thing}" for thing in sorted(things))


def _holds(things: frozenset[str]) -> str:
    return f"contains {_list(things)}" if things else "is empty"


def _clause(name: str, box: str, things: frozenset[str]) -> str:
    """What is said of a box at first."""
    if name != "alternative":
        return f"{box} {_holds(things)}"
    if not things:
        return f"there is nothing in {box}"
    return f"{_list(things)} {'is' if len(things) == 1 else 'are'} in {box}"
