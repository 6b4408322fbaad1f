"""`chacal reproduce`: a table of the paper by one command."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rich.table import Table as Grid

from chacal.commands.console import console
from chacal.experiments.scales import SCALES, Given
from chacal.experiments.sweep import run_table
from chacal.experiments.tables import TABLES
from chacal.experiments.text_tables import ON_TEXT
from chacal.report import paper
from chacal.report.aggregate import NEAR
from chacal.report.lines import Lines, lines_of
from chacal.report.sections import seeds_text, some
from chacal.training.torchrun import rank

WIDEST = 28
"""Characters of a figure's column on a terminal; longer texts are broken between words."""


def list_tables() -> None:
    """Print what can be made."""
    grid = Grid(box=None, pad_edge=False)
    for column in ("table", "what", "lines"):
        grid.add_column(column)
    for name, declare in TABLES.items():
        table = declare(SCALES["cpu"])
        count = len(table.cells) + len(table.costs)
        grid.add_row(name, paper.TABLES[name].title, str(count))
    out = console()
    out.print(grid)
    out.print("\nchacal reproduce TABLE --scale smoke|cpu|paper; then chacal report")


def reproduce(
    name: str,
    *,
    scale: str,
    seeds: int | None,
    jobs: int,
    out: Path | None,
    only: str = "",
    given: Given | None = None,
) -> dict[str, Any]:
    """Run what is left of a table, print it, and return its content.

    Args:
        name: the table's label.
        scale: how large.
        seeds: how many; as many as the scale has unless given.
        jobs: cells at once.
        out: folder of the scale's results; results/SCALE unless given.
        only: rows to run, by a part of "row, column"; the others stay as they are.
        given: data and models of the user's own, for the tables on text.
    """
    if name not in TABLES:
        raise ValueError(f"table is {name!r}; expected one of {', '.join(TABLES)}")
    if scale not in SCALES:
        raise ValueError(f"scale is {scale!r}; expected one of {', '.join(SCALES)}")
    given = given or Given()
    if name not in ON_TEXT:
        given.refuse_but(name)
    table = TABLES[name](dataclasses.replace(SCALES[scale], given=given))
    count = table.seeds if seeds is None else seeds
    if count < 1:
        raise ValueError(f"seeds is {count}; expected at least 1")
    to = out or Path("results") / scale
    first = rank() == 0
    content = run_table(
        table, to, scale=scale, seeds=range(count), jobs=jobs, rounds=SCALES[scale].rounds,
        only=only, flags=given.flags(), quiet=not first,
    )  # fmt: skip
    if first:
        print_table(content, to)
    return content


def print_table(content: dict[str, Any], out: Path) -> None:
    """A finished table on the terminal, in parts where it is wider."""
    lines = lines_of(content["table"], content)
    screen = console()
    screen.print(f"{content['table']}, {content['scale']}: {content['title']}")
    for grid in grids(lines, screen.width):
        screen.print()
        screen.print(grid)
    screen.print()
    if any(line.marked for line in lines.lines):
        screen.print(f"≠: more than {NEAR:g} points from the paper's")
    problems: dict[str, list[str]] = {}
    for line in lines.lines:
        if line.state:
            where = f"{line.row}, {line.column}" if line.column else line.row
            problems.setdefault(line.state, []).append(where)
    for why, rows in problems.items():
        screen.print(f"{some(rows)}: {why}")
    seeds = f"; seeds {seeds_text(content)}" if content["cells"] else ""
    screen.print(f"{content['note']}{seeds}")
    screen.print(f"written to {out}; a page of all tables: chacal report {out}")


def grids(lines: Lines, width: int) -> list[Grid]:
    """A table in as few parts as fit the width: every part has the rows' names.

    A metric's columns stay together. One that is too wide alone is a part of its own.
    """
    names = [("row", [line.row for line in lines.lines], 2 * width // 5)]
    if lines.has_column:
        names.append(("of", [line.column for line in lines.lines], width // 5))
    groups: list[list[tuple[str, list[str], int]]] = []
    for i, column in enumerate(lines.columns):
        texts = [x.texts[i] + (" ≠" if i in x.marked else "") for x in lines.lines]
        if column == "paper":
            groups[-1].append((column, texts, WIDEST))
        else:
            groups.append([(column, texts, WIDEST)])
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


def has_failures(content: dict[str, Any]) -> bool:
    """Whether a cell of a table failed; a process that only trains along has none."""
    if not content:
        return False
    runs = [run for cell in content["cells"] for run in cell["runs"].values()]
    return any(part["state"] == "failed" for part in [*runs, *content["costs"]])
