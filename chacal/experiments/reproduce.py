"""`chacal reproduce`: a table of the paper by one command."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

from chacal.console import console
from chacal.experiments.scales import SCALES, Given
from chacal.experiments.sweep import run_table
from chacal.experiments.tables import TABLES
from chacal.experiments.text_tables import ON_TEXT
from chacal.report import paper
from chacal.report.lines import lines_of


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
        only: rows to run, by a part of their name; the others stay as they are.
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
    first = int(os.environ.get("RANK", "0")) == 0
    content = run_table(
        table, to, scale=scale, seeds=range(count), jobs=jobs, rounds=SCALES[scale].rounds,
        only=only, flags=given.flags(), quiet=not first,
    )  # fmt: skip
    if first:
        print_table(content, to)
    return content


def print_table(content: dict[str, Any], out: Path) -> None:
    """A finished table on the terminal."""
    lines = lines_of(content["table"], content)
    grid = Grid(title=f"{content['table']}, {content['scale']}: {content['title']}",
                title_justify="left", box=None, pad_edge=False)  # fmt: skip
    grid.add_column("row", overflow="fold")
    if lines.has_column:
        grid.add_column("of")
    for column in lines.columns:
        grid.add_column(column, justify="right")
    grid.add_column("causal")
    for line in lines.lines:
        second = [line.column] if lines.has_column else []
        causal = {True: "yes", False: "NO", None: ""}[line.causal]
        grid.add_row(line.row, *second, *line.texts, causal)
    screen = console()
    screen.print(grid)
    for line in lines.lines:
        if line.state:
            where = f"{line.row}, {line.column}" if line.column else line.row
            screen.print(f"{where}: {line.state}")
    screen.print(f"{content['note']}; seeds {', '.join(map(str, content['seeds']))}")
    screen.print(f"written to {out}; a page of all tables: chacal report {out}")


def has_failures(content: dict[str, Any]) -> bool:
    """Whether a cell of a table failed; a process that only trains along has none."""
    if not content:
        return False
    runs = [run for cell in content["cells"] for run in cell["runs"].values()]
    return any(part["state"] == "failed" for part in [*runs, *content["costs"]])
