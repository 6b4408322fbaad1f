"""tab:regimes: the same stories at their own length, and at three times as many tokens.

Only blocks of n // j change with n; dense attention and ChaCAL never see the padding.
"""

from __future__ import annotations

from collections.abc import Sequence

from chacal.experiments.cells import Cell
from chacal.experiments.scales import Scale
from chacal.experiments.table import BY_BORDERS, Found, Table, evaluation_of
from chacal.experiments.tables import boxes
from chacal.experiments.tables.boxes import CHACAL, SETUP, Row, block
from chacal.report.drawings import BarPlot, Bars
from chacal.report.results import ACCURACY, EXACT_MATCH

ROWS = (boxes.DENSE, CHACAL, *(block(divisor) for divisor in (3, 4, 6, 8)))


class RegimesTable(Table[Row]):
    """tab:regimes."""

    name = "tab:regimes"
    title = "The same stories, with chains that cross borders and in one block"
    place = 6
    metrics = (ACCURACY, EXACT_MATCH)
    by_group = (BY_BORDERS,)

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Both regimes where they differ."""
        long = 3 * scale.stories.length
        cells = []
        for row in ROWS:
            columns = {"chains cross borders": 0}
            if row.divisor is not None:
                columns[f"stories fit in n//3 (n = {long})"] = long
            for column, pad in columns.items():
                run = scale.on_boxes(*row.operators(scale), pad=pad)
                cells.append(self.cell(row, run, evaluation_of(scale, run), column))
        return cells

    def figures_of(self, row: Row) -> dict[str, float]:
        """The paper's of tab:boxes, but for its times."""
        figures = boxes.TABLE.figures_of(row)
        return {name: value for name, value in figures.items() if name != "seconds"}

    def difference(self, row: Row, below: bool) -> str:
        """The paper's figure is of another table."""
        if row.divisor is None:
            return SETUP
        return (
            "The figure beside ours is the paper's of tab:boxes, whose story and sequence lengths "
            "are not published."
        )

    def bar_plots(self, found: Sequence[Found[Row]]) -> list[BarPlot]:
        """Exact match of every row, one bar for each regime, and the paper's as a mark."""
        shares = {
            (of.row, of.cell.column): 100 * of.figures["exact_match"].mean
            for of in found
            if "exact_match" in of.figures
        }
        rows = list(dict.fromkeys(row for row, _ in shares))
        columns = dict.fromkeys(column for _, column in shares)
        if not rows:
            return []
        paper = tuple(self.figures_of(row).get("exact_match") for row in rows)
        return [
            BarPlot(
                name="bars",
                text="Exact match where chains cross block borders and where stories fit in a "
                "block.",
                axis="exact match (%)",
                places=tuple(row.name if row.divisor is None else f"n//{row.divisor}"
                             for row in rows),
                bars=tuple(
                    Bars(name=column, values=tuple(shares.get((row, column)) for row in rows))
                    for column in columns
                ),
                marks=Bars(name="the paper's (tab:boxes)", values=paper),
            )
        ]  # fmt: skip


TABLE = RegimesTable()
