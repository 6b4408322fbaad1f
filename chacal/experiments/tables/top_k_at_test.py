"""tab:boxes-topk: trained densely, pruned at test only, until it recovers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chacal.experiments.cells import Cell
from chacal.experiments.scales import Scale
from chacal.experiments.table import Found, Printed, Table, evaluation_of
from chacal.report.drawings import Line, LinePlot, Panel
from chacal.report.results import ACCURACY, EXACT_MATCH

COUNTS = (1, 2, 3, 4, 8, 16, None)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Entries of A kept in a row; None keeps all."""

    k: int | None

    @property
    def kept(self) -> str:
        """How many, as text."""
        return "all" if self.k is None else str(self.k)

    @property
    def label(self) -> str:
        """As in "k=3"."""
        return f"k={self.kept}"


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is pruned: a trained stack, from its layer `first` on."""

    name: str
    operators: tuple[str, ...]
    first: int = 0

    def pruned(self, k: int | None) -> tuple[str, ...]:
        """Its operators at test."""
        return tuple(
            f"{text},top_k={k}" if k and i >= self.first else text
            for i, text in enumerate(self.operators)
        )


MODELS = (
    Model(name="dense, L=2, every layer", operators=("dense", "dense")),
    Model(name="dense, L=5, every layer", operators=("dense",) * 5),
    Model(name="ChaCAL, L=2, every layer", operators=("dense", "chacal")),
    Model(name="ChaCAL, L=2, its layer", operators=("dense", "chacal"), first=1),
)


PAPER: dict[Row, Printed] = {
    Row(k=1): {"accuracy": 98.8, "exact_match": 68.41},
    Row(k=2): {"accuracy": 99.01, "exact_match": 75.12},
    Row(k=3): {"accuracy": 99.89, "exact_match": 96.74},
}
"""What the paper prints."""


class TopKAtTestTable(Table[Row]):
    """tab:boxes-topk."""

    name = "tab:boxes-topk"
    title = "Protocol B: trained densely, pruned at test only"
    place = 4
    metrics = (ACCURACY, EXACT_MATCH)
    paper = PAPER

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Every model, with ever more entries kept."""
        cells = []
        for model in MODELS:
            run = scale.on_boxes(*model.operators)
            for k in COUNTS:
                row = Row(k=k)
                cells.append(
                    Cell(
                        row=row,
                        column=model.name,
                        run=run,
                        evaluation=evaluation_of(scale, run, operators=model.pruned(k)),
                        # the paper prunes dense attention
                        paper=self.figures_of(row) if model.operators[-1] == "dense" else {},
                    )
                )
        return cells

    def difference(self, row: Row, below: bool) -> str:
        """Which model the paper prunes is not known."""
        return (
            "The paper does not say which model it prunes; its figures at k=3 are near those of "
            "its five dense layers."
        )

    def line_plots(self, found: Sequence[Found[Row]]) -> list[LinePlot]:
        """Exact match against the entries kept, a line for each model."""
        shares: dict[str, dict[int, float]] = {}
        for of in found:
            if "exact_match" in of.figures:
                at = COUNTS.index(of.row.k)
                shares.setdefault(of.cell.column, {})[at] = 100 * of.figures["exact_match"].mean
        if not shares:
            return []
        lines = [Line(name=n, x=tuple(line), y=tuple(line.values())) for n, line in shares.items()]
        ticks = tuple(Row(k=k).kept for k in COUNTS)
        panel = Panel(across="entries kept (k)", lines=tuple(lines), ticks=ticks)
        return [
            LinePlot(
                name="top_k",
                text="Exact match against the entries of A kept in a row at test.",
                up="exact match (%)",
                panels=(panel,),
            )
        ]


TABLE = TopKAtTestTable()
