"""Stored examples: JSONL files line by line, and which of a file's rows make up a batch."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from chacal._files import parse_json
from chacal.tasks.base import Batch, Task, part, stream


def read_jsonl(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A file's objects, each with its file and line for errors about it."""
    try:
        with open(path, "rb") as file:
            yield from parse_jsonl(file, path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None


def parse_jsonl(lines: Iterable[bytes], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same of lines that are read already; blank ones are passed over."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise ValueError(f"{where}: expected a JSON object")
        yield where, row


def choose(name: str, split: str, seed: int, step: int, size: int, total: int) -> np.ndarray:
    """Numbers of a batch's examples: of train, drawn by seed and step; else the step-th in order.

    Args:
        name: of the task, so that two tasks of one seed draw differently.
        split: one of `SPLITS`.
        seed: of the run.
        step: of the run, or of a pass over valid or test.
        size: examples of a batch; the last one of a pass may have fewer.
        total: examples of the split.
    """
    if split == "train":
        return (stream(name, seed, step).random_sample(size) * total).astype(np.int64)
    return np.arange(total)[part(split, step, size, total)]


def passes(split: str, size: int, total: int) -> int | None:
    """Batches in one pass over `total` examples; None for train, which is drawn without end."""
    return None if split == "train" else -(-total // size)


class StoredTask(Task):
    """What tasks share whose examples lie in files: only which they are, and how some are told."""

    @abstractmethod
    def total(self, split: str) -> int:
        """Examples of a split."""

    @abstractmethod
    def pick(self, split: str, chosen: np.ndarray) -> Batch:
        """The examples of these numbers."""

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Train: examples drawn at random by seed and step. Else: the step-th in file order."""
        return self.pick(split, choose(self.name, split, seed, step, size, self.total(split)))

    def batches(self, split: str, size: int) -> int | None:
        """Batches in one pass over valid or test, the last one perhaps smaller; None for train."""
        return passes(split, size, self.total(split))

    def stored(self, split: str) -> int | None:
        """All of a file, but for training, which draws."""
        return None if split == "train" else self.total(split)


def sample(split: str, total: int, examples: int) -> np.ndarray:
    """Numbers of `examples` of a split's `total`, in order: the same for every run and seed."""
    drawn = stream("sample", split, total).random_sample(total)
    return np.sort(drawn.argsort(kind="stable")[:examples])
