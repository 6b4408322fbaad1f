"""`chacal reproduce`: a table of the paper by one command, printed as far as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

from rich.table import Table as Grid

from chacal._echo import shown
from chacal.commands.console import console
from chacal.experiments.engines import Engine, Local
from chacal.experiments.scales import SCALES
from chacal.experiments.tables import TABLES
from chacal.report.lines import TextTable, lines_of
from chacal.report.results import NEAR, TableResult, label
from chacal.report.sections import some

WIDEST = 28
"""Characters of a figure's column on a terminal; longer texts are broken between words."""


def engine_of(
    name: str, *, jobs: int, address: str, cpus: int | None, gpus: float | None
) -> Engine:
    """What runs the cells; options of the other engine are refused, not passed over."""
    if name == "local":
        for option, value in (("address", address or None), ("cpus", cpus), ("gpus", gpus)):
            if value is not None:
                raise ValueError(f"{option} is {shown(value)}; expected --engine ray beside it")
        return Local(jobs)
    if jobs != 1:
        raise ValueError(
            f"jobs is {jobs} with --engine ray; expected --cpus and --gpus of a cell: as many run "
            f"at once as the cluster has room for"
        )
    from chacal.experiments.ray_engine import OnRay

    return OnRay(address=address, cpus=1 if cpus is None else cpus, gpus=gpus or 0.0)


def list_tables() -> None:
    """Print what can be made."""
    grid = Grid(box=None, pad_edge=False)
    for column in ("table", "what", "lines"):
        grid.add_column(column)
    scale = SCALES["cpu"]
    for table in TABLES.values():
        count = len(table.cells(scale)) + len(table.costs(scale))
        grid.add_row(table.name, table.title, str(count))
    out = console()
    out.print(grid)
    out.print("\nchacal reproduce TABLE --scale smoke|cpu|paper; then chacal report")


def print_table(table: TableResult, out: Path) -> None:
    """A table on the terminal, in parts where it is wider."""
    lines = lines_of(table)
    screen = console()
    screen.print(f"{table.table}, {table.scale}: {table.title}")
    for grid in grids(lines, screen.width):
        screen.print()
        screen.print(grid)
    screen.print()
    if any(line.marked for line in lines.lines):
        screen.print(f"≠: more than {NEAR:g} points from the paper's")
    problems: dict[str, list[str]] = {}
    for line in lines.lines:
        if line.state:
            problems.setdefault(line.state, []).append(label(line.row, line.column))
    for why, rows in problems.items():
        screen.print(f"{some(rows)}: {why}")
    for sentence in table.findings:
        screen.print(sentence)
    seeds = f"; seeds {table.seeds_text()}" if table.cells else ""
    screen.print(f"{table.note}{seeds}")
    screen.print(f"written to {out}; a page of all tables: chacal report {out}")


def grids(lines: TextTable, width: int) -> list[Grid]:
    """A table in as few parts as fit the width: every part has the rows' names.

    A metric's columns stay together. One that is too wide alone is a part of its own.
    """
    names = [("row", [line.row for line in lines.lines], 2 * width // 5)]
    if lines.has_column:
        names.append(("of", [line.column for line in lines.lines], width // 5))
    groups: list[list[tuple[str, list[str], int]]] = []
    for i, column in enumerate(lines.columns):
        texts = [x.texts[i] + (" ≠" if i in x.marked else "") for x in lines.lines]
        if column.paper:
            groups[-1].append((column.title, texts, WIDEST))
        else:
            groups.append([(column.title, texts, WIDEST)])
    if lines.has_seeds:
        groups.append([("seeds", [line.seeds for line in lines.lines], WIDEST)])
    causal = {True: "yes", False: "NO", None: ""}
    groups.append([("causal", [causal[line.causal] for line in lines.lines], WIDEST)])
    parts = [[groups[0]]]
    for group in groups[1:]:
        if _width([*names, *chain(*parts[-1], group)]) <= width:
            parts[-1].append(group)
        else:
            parts.append([group])
    return [_grid([*names, *chain(*part)], len(names)) for part in parts]


def _width(columns: Sequence[tuple[str, list[str], int]]) -> int:
    return sum(_column_width(column) + 2 for column in columns) - 2


def _column_width(column: tuple[str, list[str], int]) -> int:
    """Its longest text, up to a limit; the title is broken between words."""
    title, texts, limit = column
    return max(min(max(map(len, texts), default=0), limit), *map(len, title.split()))


def _grid(columns: Sequence[tuple[str, list[str], int]], names: int) -> Grid:
    grid = Grid(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        side: Literal["left", "right"] = "left" if i < names else "right"
        # folded, a name that is longer than its column is still whole
        grid.add_column(column[0], justify=side, width=_column_width(column), overflow="fold")
    for row in zip(*(texts for _, texts, _ in columns), strict=True):
        grid.add_row(*row)
    return grid
