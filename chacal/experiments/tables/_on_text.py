"""What the tables on text and code share: their operators, and data of the user's own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from chacal.experiments.cells import Evaluation
from chacal.experiments.scales import Given
from chacal.experiments.text_scales import TextScale
from chacal.tasks import Language
from chacal.training.config import TrainConfig

ONE_LAYER = 1
"""The paper's "layer 2", counted from 0."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What stands in the place of a layer's attention.

    Attributes:
        name: of it.
        operator: as text; "{tile}" and "{window}" stand for the scale's.
        divisor: of n, for Algorithm 1.
        leaks: whether it is Algorithm 1 with mean rows, which see the future.
    """

    name: str
    operator: str
    divisor: int | None = None
    leaks: bool = False

    @property
    def label(self) -> str:
        """As in "Block-ChaCAL n//3, mean rows (leaks)"."""
        divided = self.name if self.divisor is None else f"{self.name} n//{self.divisor}"
        return f"{divided}, mean rows (leaks)" if self.leaks else divided

    def text(self, size: TextScale, gamma: float = 0.9) -> str:
        """The operator at a scale; with another γ than the usual, where it has one."""
        own = self.operator.format(tile=size.tile, window=2 * size.tile)
        return own if own == "dense" or gamma == 0.9 else f"{own},gamma={gamma}"


def block(divisor: int, leaks: bool = False) -> Mechanism:
    """Algorithm 1 with blocks of n // divisor."""
    rows = ",rows=mean" if leaks else ""
    return Mechanism(
        name="Block-ChaCAL",
        operator=f"block/{divisor},values=rows{rows}",
        divisor=divisor,
        leaks=leaks,
    )


DENSE = Mechanism(name="dense", operator="dense")
CHACAL = Mechanism(name="ChaCAL", operator="chacal")
WINDOW = Mechanism(name="Window resolvent", operator="window@{window}")
EFFICIENT = (
    WINDOW,
    Mechanism(name="Pooled resolvent", operator="pooled@{tile},near=1"),
    Mechanism(name="Routed resolvent", operator="routed@{tile},routes=2,parts=3"),
    Mechanism(name="Pattern of powers", operator="pattern,offsets=powers"),
)
"""Operators of our own, and of fixed patterns."""


def language(task: Language, given: Given, tokenizer: str | None) -> Language:
    """The scale's text, or the user's files."""
    files: dict[str, Any] = {}
    if has_files(given):
        files = {"train": given.train_file, "valid": given.valid_file}
    return dataclasses.replace(task, tokenizer=tokenizer, **files)


def has_files(given: Given) -> bool:
    """Whether files are given: both of them, or none."""
    files = (given.train_file, given.valid_file)
    if files.count(None) == 1:
        raise ValueError("one of --train-file and --valid-file is given; expected both, or none")
    return None not in files


def whole_text(train: TrainConfig, settings: tuple[str, ...] = ()) -> Evaluation:
    """The valid text is measured whole: examples are for tasks that make them."""
    size = train.batch_size // train.accumulate
    return Evaluation(examples=1, batch_size=size, settings=settings)
