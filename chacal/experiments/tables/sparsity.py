"""fig:sparsity: mass in diagonal blocks and in a window, and maps, of trained operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chacal.experiments.cells import Cell
from chacal.experiments.scales import Scale
from chacal.experiments.table import Found, Table, evaluation_of
from chacal.experiments.tables.boxes import CHACAL, DEEP, DENSE, Row, block
from chacal.report.drawings import Line, LinePlot, Panel
from chacal.report.results import EXACT_MATCH

ROWS = (DENSE, DEEP, CHACAL, block(3), Row(name="Window resolvent", operator="window@32"))


class SparsityTable(Table[Row]):
    """fig:sparsity."""

    name = "fig:sparsity"
    title = "Where the attention of trained models lies"
    place = 7
    metrics = (EXACT_MATCH,)

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Runs of tab:boxes, looked at."""
        runs = {row: scale.on_boxes(*row.operators(scale)) for row in ROWS}
        return [
            self.cell(row, run, evaluation_of(scale, run, look=True)) for row, run in runs.items()
        ]

    def seeds(self, scale: Scale) -> int:
        """One model is looked at."""
        return 1

    def line_plots(self, found: Sequence[Found[Row]]) -> list[LinePlot]:
        """Share of the last layer's attention inside blocks and inside a window, against size."""
        looks = {of.row: of.looks[-1] for of in found if of.looks}
        if not looks:
            return []
        kinds = {"blocks": "inside diagonal blocks", "windows": "inside a window"}
        panels = []
        for kind, title in kinds.items():
            # of a run's curves, equal weights come last, and its last layer before them
            lines = [_line(row.label, getattr(curves[-2], kind)) for row, curves in looks.items()]
            equal = _line(
                "equal weights", getattr(next(iter(looks.values()))[-1], kind), plain=True
            )
            panels.append(Panel(title=title, across="tokens", lines=(*lines, equal)))
        return [
            LinePlot(
                name="mass",
                text="Share of the last layer's attention inside diagonal blocks and inside a "
                "sliding window.",
                up="share of the last layer's mass (%)",
                panels=tuple(panels),
                log_x=True,
            )
        ]


def _line(name: str, shares: Mapping[str, float], plain: bool = False) -> Line:
    """Shares by size; parts of n ("n//3"), which are of no one size, are left out."""
    sizes = {int(size): 100 * share for size, share in shares.items() if size.isdecimal()}
    return Line(name=name, x=tuple(sizes), y=tuple(sizes.values()), plain=plain)


TABLE = SparsityTable()
