"""What a table is made of: runs, how they are measured, and curves of cost.

A cell names a run and an evaluation of it. Cells of one table, and of many, may share a run: a
run's folder is named by a hash of its whole configuration, so it is trained once, and a folder
never means two things.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from chacal._plain import added, from_plain, to_plain
from chacal.operators import former_text, parse_operator, spelled_out
from chacal.report.results import label
from chacal.training.config import RunConfig


class Row(Protocol):
    """What a line of a table is about; each table has a frozen dataclass of its own for it."""

    @property
    def label(self) -> str:
        """What the line is called."""


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a trained run is measured: on the test split, always the same examples.

    Attributes:
        examples: how many.
        batch_size: sequences at once; it decides the padded n, so all rows have the same.
        divisor: count exact match by borders of blocks of n // divisor; 0 for tasks without.
        operators: swapped in for the trained ones; empty to keep them.
        look: whether the attention is measured and drawn too (`look.py`).
        settings: fields of the task that are other than in training, as in "window=512".
        qk_norm: temperature of QK-norm in all layers, if it is another than in training.
        free: whether answers are generated, as `training/evaluate.py` has it where operators see
            later tokens. It decides nothing; it tells such figures from older ones, which were not.
    """

    examples: int
    batch_size: int = 64
    divisor: int = 0
    operators: tuple[str, ...] = ()
    look: bool = False
    settings: tuple[str, ...] = added(())
    free: bool = added(False)
    qk_norm: float | None = added(None)

    @property
    def id(self) -> str:
        """The evaluation's file name, without its ending."""
        former = [former_text(text) for text in self.operators]
        return "evaluation-" + digest({**to_plain(self), "operators": former})

    @classmethod
    def from_stored(cls, data: Any, where: str) -> Evaluation:
        """The evaluation that a file describes; its operators mean what they meant then."""
        stored = from_plain(cls, data, where)
        texts = tuple(spelled_out(text, stored=True) for text in stored.operators)
        return dataclasses.replace(stored, operators=texts)


@dataclass(frozen=True, kw_only=True)
class Cell(Generic[R]):
    """One line of a table: what it is about, what is run, and what the paper prints."""

    row: R
    column: str = ""
    run: RunConfig
    evaluation: Evaluation
    paper: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The cell's name as people give it, in whole or in part (`--only`)."""
        return label(self.row.label, self.column)

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that are measured."""
        return self.evaluation.operators or self.run.model.operators

    @property
    def causal(self) -> bool:
        """Whether every one of them is."""
        return all(parse_operator(text).causal for text in self.operators)

    def with_seed(self, seed: int) -> RunConfig:
        """The cell's run from another seed."""
        return dataclasses.replace(self.run, train=dataclasses.replace(self.run.train, seed=seed))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One curve of time and peak memory: an operator against n, or a family against its blocks.

    Attributes:
        row: what it is called.
        column: against what, as a reader is told.
        operators: one text for every n; or one for each block size, with "{}" in its place.
        lengths: values of n. More than one where n varies.
        blocks: block sizes, where they vary; then there is one n.
        heads: of one sequence.
        width: of a head.
        rounds: timed calls of each point.
        budget: seconds that a point may take; the curve ends before one that would take more.
        memory_from: n from which peak memory is measured too.
    """

    row: str
    column: str
    operators: str
    lengths: tuple[int, ...]
    blocks: tuple[int, ...] = ()
    heads: int = 4
    width: int = 64
    rounds: int = 3
    budget: float = 60.0
    memory_from: int = 1024

    @property
    def label(self) -> str:
        """The curve's name as people give it."""
        return label(self.row, self.column)

    @property
    def id(self) -> str:
        """The curve's file name, without its ending."""
        return "cost-" + digest({**to_plain(self), "operators": former_text(self.operators)})


def run_id(config: RunConfig) -> str:
    """A folder name of a run: readable, and different for any other configuration."""
    operators = "+".join(map(former_text, config.model.operators)).replace("/", "_")
    short = operators if len(operators) <= 60 else operators[:57] + "..."
    identity = config.identity()
    return f"{identity['task']['name']}-{short}-seed{config.train.seed}-{digest(identity)}"


def digest(data: Any) -> str:
    """Ten hex digits of plain data's content."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
