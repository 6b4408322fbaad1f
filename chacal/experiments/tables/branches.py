"""tab:ablation_branches: what each branch of Algorithm 1 gives alone, at n // 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chacal.experiments.cells import Cell
from chacal.experiments.scales import Scale
from chacal.experiments.table import BY_BORDERS, Printed, Table, evaluation_of
from chacal.experiments.tables.boxes import CUT, SETUP
from chacal.report.results import ACCURACY, EXACT_MATCH

NAMES = {
    "local": "Local branch only",
    "residual": "Residual branch only",
    "both": "Local + Residual branches",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Branches of Algorithm 1, and its Ṽ, which the local one has no use for."""

    branches: str
    values: str = "rows"

    @property
    def label(self) -> str:
        """As the paper says it."""
        return NAMES[self.branches] + (", mean values" if self.values == "mean" else "")

    @property
    def operator(self) -> str:
        """As text."""
        branches = f",branches={self.branches}" if self.branches != "both" else ""
        return f"block/3,values={self.values}{branches}"


ROWS = (
    *(Row(branches=branches) for branches in NAMES),
    *(Row(branches=branches, values="mean") for branches in ("residual", "both")),
)


PAPER: dict[Row, Printed] = {
    Row(branches="local"): {"exact_match": 96.68, "accuracy": 99.88},
    Row(branches="residual"): {"exact_match": 6.52, "accuracy": 88.00},
    Row(branches="both"): {"exact_match": 99.99, "accuracy": 99.99},
}
"""What the paper prints."""


class BranchesTable(Table[Row]):
    """tab:ablation_branches."""

    name = "tab:ablation_branches"
    title = "Branches of Algorithm 1 at n//3, on Boxes"
    place = 2
    caption = "averaged over five random seeds (std. below 1.5 % for all entries)"
    metrics = (EXACT_MATCH, ACCURACY)
    by_group = (BY_BORDERS,)
    paper = PAPER

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Every branch in the second layer."""
        runs = {row: scale.on_boxes("dense", row.operator) for row in ROWS}
        return [self.cell(row, run, evaluation_of(scale, run)) for row, run in runs.items()]

    def seeds(self, scale: Scale) -> int:
        """The paper's five."""
        return scale.seeds or 5

    def figures_of(self, row: Row) -> dict[str, float]:
        """The paper does not say which Ṽ it has."""
        return super().figures_of(replace(row, values="rows"))

    def difference(self, row: Row, below: bool) -> str:
        """Chains are cut at borders; the setup is ours."""
        return CUT if below else SETUP


TABLE = BranchesTable()
