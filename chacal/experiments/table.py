"""What every table is: rows to run, the paper's figures for them, and what the figures say.

A table is one file of `tables/`, which holds one instance of a subclass, `TABLE`. It declares cells
and runs nothing: `sweep.py` does, for all. Once figures are there, `gather.py` asks it for
sentences and plots, and gives it each figure together with the row that it declared, so that no
meaning is ever read back out of a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Generic

from chacal.experiments.cells import Cell, Cost, Evaluation, R
from chacal.experiments.scales import Scale
from chacal.operators import parse_operator
from chacal.report.drawings import BarPlot, LinePlot, PointPlot
from chacal.report.pictures import Mass
from chacal.report.results import ByGroup, CellResult, CostResult, Figure, Metric
from chacal.tasks import Boxes
from chacal.training.config import RunConfig

UNKNOWN = "No reason is known yet."

Printed = Mapping[str, float | None]
"""Metric -> what the paper prints, shares in per cent; None where it prints a dash."""


@dataclass(frozen=True, kw_only=True)
class Found(Generic[R]):
    """A cell with what came of it.

    Attributes:
        cell: as it was declared.
        result: its figures.
        looks: where its attention lies, for each seed that was looked at (`records.Look.mass`).
    """

    cell: Cell[R]
    result: CellResult
    looks: tuple[tuple[Mass, ...], ...] = ()

    @property
    def row(self) -> R:
        """What the line is about."""
        return self.cell.row

    @property
    def figures(self) -> dict[str, Figure]:
        """Metric -> figure over the seeds that are done."""
        return self.result.figures()


class Table(Generic[R]):
    """A table of the paper, or a question that its text leaves open.

    Attributes:
        name: its label, as in the paper.
        title: what it is about.
        place: where it stands in the report, from small to large.
        caption: what the paper says of seeds and spread; "" where the table is ours.
        metrics: its columns.
        paper: row -> what the paper prints for it.
        by_group: second tables of the same rows, by groups of the test examples.
        timed: whether the evaluation of every cell is timed, in turns, in one process.
        given: what of the user's own it takes (fields of `scales.Given`).
        cost_columns: titles of what `cost_texts` tells of a curve.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    place: ClassVar[int]
    caption: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    paper: Mapping[R, Printed] = MappingProxyType({})
    by_group: ClassVar[tuple[ByGroup, ...]] = ()
    timed: ClassVar[bool] = False
    given: ClassVar[tuple[str, ...]] = ()
    cost_columns: ClassVar[tuple[str, ...]] = ()

    @property
    def anchor(self) -> str:
        """The heading of docs/findings.md that discusses it, as a link has it."""
        return self.name.replace(":", "")

    def cells(self, scale: Scale) -> Sequence[Cell[R]]:
        """Its lines."""
        return ()

    def costs(self, scale: Scale) -> Sequence[Cost]:
        """Its curves, measured one at a time."""
        return ()

    def seeds(self, scale: Scale) -> int:
        """How many, unless asked otherwise."""
        return scale.seeds or 3

    def note(self, scale: Scale) -> str:
        """What the scale reduces, in a sentence."""
        return scale.note

    def difference(self, row: R, below: bool) -> str:
        """Why a row may differ from the paper's, in one sentence.

        Args:
            row: the line.
            below: whether ours is the lower figure, which some sentences explain, and they alone.
        """
        return UNKNOWN

    def findings(self, found: Sequence[Found[R]]) -> list[str]:
        """Sentences that the figures say: computed, never written by hand."""
        return []

    def point_plots(self, found: Sequence[Found[R]]) -> list[PointPlot]:
        """Plots of points."""
        return []

    def bar_plots(self, found: Sequence[Found[R]]) -> list[BarPlot]:
        """Plots of bars."""
        return []

    def line_plots(self, found: Sequence[Found[R]]) -> list[LinePlot]:
        """Plots of lines."""
        return []

    def cost_texts(self, cost: Cost, result: CostResult) -> list[str]:
        """What is told of a curve that was measured, one text for each of `cost_columns`."""
        return []

    def cost_plots(self, found: Sequence[tuple[Cost, CostResult]]) -> list[LinePlot]:
        """Plots of curves."""
        return []

    def figures_of(self, row: R) -> dict[str, float]:
        """What the paper prints for a row, without its dashes."""
        printed = self.paper.get(row, {})
        return {metric: value for metric, value in printed.items() if value is not None}

    def cell(self, row: R, run: RunConfig, evaluation: Evaluation, column: str = "") -> Cell[R]:
        """A cell of this table, with the paper's figures for its row."""
        return Cell(
            row=row, column=column, run=run, evaluation=evaluation, paper=self.figures_of(row)
        )


BORDERS = 8
"""Borders are counted of blocks of n // 8, the same for all rows of all tables."""

BY_BORDERS = ByGroup(
    metric="exact_match",
    by="borders",
    text="Exact match (%) by how many borders of blocks of n//8 the needed chain crosses, the "
    "most of a story's boxes; n is that of the batch, with its padding.",
)


def evaluation_of(
    scale: Scale, run: RunConfig, *, operators: tuple[str, ...] = (), look: bool = False
) -> Evaluation:
    """The scale's test of a run; stories are also counted by the borders that chains cross."""
    causal = all(parse_operator(text).causal for text in operators or run.model.operators)
    return Evaluation(
        examples=scale.examples,
        divisor=BORDERS if isinstance(run.task, Boxes) else 0,
        operators=operators,
        look=look,
        free=run.task.generates and not causal,
    )
