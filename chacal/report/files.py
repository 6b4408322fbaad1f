"""Results as they lie in folders: which scales there are, and their tables, read strictly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chacal._echo import shown
from chacal._files import read_json
from chacal._plain import from_plain, member
from chacal.report.results import SMOKE, VERSION, TableResult


@dataclass(frozen=True)
class Results:
    """The tables of one scale.

    Attributes:
        scale: its name.
        folder: where they lie.
        tables: in the report's order; those that were never run too.
        beside: whether another folder of the scale comes first; this one then has only what was
            run in it, such as a table of another model.
    """

    scale: str
    folder: Path
    tables: tuple[TableResult, ...]
    beside: bool = False

    @property
    def title(self) -> str:
        """The scale, and of a folder beside its first one the folder too."""
        return f"{self.scale}, {self.folder.name}" if self.beside else self.scale

    @property
    def smoke(self) -> bool:
        """Whether the figures mean nothing."""
        return self.scale == SMOKE


def read_results(
    folder: Path, never_run: Mapping[str, TableResult]
) -> tuple[list[Results], list[str]]:
    """Every scale that lies in a folder, or the one that it is of; and notes on what is left out.

    Smoke results are read only where they are asked for by name or stand alone.

    Args:
        folder: what `chacal reproduce` wrote.
        never_run: name -> what is shown of a table that is not there, in the report's order.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected what chacal reproduce wrote")
    marks = [folder / "scale.json"] if (folder / "scale.json").is_file() else []
    marks = marks or sorted(folder.glob("*/scale.json"))
    if not marks:
        raise ValueError(
            f"{folder} holds no results; expected what chacal reproduce wrote "
            f"(try: chacal reproduce tab:boxes --scale smoke)"
        )
    order = {"cpu": 0, "paper": 1, SMOKE: 2}
    found = [_read_scale(mark, never_run) for mark in marks]
    found.sort(key=lambda r: (order.get(r.scale, 3), r.folder.name != r.scale, str(r.folder)))
    found = [
        _only_run(results, never_run) if results.scale in {r.scale for r in found[:i]} else results
        for i, results in enumerate(found)
    ]
    real = [results for results in found if not results.smoke]
    notes = [
        f"{results.folder.name} holds smoke results, which are left out (chacal report "
        f"{folder.name}/{results.folder.name} shows them)"
        for results in found
        if results.smoke and real
    ]
    return real or found, notes


def _only_run(results: Results, never_run: Mapping[str, TableResult]) -> Results:
    tables = tuple(t for t in results.tables if t is not never_run.get(t.table))
    return dataclasses.replace(results, tables=tables, beside=True)


def read_table(file: Path) -> TableResult:
    """A table's file; an older one is refused, with the command that writes it anew."""
    data = read_json(file)
    if not isinstance(data, dict):
        raise ValueError(f"{file} is not a table; expected an object")
    if data.get("version") != VERSION:
        calls = str(data.get("command") or "chacal reproduce TABLE").split(" && ")
        raise ValueError(
            f"{file} is of version {data.get('version', 1)}; expected {VERSION} (its runs are all "
            f"there, and this writes it anew and runs nothing: {calls[0]} --no-run)"
        )
    return from_plain(TableResult, data, str(file))


def _read_scale(mark: Path, never_run: Mapping[str, TableResult]) -> Results:
    scale = member(read_json(mark), "scale", str, str(mark))
    tables = []
    for name, empty in never_run.items():
        file = mark.parent / "tables" / f"{name.replace(':', '-')}.json"
        if not file.is_file():
            tables.append(empty)
            continue
        table = read_table(file)
        if table.scale != scale:
            raise ValueError(
                f"{file} is of the scale {shown(table.scale)} in a folder of {shown(scale)}; "
                f"expected one scale per folder"
            )
        tables.append(table)
    return Results(scale, mark.parent, tuple(tables))
