"""A table as `chacal reproduce` writes it and a report reads it: typed, strict, without torch.

`experiments/tables/` declares rows and computes what they say; everything that a reader is told is
here as a value: figures of every seed, the paper's beside them, sentences, and what plots draw. A
report renders it and reads no meaning out of a text.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from chacal.report.drawings import BarPlot, LinePlot, PointPlot

VERSION = 2
"""Of the files. Version 1 had no such field, and names of rows in the place of what they mean."""

NEAR = 2.0
"""Points by which a share may differ from the paper's before it is marked."""

SMOKE = "smoke"
"""The scale whose figures mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A column of figures.

    Attributes:
        name: as the task calls it.
        title: of the column.
        share: whether it lies in [0, 1], and is shown, and compared with the paper's, in per cent.
        digits: shown after the point.
    """

    name: str
    title: str
    share: bool = False
    digits: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.digits <= 17:
            raise ValueError(f"digits is {self.digits}; expected 0 to 17")


ACCURACY = Metric(name="accuracy", title="token accuracy (%)", share=True, digits=2)
EXACT_MATCH = Metric(name="exact_match", title="exact match (%)", share=True, digits=2)
BOX_ACCURACY = Metric(name="box_accuracy", title="boxes right (%)", share=True, digits=2)
SECONDS = Metric(name="seconds", title="evaluation (s)", digits=3)
LOSS = Metric(name="loss", title="loss (nats)")
PERPLEXITY = Metric(name="perplexity", title="perplexity per token")
PERPLEXITY_PER_WORD = Metric(name="perplexity_per_word", title="perplexity per word")
STEPS = Metric(name="steps", title="steps", digits=0)


@dataclass(frozen=True)
class Figure:
    """A metric over seeds: mean, sample standard deviation (None for one seed), how many."""

    mean: float
    std: float | None
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """A metric by groups of the test examples: one value for each place."""

    metric: str
    by: str
    at: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _refuse_unequal("at", self.at, "values", self.values)


@dataclass(frozen=True, kw_only=True)
class GroupSizes:
    """How many test examples each group of a breakdown has: a share of three says little."""

    by: str
    at: tuple[int, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        _refuse_unequal("at", self.at, "sizes", self.sizes)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What came of a cell with one seed.

    Attributes:
        state: "done", "failed" or "not run".
        run: its folder's name; "" where it was not run.
        why: it failed.
        metrics: of the whole test set.
        breakdowns: of the same, by groups.
        train_seconds: how long training took.
        maps: pictures of its attention, as names within its folder.
    """

    state: str
    run: str = ""
    why: str = ""
    metrics: dict[str, float]
    breakdowns: tuple[Breakdown, ...] = ()
    train_seconds: float | None = None
    maps: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """One line of a table.

    Attributes:
        row: what it is called.
        column: what of it, in a table that has both.
        operators: of its layers.
        causal: whether no later token is seen; None where nothing was run.
        task: what is learned.
        model: by what.
        training: for how long.
        paper: metric -> the paper's figure, shares in per cent.
        seconds: how long its evaluation takes, where it was timed.
        runs: seed -> what came of it.
        sizes: of the groups of its breakdowns.
        difference: why it may differ from the paper's; "" where it does not, by `NEAR`.
    """

    row: str
    column: str
    operators: tuple[str, ...]
    causal: bool | None
    task: str
    model: str
    training: str
    paper: dict[str, float]
    seconds: float | None
    runs: dict[str, RunResult]
    sizes: tuple[GroupSizes, ...]
    difference: str

    @property
    def label(self) -> str:
        """The cell's name as people give it, in whole or in part (`--only`)."""
        return label(self.row, self.column)

    @property
    def done(self) -> list[RunResult]:
        """The seeds that have figures."""
        return [run for run in self.runs.values() if run.state == "done"]

    def figures(self) -> dict[str, Figure]:
        """Metric -> figure over the seeds that are done; only metrics that all of them have."""
        done = [run.metrics for run in self.done]
        if not done:
            return {}
        names = [name for name in done[0] if all(name in metrics for metrics in done)]
        figures = {name: aggregate([metrics[name] for metrics in done]) for name in names}
        if self.seconds is not None:
            figures["seconds"] = Figure(self.seconds, None, 1)
        return figures

    def broken_down(self, metric: str, by: str) -> dict[int, Figure]:
        """Place -> figure over the seeds that are done; only places that all of them have."""
        tables = [
            dict(zip(part.at, part.values, strict=True))
            for run in self.done
            for part in run.breakdowns
            if (part.metric, part.by) == (metric, by)
        ]
        if not tables or len(tables) < len(self.done):
            return {}
        places = sorted(set.intersection(*(set(table) for table in tables)))
        return {place: aggregate([table[place] for table in tables]) for place in places}

    def group_sizes(self, by: str) -> dict[int, int]:
        """Place -> how many test examples it has; empty where it was not counted."""
        found = next((sizes for sizes in self.sizes if sizes.by == by), None)
        return {} if found is None else dict(zip(found.at, found.sizes, strict=True))

    def seeds_text(self) -> str:
        """Of how many seeds its figures are: "3", or "1 of 3" where others are missing."""
        done, wanted = len(self.done), len(self.runs)
        return f"{done}" if done == wanted else f"{done} of {wanted}" if done else "–"

    def state(self) -> str:
        """ "" for a cell that is whole; else what is missing of it, and why."""
        missing = [seed for seed, run in self.runs.items() if run.state == "not run"]
        if len(missing) == len(self.runs):
            return "not run"
        parts = [
            f"seed {seed} failed: {run.why}"
            for seed, run in self.runs.items()
            if run.state == "failed"
        ]
        if missing:
            parts.append(f"seed {', '.join(missing)} not run")
        return "; ".join(parts)

    def differing(self, metrics: Sequence[Metric]) -> dict[str, bool]:
        """Shares further from the paper's than `NEAR` points -> whether ours is the lower one.

        Times and losses are never compared: they are of other machines and other texts.
        """
        figures = self.figures()
        gaps = {
            metric.name: 100 * figures[metric.name].mean - self.paper[metric.name]
            for metric in metrics
            if metric.share and metric.name in figures and metric.name in self.paper
        }
        return {name: gap < 0 for name, gap in gaps.items() if abs(gap) > NEAR}


@dataclass(frozen=True, kw_only=True)
class CostPoint:
    """Time and peak memory of an operator at one size."""

    operator: str
    n: int
    block_size: int | None
    seconds: float
    ratio: float | None
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class CostResult:
    """One curve: what it is called, and its points, or why there are none.

    Attributes:
        row: what was measured.
        column: against what.
        state: "done", "failed" or "not run".
        causal: whether no later token is seen; None where nothing was measured.
        points: from small to large.
        stopped: why it ends before its last size; "" if it does not.
        why: it failed.
        texts: one for each column of `TableResult.cost_columns`.
    """

    row: str
    column: str
    state: str
    causal: bool | None
    points: tuple[CostPoint, ...]
    stopped: str
    why: str
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How the evaluations of a table were timed; of tests that differ, the largest is told."""

    examples: int
    batch_size: int
    processor: str


@dataclass(frozen=True, kw_only=True)
class ByGroup:
    """A second table of the same rows: a metric by groups, and what a reader is told of it."""

    metric: str
    by: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """A table, whole: all that a report needs.

    Attributes:
        version: of this class, as files have it.
        table: its label, as in the paper.
        title: what it is about.
        caption: what the paper says of seeds and spread; "" where the table is ours.
        anchor: the heading of docs/findings.md that discusses it.
        scale: how large everything was.
        note: what the scale reduces, in a sentence.
        seeds: that any of its cells has.
        metrics: its columns.
        command: what makes it again.
        machines: what its figures were made on.
        timing: of its evaluations, where they were timed.
        cells: its lines.
        by_group: second tables of the same rows.
        cost_columns: of the lines of its curves.
        costs: its curves.
        findings: sentences that the figures say, computed.
        points: plots of points.
        bars: plots of bars.
        lines: plots of lines.
    """

    version: int = VERSION
    table: str
    title: str
    caption: str
    anchor: str
    scale: str
    note: str
    seeds: tuple[int, ...]
    metrics: tuple[Metric, ...]
    command: str
    machines: tuple[str, ...]
    timing: Timing | None
    cells: tuple[CellResult, ...]
    by_group: tuple[ByGroup, ...]
    cost_columns: tuple[str, ...]
    costs: tuple[CostResult, ...]
    findings: tuple[str, ...]
    points: tuple[PointPlot, ...]
    bars: tuple[BarPlot, ...]
    lines: tuple[LinePlot, ...]

    @property
    def was_run(self) -> bool:
        """Whether anything was measured, or tried."""
        states = [run.state for cell in self.cells for run in cell.runs.values()]
        states += [cost.state for cost in self.costs]
        return any(state != "not run" for state in states)

    @property
    def has_failures(self) -> bool:
        """Whether a cell or a curve failed."""
        states = [run.state for cell in self.cells for run in cell.runs.values()]
        return "failed" in [*states, *(cost.state for cost in self.costs)]

    def seeds_text(self) -> str:
        """Which, and that rows have more or fewer of them, where they do."""
        text = ", ".join(map(str, self.seeds))
        counts = {cell.seeds_text() for cell in self.cells} - {"–"}
        if len(counts) < 2:
            return text
        return f"{text}; not every row has all (its column says how many)"


def _refuse_unequal(name: str, some: Sequence[object], other: str, more: Sequence[object]) -> None:
    if len(some) != len(more):
        raise ValueError(
            f"{name} has {len(some)} entries and {other} {len(more)}; expected one for each"
        )


def label(row: str, column: str) -> str:
    """Of a cell or of a curve."""
    return f"{row}, {column}" if column else row


def aggregate(values: Sequence[float]) -> Figure:
    """Mean and spread of one metric over seeds."""
    if not values:
        raise ValueError("no values; expected one for each seed")
    std = statistics.stdev(values) if len(values) > 1 else None
    return Figure(statistics.fmean(values), std, len(values))
