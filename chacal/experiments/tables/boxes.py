"""tab:boxes: accuracy, exact match and evaluation time of every operator on Boxes.

Algorithm 1 is here in each of its causal readings: with Ṽ the value of a block's first token (Eq. 6
to the letter) or the mean of its values, and before, after and in the place of the dense layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chacal.experiments.cells import Cell
from chacal.experiments.scales import Scale
from chacal.experiments.table import BY_BORDERS, Found, Printed, Table, evaluation_of
from chacal.experiments.tables._arithmetic import frontier, mean_of, points
from chacal.report.drawings import Line, LinePlot, Panel, Point, PointPlot
from chacal.report.results import ACCURACY, EXACT_MATCH, SECONDS

DIVISORS = range(2, 9)
"""The paper's block sizes, n // 2 to n // 8."""

FAMILIES = ("Dense", "ChaCAL", "Block-ChaCAL", "Local", "BigBird")
"""Rows of a colour of their own; all others share one more."""

FEW = 20
"""Test stories below which a group has no point: its share would be chance."""

SETUP = (
    "The paper's Boxes setup is not published; ours has other stories, and the scale named below."
)
WINDOWS = (
    "A window of 32 and three links reach most of a short story: the shorter the stories of a "
    "scale, the nearer BigBird and Local are to dense attention."
)
CUT = (
    "In Algorithm 1 a row sees earlier blocks only through one reduced row of each: a chain is cut "
    "at every border it crosses, and our stories have many that do (tab:regimes shows both cases)."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A stack of layers.

    Attributes:
        name: of its mechanism.
        operator: the same as text; "{tile}" stands for an eighth of the longest story.
        depth: layers.
        divisor: of n, for Algorithm 1.
        values: Ṽ of Algorithm 1.
        where: which layers have the mechanism: the "last", the "first" or "all"; others are dense.
    """

    name: str
    operator: str
    depth: int = 2
    divisor: int | None = None
    values: str = "rows"
    where: str = "last"

    @property
    def label(self) -> str:
        """As in "Block-ChaCAL n//3, mean values, L=2"."""
        return f"{self.mechanism}, L={self.depth}"

    @property
    def mechanism(self) -> str:
        """As in "Block-ChaCAL n//3, mean values"."""
        parts = [self.name if self.divisor is None else f"{self.name} n//{self.divisor}"]
        if self.values == "mean":
            parts.append("mean values")
        if self.divisor is not None and self.where != "last":
            parts.append({"first": "before the dense layer", "all": "in both layers"}[self.where])
        return ", ".join(parts)

    def operators(self, scale: Scale) -> tuple[str, ...]:
        """One for each layer."""
        own = self.operator.format(tile=scale.tile)
        others = ("dense",) * (self.depth - 1)
        return {"last": (*others, own), "first": (own, *others), "all": (own,) * self.depth}[
            self.where
        ]


def stack(name: str, operator: str, depth: int) -> Row:
    """The same ordinary attention in every layer."""
    return Row(name=name, operator=operator, depth=depth, where="all")


def block(divisor: int, values: str = "rows", where: str = "last") -> Row:
    """Algorithm 1 with blocks of n // divisor."""
    return Row(
        name="Block-ChaCAL", operator=f"block/{divisor},values={values}", divisor=divisor,
        values=values, where=where,
    )  # fmt: skip


CHACAL = Row(name="ChaCAL", operator="chacal")
DENSE, DEEP = stack("Dense", "dense", 2), stack("Dense", "dense", 5)

READINGS = (
    *(block(divisor, "mean") for divisor in DIVISORS),
    *(block(3, values, where) for values in ("rows", "mean") for where in ("first", "all")),
)
"""Of Algorithm 1, beside the paper's own."""

ROWS = (
    *(
        stack(name, operator, depth)
        for depth in (2, 5)
        for name, operator in (("Dense", "dense"), ("BigBird", "bigbird"), ("Local", "local"))
    ),
    CHACAL,
    *(block(divisor) for divisor in DIVISORS),
    *READINGS,
    Row(name="Pattern of powers", operator="pattern,offsets=powers"),
    Row(name="Pattern of squares", operator="pattern,offsets=squares"),
    Row(name="Window resolvent", operator="window@32"),
    Row(name="Pooled resolvent, near=1", operator="pooled,near=1"),
    Row(name="Routed resolvent", operator="routed@{tile},routes=4,parts=3,score=bound"),
)


def _printed(accuracy: float, exact_match: float, seconds: float | None) -> Printed:
    return {"accuracy": accuracy, "exact_match": exact_match, "seconds": seconds}


PAPER: dict[Row, Printed] = {
    DENSE: _printed(97.20, 58.8, 1.84),
    stack("BigBird", "bigbird", 2): _printed(94.49, 44.51, None),
    stack("Local", "local", 2): _printed(89.49, 30.12, None),
    DEEP: _printed(99.87, 97.0, 4.35),
    stack("BigBird", "bigbird", 5): _printed(99.37, 88.24, None),
    stack("Local", "local", 5): _printed(96.97, 71.67, None),
    CHACAL: _printed(99.99, 100.00, 2.50),
    block(2): _printed(99.99, 100.00, 2.20),
    block(3): _printed(99.98, 99.99, 1.90),
    block(4): _printed(99.91, 97.40, 1.79),
    block(5): _printed(99.92, 97.00, 1.78),
    block(6): _printed(99.85, 94.71, 1.77),
    block(7): _printed(99.85, 94.92, 1.89),
    block(8): _printed(99.90, 96.60, 1.95),
}
"""What the paper prints."""


class BoxesTable(Table[Row]):
    """tab:boxes."""

    name = "tab:boxes"
    title = "Results on Boxes"
    place = 1
    caption = "averaged over three random seeds (std. below 0.5 % for all entries)"
    metrics = (ACCURACY, EXACT_MATCH, SECONDS)
    timed = True
    by_group = (BY_BORDERS,)
    paper = PAPER

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """All rows."""
        runs = {row: scale.on_boxes(*row.operators(scale)) for row in ROWS}
        return [self.cell(row, run, evaluation_of(scale, run)) for row, run in runs.items()]

    def figures_of(self, row: Row) -> dict[str, float]:
        """The paper's, of which another reading of Ṽ is one as well; another order of layers not.

        Its times are those of its own code.
        """
        if row.values == "rows":
            return super().figures_of(row)
        as_printed = super().figures_of(replace(row, operator=block(row.divisor or 1).operator,
                                                values="rows"))  # fmt: skip
        return {name: value for name, value in as_printed.items() if name != "seconds"}

    def difference(self, row: Row, below: bool) -> str:
        """Windows reach far in short stories; chains are cut at borders; the setup is ours."""
        if row.name in ("BigBird", "Local"):
            return WINDOWS
        return CUT if below and row.divisor is not None else SETUP

    def findings(self, found: Sequence[Found[Row]]) -> list[str]:
        """Who is on the frontier at L=2, what depth costs in its place, and which Ṽ is better."""
        timed = points(found, "exact_match", "seconds")
        flat = {row: point for row, point in timed.items() if row.depth == 2}
        told = []
        if len(flat) > 1:
            rows = [f"{row.label} ({100 * flat[row][0]:.2f} %)" for row in frontier(flat)]
            left = sum(of.row.depth == 2 for of in found) - len(flat)
            which = f", of {len(flat)} rows with times ({left} without)" if left else ""
            told.append(
                f"On the frontier of exact match and evaluation time at L=2{which}, from the "
                f"fastest on: {'; '.join(rows)}."
            )
        deep = {row: seconds for row, (_, seconds) in timed.items() if row.depth != 2}
        if CHACAL in timed and deep:
            base = timed[CHACAL][1]
            ratios = [f"{row.label} {seconds / base:.2f}" for row, seconds in deep.items()]
            told.append(f"Evaluation times over that of {CHACAL.label}: {'; '.join(ratios)}.")
        return [*told, *_readings(mean_of(found, "exact_match"))]

    def point_plots(self, found: Sequence[Found[Row]]) -> list[PointPlot]:
        """Exact match against evaluation time; the frontier at L=2 is up and to the left."""
        timed = points(found, "exact_match", "seconds")
        if len(timed) < 2:
            return []
        rows = list(timed)
        edge = frontier({row: point for row, point in timed.items() if row.depth == 2})
        return [
            PointPlot(
                name="frontier",
                text="Exact match against evaluation time. The dotted line is the frontier at L=2: "
                "what no other row of two layers beats in both. Hollow: five layers, for "
                "comparison.",
                across="evaluation of the test set (s)",
                up="exact match (%)",
                points=tuple(
                    Point(
                        name=f"{row.mechanism} L{row.depth}",
                        x=seconds,
                        y=100 * match,
                        family=_family(row),
                        hollow=row.depth != 2,
                    )
                    for row, (match, seconds) in timed.items()
                ),
                edge=tuple(rows.index(row) for row in edge),
            )
        ]

    def line_plots(self, found: Sequence[Found[Row]]) -> list[LinePlot]:
        """Exact match by borders, by hops that cross one, and by updates."""
        left_out = (
            f" (without BigBird, local attention, every other block size, other readings of "
            f"Algorithm 1, and groups of fewer than {FEW} stories)"
        )
        plots = [
            by_group(found, "borders", "borders crossed", "Exact match by how many borders of "
                     f"blocks of n//8 the needed chain crosses{left_out}."),
            by_group(found, "crossings", "hops that cross a border", "Exact match by how many hops "
                     f"of the needed chain cross a border of blocks of n//8{left_out}."),
            by_group(found, "updates", "updates", "Exact match by the number of updates in a "
                     f"story{left_out}."),
        ]  # fmt: skip
        return [plot for plot in plots if plot is not None]


def by_group(found: Sequence[Found[Row]], by: str, across: str, text: str) -> LinePlot | None:
    """Exact match of the rows that can be told apart, by groups of the test stories."""
    lines = []
    for of in found:
        row = of.row
        odd = row.divisor is not None and row.divisor % 2 == 1
        if odd or row in READINGS or row.name in ("BigBird", "Local"):
            continue
        sizes = of.result.group_sizes(by)
        shares = {
            place: 100 * figure.mean
            for place, figure in of.result.broken_down("exact_match", by).items()
            if sizes.get(place, FEW) >= FEW
        }
        if shares:
            lines.append(Line(name=row.label, x=tuple(shares), y=tuple(shares.values())))
    if not lines:
        return None
    panel = Panel(across=across, lines=tuple(lines))
    return LinePlot(
        name=f"exact_match/{by}", text=text, up="exact match (%)", panels=(panel,), height=5.2
    )


def _readings(match: dict[Row, float]) -> list[str]:
    """Which Ṽ and which place of the mechanism are better, where both were run."""
    told = []
    pairs = {
        divisor: (match[block(divisor)], match[block(divisor, "mean")])
        for divisor in DIVISORS
        if block(divisor) in match and block(divisor, "mean") in match
    }
    if pairs:
        better = sum(mean > rows for rows, mean in pairs.values())
        each = [f"n//{j} {100 * a:.1f} and {100 * b:.1f}" for j, (a, b) in pairs.items()]
        told.append(
            f"Algorithm 1 with a block's first value, and with the mean of its values (exact "
            f"match, %): {'; '.join(each)}. The mean is better in {better} of {len(pairs)}."
        )
    orders = [
        f"{row.label} {100 * match[row]:.1f} %"
        for row in (*(block(3, v, w) for v in ("rows", "mean") for w in ("last", "first", "all")),)
        if row in match
    ]
    if len(orders) > 2:
        told.append(f"The order of layers, at n//3: {'; '.join(orders)}.")
    return told


def _family(row: Row) -> int:
    return FAMILIES.index(row.name) if row.name in FAMILIES else len(FAMILIES)


TABLE = BoxesTable()
