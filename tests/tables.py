"""Tables that tests make: of cells given by hand, and real ones with figures given by hand."""

from dataclasses import dataclass

from chacal.experiments.cells import Cell, Evaluation
from chacal.experiments.gather import assemble, by_groups
from chacal.experiments.scales import CPU
from chacal.experiments.table import Found, Table
from chacal.report.results import ACCURACY, CellResult, GroupSizes, RunResult


@dataclass(frozen=True)
class Named:
    """A row that is its name."""

    label: str


class FakeTable(Table):
    """A table of the cells and curves that it is given."""

    name = "tab:boxes"
    title = "a table of a test"
    place = 0
    metrics = (ACCURACY,)

    def __init__(self, *cells, costs=(), timed=False, name="tab:boxes"):
        self.given_cells, self.given_costs = cells, costs
        self.timed, self.name = timed, name

    def cells(self, scale):
        return self.given_cells

    def costs(self, scale):
        return self.given_costs

    def seeds(self, scale):
        return 3


def named_cell(row, run, evaluation=None, column=""):
    """A cell of a `FakeTable`."""
    return Cell(
        row=Named(row), column=column, run=run, evaluation=evaluation or Evaluation(examples=16)
    )


def done(**metrics):
    """A run with these figures; a group is written as `exact_match/borders=03`."""
    whole, breakdowns = by_groups(metrics)
    return RunResult(state="done", run="r", metrics=whole, breakdowns=breakdowns, train_seconds=1.0)


def failed(why):
    return RunResult(state="failed", run="r", why=why, metrics={})


NOT_RUN = RunResult(state="not run", metrics={})


def found(cell, *runs, seconds=None, sizes=None, looks=()):
    """A declared cell with what came of it, seed by seed."""
    sizes = sizes or {}
    result = CellResult(
        row=cell.row.label, column=cell.column, operators=cell.operators, causal=cell.causal,
        task="boxes", model="2 layers", training="20 steps", paper=dict(cell.paper),
        seconds=seconds, runs={str(seed): run for seed, run in enumerate(runs)},
        sizes=tuple(GroupSizes(by=by, at=tuple(s), sizes=tuple(s.values()))
                    for by, s in sizes.items()),
        difference="",
    )  # fmt: skip
    return Found(cell=cell, result=result, looks=looks)


def cells_of(table, scale=CPU):
    """Label -> cell, of a real table."""
    return {cell.label: cell for cell in table.cells(scale)}


def made(table, *of, scale=CPU, costs=(), seeds=(0, 1), machines=()):
    """A table's result, from cells with their figures."""
    return assemble(table, scale, of, costs, seeds=seeds, machines=machines)
