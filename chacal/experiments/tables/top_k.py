"""tab:op-topk: top-k inside the operator, in training and test; every reading of where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chacal.experiments.cells import Cell
from chacal.experiments.scales import Scale
from chacal.experiments.table import Printed, Table, evaluation_of
from chacal.report.results import ACCURACY, EXACT_MATCH

OPERATORS = {"T_raw": "dense", "T_post": "t_post", "T_pre": "t_pre"}

NO_GRADIENT = (
    "With k=1 a pruned, renormalised row is constant and has no gradient: the layer cannot learn "
    "where to look."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """An operator of Section 3.4.

    Attributes:
        operator: its name in the paper.
        k: entries kept in a row; None keeps all.
        prune: which A is pruned: inside the inverse, outside, or both.
    """

    operator: str
    k: int | None
    prune: str = "both"

    @property
    def label(self) -> str:
        """As in "T_post, k=2, pruned inside the inverse"."""
        where = f", pruned {self.prune} the inverse" if self.prune != "both" else ""
        return f"{self.operator}, k={'all' if self.k is None else self.k}{where}"

    @property
    def text(self) -> str:
        """The operator as text."""
        pruned = "" if self.k is None else f",top_k={self.k}"
        where = f",prune={self.prune}" if self.prune != "both" else ""
        return OPERATORS[self.operator] + pruned + where


ROWS = (
    Row(operator="T_raw", k=1),
    Row(operator="T_raw", k=None),
    *(
        Row(operator="T_post", k=k, prune=prune)
        for k in (1, 2, 3)
        for prune in ("both", "outside", "inside")
    ),
    Row(operator="T_post", k=None),
    *(Row(operator="T_pre", k=1, prune=prune) for prune in ("both", "outside", "inside")),
    Row(operator="T_pre", k=None),
)


PAPER: dict[Row, Printed] = {
    Row(operator="T_raw", k=1): {"accuracy": 100.0},
    Row(operator="T_post", k=1): {"accuracy": 61.0},
    Row(operator="T_post", k=2): {"accuracy": 88.0},
    Row(operator="T_post", k=3): {"accuracy": 91.0},
    Row(operator="T_pre", k=1): {"accuracy": 35.0},
}
"""What the paper prints."""


class TopKTable(Table[Row]):
    """tab:op-topk."""

    name = "tab:op-topk"
    title = "Protocol A: top-k in training and test"
    place = 3
    caption = "averaged over three random seeds (std. below 2 % for all entries)"
    metrics = (ACCURACY, EXACT_MATCH)
    paper = PAPER

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """On chains, and, as the paper may have pruned, on Boxes."""
        cells = []
        for row in ROWS:
            runs = {"chains, L=1": scale.on_chains(row.text)}
            if row.prune == "both":  # the other readings are told apart on chains alone
                runs["boxes, L=2"] = scale.on_boxes("dense", row.text)
            for column, run in runs.items():
                cells.append(self.cell(row, run, evaluation_of(scale, run), column))
        return cells

    def figures_of(self, row: Row) -> dict[str, float]:
        """The paper does not say where it prunes."""
        return super().figures_of(replace(row, prune="both"))

    def difference(self, row: Row, below: bool) -> str:
        """What k=1 does to a gradient, and what the paper does not say."""
        if row.k == 1 and row.prune == "both":
            return NO_GRADIENT
        if row.k == 1:
            return (
                "The paper does not say where it prunes; pruned in one place only, the other keeps "
                "its gradient."
            )
        return "The paper says neither which A it prunes nor the task and how long it trains."


TABLE = TopKTable()
