"""The Boxes files of Kim and Schuster (2023), so that their data trains and evaluates too.

A folder holds {train,dev,test}-t5.jsonl, one example per line:

    sentence         Box 0 contains the letter, Box 1 is empty, Box 2 contains the book and the key.
                     Move the book and the key from Box 2 to Box 1. Box 1 contains the book and the
                     key.
    sentence_masked  ... from Box 2 to Box 1. Box 1 <extra_id_0> .
    masked_content   <extra_id_0> contains the book and the key
    numops           1

The files for zero-shot use, which mask only what follows "contains" and say "nothing" for an empty
box, are read as well. Text is cut into words, and the grammar's fixed phrases into one token each;
the vocabulary is what the train file holds. The loss counts the masked content and the period that
ends it.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chacal._echo import shown
from chacal.tasks.base import (
    IGNORE,
    Batch,
    Task,
    Totals,
    check_split,
    option,
)
from chacal.tasks.phrases import PAD
from chacal.tasks.stored import choose, passes, read_jsonl

MASK = "<extra_id_0>"
FILES = {"train": "train-t5.jsonl", "valid": "dev-t5.jsonl", "test": "test-t5.jsonl"}
"""The file of each split."""

_BOX = r"(?:Box|Container) \w+"
_PIECE = re.compile(
    rf" Move the contents of {_BOX}| (?:Move|Put|Remove) the| (?:contains|and) the| is empty"
    rf"| (?:from|to|into) {_BOX}\.?|,? {_BOX}| ?[^\s.,]+| ?[.,]"
)


def items(content: str) -> frozenset[str]:
    """The things that a box's description names, in no order; none if it says that it is empty."""
    told = content.strip().rstrip(".").strip()
    if told in ("is empty", "nothing", "contains nothing"):
        return frozenset()
    parts = re.split(r",? and |, ", told.removeprefix("contains").strip())
    return frozenset(told.strip().removeprefix("the ") for told in parts)


class Example(NamedTuple):
    """One line of a file; `where` names both."""

    where: str
    prompt: str
    content: str
    numops: int


def _example(where: str, row: dict[str, Any]) -> Example:
    for key, kind in (("sentence_masked", str), ("masked_content", str), ("numops", int)):
        if key not in row:
            raise ValueError(f"{where}: the key {shown(key)} is missing")
        if type(row[key]) is not kind:
            expected = "a string" if kind is str else "an integer"
            raise ValueError(f"{where}: {key}={shown(row[key])}: expected {expected}")
    prompt, mask, _ = row["sentence_masked"].partition(MASK)
    prompt = " ".join(prompt.split())
    content = " ".join(row["masked_content"].replace(MASK, " ").split()).rstrip(" .")
    if not mask or not prompt:
        raise ValueError(f"{where}: sentence_masked: expected text before {MASK}")
    if not content:
        raise ValueError(f"{where}: masked_content: expected what {MASK} stands for")
    return Example(where, prompt, content, row["numops"])


def read_examples(path: str) -> list[Example]:
    """The examples of one file; ValueError names the file and the line at fault."""
    examples = [_example(where, row) for where, row in read_jsonl(path)]
    if not examples:
        raise ValueError(f"{path}: expected at least one example")
    return examples


def _cut(text: str) -> list[str]:
    return _PIECE.findall(" " + text)


@dataclass(frozen=True, kw_only=True)
class BoxesFiles(Task):
    """Kim and Schuster's Boxes: what one box holds after a story, read from their files."""

    data: str = option("", "folder with train-t5.jsonl, dev-t5.jsonl and test-t5.jsonl")

    name: ClassVar[str] = "boxes-files"
    metric: ClassVar[str] = "exact_match"
    maximise: ClassVar[bool] = True
    generates: ClassVar[bool] = True
    free_running: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.data, str) or not os.path.isdir(self.data):
            raise ValueError(f"data={shown(self.data)}: expected a folder with {FILES['train']}")
        for split in ("train", "valid"):
            if not os.path.isfile(self._path(split)):
                raise ValueError(f"{self._path(split)}: no such file")

    def _path(self, split: str) -> str:
        return os.path.join(self.data, FILES[split])

    @cached_property
    def _files(self) -> dict[str, list[Example]]:
        return {}

    def examples(self, split: str) -> list[Example]:
        """The examples of a split, in the file's order."""
        check_split(split)
        if split not in self._files:
            self._files[split] = read_examples(self._path(split))
        return self._files[split]

    @cached_property
    def _rows(self) -> dict[str, list[tuple[list[int], list[int]]]]:
        return {}

    def rows(self, split: str) -> list[tuple[list[int], list[int]]]:
        """Token ids of every example of a split: the prompt's, and the content's with its period.

        Raises:
            ValueError: naming file, line and word where a word is not in the train file.
        """
        if split not in self._rows:
            self._rows[split] = [
                (self._encode(e, e.prompt), self._encode(e, e.content + "."))
                for e in self.examples(split)
            ]
        return self._rows[split]

    def _encode(self, example: Example, text: str) -> list[int]:
        pieces = _cut(text)
        for piece in pieces:
            if piece not in self.ids:
                raise ValueError(
                    f"{example.where}: {shown(piece.strip())} is used as it never is in "
                    f"{FILES['train']}"
                )
        return [self.ids[piece] for piece in pieces]

    @cached_property
    def phrases(self) -> tuple[str, ...]:
        """The token strings by id: the padding, the period, and what the train file holds."""
        texts = (text for e in self.examples("train") for text in (e.prompt, e.content))
        pieces = {piece for text in texts for piece in _cut(text)}
        return (PAD, ".", *sorted(pieces - {"."}))

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token string."""
        return {phrase: i for i, phrase in enumerate(self.phrases)}

    @property
    def vocab_size(self) -> int:
        """Phrases, with the padding."""
        return len(self.phrases)

    @property
    def num_classes(self) -> int:
        """The next token."""
        return len(self.phrases)

    @cached_property
    def length(self) -> int:
        """The longest example in any of the files."""
        return max(len(p) + len(c) - 1 for split in self.splits for p, c in self.rows(split))

    @property
    def splits(self) -> tuple[str, ...]:
        """Those whose file is there."""
        return tuple(split for split in FILES if os.path.isfile(self._path(split)))

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Train: examples drawn at random by seed and step. Else: the step-th in file order."""
        rows = self.rows(split)
        chosen = choose(self.name, split, seed, step, size, len(rows))
        picked = [rows[i] for i in chosen]
        n = max(len(prompt) + len(content) - 1 for prompt, content in picked)
        tokens = np.zeros((len(picked), n), dtype=np.int64)
        targets = np.full_like(tokens, IGNORE)
        for i, (prompt, content) in enumerate(picked):
            end = len(prompt) + len(content) - 1
            tokens[i, :end] = (prompt + content)[:-1]
            targets[i, len(prompt) - 1 : end] = content
        numops = np.array([self.examples(split)[i].numops for i in chosen], dtype=np.int64)
        return Batch(tokens, targets, {"numops": numops})

    def batches(self, split: str, size: int) -> int | None:
        """Batches in one pass over valid or test, the last one perhaps smaller; None for train."""
        return passes(split, size, len(self.rows(split)))

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy of the content's tokens; order-insensitive exact match, by numops.

        An example matches when the predicted content, up to its first period, names the same set
        of things. Predictions are the model's free-running answer (`free_running`), so that one
        told in another order can match.
        """
        asked = batch.targets != IGNORE
        right = asked & (predictions == batch.targets)
        match = np.array(
            [
                items(self.decode(guess[at])) == items(self.decode(target[at]))
                for guess, target, at in zip(predictions, batch.targets, asked, strict=True)
            ]
        )
        totals = {
            "loss": (float(losses.sum()), float(asked.sum())),
            "accuracy": (float(right.sum()), float(asked.sum())),
            "exact_match": (float(match.sum()), float(len(match))),
        }
        for numops in np.unique(batch.info["numops"]).tolist():
            group = match[batch.info["numops"] == numops]
            totals[f"exact_match/numops={numops}"] = (float(group.sum()), float(len(group)))
        return totals

    def decode(self, tokens: np.ndarray) -> str:
        """The text of a content's tokens, up to its first period."""
        return "".join(self.show(tokens)).partition(".")[0].strip()

    def describe(self) -> str:
        """One line for a person."""
        size = len(self.examples("train"))
        return f"boxes-files: {size} training examples, {self.vocab_size} phrases, from {self.data}"

    def show(self, tokens: np.ndarray) -> list[str]:
        """The phrases of one example."""
        return [self.phrases[i] for i in np.asarray(tokens).tolist()]
