"""Tables as `chacal reproduce` leaves them, and the arithmetic of their figures; no torch."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chacal.report.paper import TABLES

SHARES = ("accuracy", "exact_match", "box_accuracy")
"""Metrics that are shares; shown, and compared with the paper's, in per cent."""

NEAR = 2.0
"""Points by which a share may differ from the paper's before it is marked."""


FIELDS = (
    "table", "scale", "note", "seeds", "metrics", "command", "machines", "timing", "cells", "costs",
)  # fmt: skip
"""What the file of a table has."""


@dataclass(frozen=True)
class Figure:
    """A metric over seeds: mean, sample standard deviation (None for one seed), how many."""

    mean: float
    std: float | None
    seeds: int


@dataclass(frozen=True)
class Results:
    """The tables of one scale.

    Attributes:
        scale: its name.
        folder: where they lie.
        tables: name -> content, in the report's order; None for a table that was never run.
    """

    scale: str
    folder: Path
    tables: dict[str, dict[str, Any] | None]

    @property
    def smoke(self) -> bool:
        """Whether the figures mean nothing."""
        return self.scale == "smoke"


def aggregate(values: Sequence[float]) -> Figure:
    """Mean and spread of one metric over seeds."""
    if not values:
        raise ValueError("no values; expected one for each seed")
    std = statistics.stdev(values) if len(values) > 1 else None
    return Figure(statistics.fmean(values), std, len(values))


def cell_figures(cell: Mapping[str, Any]) -> dict[str, Figure]:
    """Metric -> figure over the seeds of a cell that are done; only metrics that all have."""
    done = [run["metrics"] for run in cell["runs"].values() if run["state"] == "done"]
    if not done:
        return {}
    names = [name for name in done[0] if all(name in metrics for metrics in done)]
    figures = {name: aggregate([metrics[name] for metrics in done]) for name in names}
    if cell.get("seconds") is not None:
        figures["seconds"] = Figure(cell["seconds"], None, 1)
    return figures


def breakdown(figures: Mapping[str, Figure], label: str) -> dict[int, Figure]:
    """ "exact_match/borders" -> number of borders -> figure."""
    prefix = label + "="
    found = {int(k[len(prefix) :]): v for k, v in figures.items() if k.startswith(prefix)}
    return dict(sorted(found.items()))


def group_sizes(cell: Mapping[str, Any], label: str) -> dict[int, int]:
    """Number of borders -> how many test stories have it; empty where it was not counted."""
    prefix = label + "="
    sizes = cell.get("counts", {}).items()
    return {int(k[len(prefix) :]): n for k, n in sizes if k.startswith(prefix)}


def count_seeds(cell: Mapping[str, Any]) -> str:
    """Of how many seeds a cell's figures are: "3", or "1 of 3" where others are missing."""
    wanted = len(cell["runs"])
    done = sum(run["state"] == "done" for run in cell["runs"].values())
    return f"{done}" if done == wanted else f"{done} of {wanted}" if done else "–"


def frontier_rows(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Rows (share right, seconds) that no other beats in one without losing in the other.

    They come from the fastest to the best.
    """
    best, rows = -1.0, []
    for row, (right, _) in sorted(points.items(), key=lambda p: (p[1][1], -p[1][0])):
        if right > best:
            best = right
            rows.append(row)
    return rows


def layers_of(row: str) -> int | None:
    """2 for "ChaCAL, L=2"; None where a row does not say."""
    found = re.search(r"\bL=(\d+)", row)
    return int(found[1]) if found else None


def state(cell: Mapping[str, Any]) -> str:
    """ "" for a cell that is whole; else what is missing of it, and why."""
    runs = cell["runs"]
    failed = {seed: run["why"] for seed, run in runs.items() if run["state"] == "failed"}
    missing = [seed for seed, run in runs.items() if run["state"] == "not run"]
    if len(missing) == len(runs):
        return "not run"
    parts = [f"seed {seed} failed: {why}" for seed, why in failed.items()]
    if missing:
        parts.append(f"seed {', '.join(missing)} not run")
    return "; ".join(parts)


def differs(metric: str, ours: float, paper: float) -> bool:
    """Whether a share is further from the paper's than `NEAR` points; times are never compared."""
    return metric in SHARES and abs(100 * ours - paper) > NEAR


def explain(table: str, row: str, below: bool) -> str:
    """Why a row may differ from the paper's: the sentence of the longest name that it begins with.

    A table without a sentence of its own says so.

    Args:
        table: its label.
        row: the row's name.
        below: whether ours is the lower figure, which some sentences explain, and they alone.
    """
    for why in ([TABLES[table].why_below] if below else []) + [TABLES[table].why]:
        names = [name for name in why if row.startswith(name)]
        if names:
            return why[max(names, key=len)]
    return "No reason is known yet."


def exponent(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The slope of log y over log x by least squares; None for fewer than two points."""
    if len(x) < 2:
        return None
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
    spread = sum((v - mean_a) ** 2 for v in a)
    return sum((v - mean_a) * (w - mean_b) for v, w in zip(a, b, strict=True)) / spread


def tail(points: Sequence[Mapping[str, Any]], y: str, x: str = "n") -> float | None:
    """The exponent of a curve's last points: those of its largest three doublings."""
    known = [p for p in points if p.get(y)]
    if not known:
        return None
    last = known[-1][x]
    kept = [p for p in known if p[x] * 8 >= last]
    return exponent([p[x] for p in kept], [p[y] for p in kept])


def best_block(points: Sequence[Mapping[str, Any]]) -> tuple[int, tuple[float, float]]:
    """The fastest block size, and how many times as long the smallest and the largest take."""
    fastest = min(points, key=lambda p: p["seconds"])
    first, last = (points[i]["seconds"] / fastest["seconds"] for i in (0, -1))
    return fastest["block_size"], (first, last)


def read_results(folder: Path) -> tuple[list[Results], list[str]]:
    """Every scale that lies in a folder, or the one that it is of; and notes on what is left out.

    Smoke results are read only where they are asked for by name or stand alone.
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
    order = {"cpu": 0, "paper": 1, "smoke": 2}
    found = [_read_scale(mark) for mark in marks]
    found.sort(key=lambda r: (order.get(r.scale, 3), str(r.folder)))
    real = [results for results in found if not results.smoke]
    notes = [
        f"{results.folder.name} holds smoke results, which are left out (chacal report "
        f"{folder.name}/{results.folder.name} shows them)"
        for results in found
        if results.smoke and real
    ]
    return real or found, notes


def _read_scale(mark: Path) -> Results:
    scale = _read(mark).get("scale")
    tables: dict[str, dict[str, Any] | None] = {}
    for name in TABLES:
        file = mark.parent / "tables" / f"{name.replace(':', '-')}.json"
        content = _read(file) if file.is_file() else None
        if content is not None and content.get("scale") != scale:
            raise ValueError(
                f"{file} is of the scale {content.get('scale')!r} in a folder of {scale!r}; "
                f"expected one scale per folder"
            )
        missing = [field for field in FIELDS if content is not None and field not in content]
        if missing:
            raise ValueError(
                f"{file} has no {missing[0]}; expected a table of this version (the command that "
                f"made it writes it again: chacal reproduce {name})"
            )
        tables[name] = content
    return Results(str(scale), mark.parent, tables)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
