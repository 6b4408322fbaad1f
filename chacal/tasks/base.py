"""What a task is: batches that are pure functions of (split, seed, step), and metrics that add.

A training loop needs nothing else from a task. Every generated task draws from `stream`, so the
same configuration gives the same bytes on any machine, and decides by a hash of an example's
content which split the example belongs to, so the splits never share one.
"""

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

IGNORE = -100
"""The target of a position at which nothing is asked."""

SPLITS = ("train", "valid", "test")
"""The splits that there are."""

Totals = dict[str, tuple[float, float]]
"""Metric name -> (sum, count); adds over batches and ranks."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Examples as arrays.

    Attributes:
        tokens: (B, n) int64, or (B, n, p) where p symbols share a position.
        targets: same shape, the class to predict at that position (already shifted for
            next-token tasks), `IGNORE` where nothing is asked; of an encoder-decoder's task, of
            the output part only.
        info: arrays of length B that describe each example.
    """

    tokens: np.ndarray
    targets: np.ndarray
    info: dict[str, np.ndarray]


class Task(ABC):
    """All that training, evaluation and tables may ask of a task, with what is usual as default.

    Who uses a task asks for what stands here and for nothing else, so a new task is read off this
    class: what has no default must be given.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    maximise: ClassVar[bool]
    generates: ClassVar[bool] = False
    """Whether a row's answers are runs of tokens, each asked at the token before it. The true ones
    then stand among the inputs, where an operator that sees later tokens reads them off."""
    free_running: ClassVar[bool] = False
    """Whether every model is judged by the answer that it generates. Where all of an answer must be
    right, a causal model's figure is the same with and without, and without is faster."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of input symbols."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of output classes."""

    @property
    @abstractmethod
    def length(self) -> int:
        """The longest n of a batch."""

    @property
    def symbols(self) -> int:
        """Tokens per position: 1, or p when p properties are stacked."""
        return 1

    @property
    def period(self) -> int | None:
        """Positions per block where the sequence is made of equal blocks, else None."""
        return None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have examples; data of one's own may come without some."""
        return SPLITS

    @property
    def inputs(self) -> int:
        """Tokens of a row that are the encoder's, where an encoder-decoder is asked for; else 0."""
        return 0

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Numbers of special tokens, under the names of a transformers config's fields."""
        return {}

    @property
    def padding(self) -> int:
        """The token that fills a row behind its end."""
        return 0

    @property
    def floor(self) -> float | None:
        """The least expected loss of a model that sees no later token, where it is known."""
        return None

    @abstractmethod
    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """The batch of these arguments: the same bytes whenever and wherever it is asked."""

    @abstractmethod
    def batches(self, split: str, size: int) -> int | None:
        """Batches in one pass over a split; None when examples are generated without end."""

    def stored(self, split: str) -> int | None:
        """How many examples a split has; None where they are drawn or generated without end."""
        return None

    def pick(self, split: str, chosen: np.ndarray) -> Batch:
        """The batch of these examples of a split that has a number of them."""
        raise ValueError(f"{self.name} has no stored {split} examples to choose from")

    @abstractmethod
    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Metric sums of one batch.

        Args:
            predictions: shape of the targets, the class of the highest score.
            losses: shape of the targets, negative log-likelihoods, 0 where ignored.
            batch: what they answer.
        """

    def summarise(self, totals: Totals) -> dict[str, float]:
        """Metrics from added-up sums: means, unless a task says other."""
        return ratios(totals)

    @abstractmethod
    def describe(self) -> str:
        """One line for a person."""

    @abstractmethod
    def show(self, tokens: np.ndarray) -> list[str]:
        """The token strings of one example."""


class NextToken(Task):
    """What tasks share in which every one of `window` tokens predicts the next."""

    window: int

    @property
    def num_classes(self) -> int:
        """The next token."""
        return self.vocab_size

    @property
    def length(self) -> int:
        """Tokens per example."""
        return self.window


def option(default: Any, help: str) -> Any:
    """A configuration field with the help text that a command line shows."""
    return dataclasses.field(default=default, metadata={"help": help})


def stream(*key: str | int) -> np.random.RandomState:
    """A random stream of its key alone, the same on every machine and in every version.

    numpy freezes `RandomState` (NEP 19): Mersenne Twister, seeded here with all 256 bits of a
    sha256. Use only `random_sample` on it: it is a fixed function of the generator's words,
    whereas other methods and `Generator` may change their algorithms between releases.
    """
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4"))


def uniforms(rng: np.random.RandomState) -> Callable[[], float]:
    """`rng`'s numbers in [0, 1), one per call, at the cost of a Python list."""

    def draw() -> Iterator[float]:
        while True:
            yield from rng.random_sample(2048).tolist()

    return draw().__next__


def split_of(bucket: int) -> str:
    """The split that owns a hash bucket in 0..3: half of all examples train."""
    return ("train", "train", "valid", "test")[bucket]


def check_split(split: str) -> None:
    """Raise unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: expected one of {', '.join(SPLITS)}")


def check_int(task: Any, field: str, low: int, high: int | None = None) -> None:
    """Raise unless a task's field is an integer in low..high."""
    value = getattr(task, field)
    if type(value) is not int or value < low or (high is not None and value > high):
        expected = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{field}={value!r}: expected an integer {expected}")


def check_number(task: Any, field: str) -> None:
    """Raise unless a task's field is a finite number of at least 0."""
    value = getattr(task, field)
    valid = type(value) in (int, float) and math.isfinite(value) and value >= 0
    if not valid:
        raise ValueError(f"{field}={value!r}: expected a finite number of at least 0")


def check_choice(task: Any, field: str, choices: tuple[str, ...]) -> None:
    """Raise unless a task's field is one of the choices."""
    value = getattr(task, field)
    if value not in choices:
        raise ValueError(f"{field}={value!r}: expected one of {', '.join(choices)}")


def by_group(label: str, groups: np.ndarray, right: np.ndarray) -> Totals:
    """Sums of `right` for every distinct group, named "label=07"."""
    return {
        f"{label}={int(group):02d}": (float(right[groups == group].sum()), float(size))
        for group, size in zip(*np.unique(groups, return_counts=True), strict=True)
    }


class GroupMetric(NamedTuple):
    """A metric of one group of the examples, as `by_group` names it."""

    metric: str
    by: str
    at: int


def group_of(name: str) -> GroupMetric | None:
    """ "exact_match/updates=07" -> its parts; None for a metric of all examples."""
    metric, slash, group = name.partition("/")
    by, _, at = group.partition("=")
    return GroupMetric(metric, by, int(at)) if slash and at.isdigit() else None


def ratios(totals: Totals) -> dict[str, float]:
    """sum / count of every metric; NaN where nothing was counted."""
    return {name: total / n if n else math.nan for name, (total, n) in totals.items()}


def part(split: str, step: int, size: int, total: int) -> slice:
    """Which of a split's `total` stored examples make up batch `step` of a pass, in order."""
    if step < 0 or step * size >= total:
        last = -(-total // size) - 1
        raise ValueError(f"step={step}: expected 0..{last}, the batches of {size} in {split!r}")
    return slice(step * size, min((step + 1) * size, total))
