"""A table as one JSON file, gathered from what lies in the folder: all that a report needs.

A table may be made in steps: some rows first (`--only`), a seed more later. So what is told is what
lies there, not what the last call asked for: each cell has every seed that is done, and the
command is the one that makes all of it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from chacal.experiments.cells import Cell, Table, label, run_id
from chacal.experiments.job import TEST_SEED, failure_file
from chacal.operators import parse_operator
from chacal.report.paper import TABLES
from chacal.tasks import Boxes, CountedBoxes
from chacal.training.runs import write_atomic


def table_file(name: str, out: Path) -> Path:
    """Where a table is: a colon is not for file names."""
    return out / "tables" / f"{name.replace(':', '-')}.json"


def timing_file(name: str, out: Path) -> Path:
    """Where the times of its evaluations are."""
    return out / "tables" / f"{name.replace(':', '-')}.timing.json"


def read_json(path: Path) -> Any:
    """A JSON file, or a ValueError that names it."""
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def write_json(path: Path, data: Any) -> None:
    """A JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(data, indent=1) + "\n").encode())


def cell_id(cell: Cell) -> str:
    """A cell's name in its table."""
    return f"{cell.row} | {cell.column}" if cell.column else cell.row


def timed_as(cell: Cell, seed: int) -> str:
    """What is timed of a cell: a run and a test set. A row's name may come to mean another."""
    return f"{run_id(cell.with_seed(seed))}/{cell.evaluation.id}"


def seconds_of(cell: Cell, times: Mapping[str, Any] | None) -> float | None:
    """How long a cell's evaluation takes; None if it was not timed as it is now."""
    name = cell_id(cell)
    if times is None or name not in times["seconds"]:
        return None
    if "of" in times and times["of"][name] != timed_as(cell, times["seed"]):
        return None
    return float(times["seconds"][name])


def save_snapshot(
    table: Table,
    out: Path,
    *,
    scale: str,
    seeds: Sequence[int],
    only: str = "",
    flags: Sequence[str] = (),
) -> dict[str, Any]:
    """Gather a table and write its file.

    Args:
        table: what it has.
        out: the folder of its scale.
        scale: the scale's name.
        seeds: that were asked for, of rows with `only` in "row, column".
        only: "" for all rows.
        flags: of the command, where its data are the user's own.
    """
    timing = timing_file(table.name, out)
    times = read_json(timing) if timing.exists() else None
    runs = _all_runs(table, out, seeds, only)
    cells = [_cell(cell, runs[cell_id(cell)], times) for cell in table.cells]
    told = sorted({int(seed) for cell in cells for seed in cell["runs"]}) or list(seeds)
    data = {
        "table": table.name,
        "title": TABLES[table.name].title,
        "scale": scale,
        "note": table.note,
        "seeds": told,
        "metrics": list(table.metrics),
        "command": command(table, scale, _counts(cells), flags),
        "machines": _machines(table, out, told),
        "timing": times and {k: times[k] for k in ("examples", "batch_size", "machine")},
        "cells": cells,
        "costs": [_cost(cost.id, cost.row, cost.column, out) for cost in table.costs],
    }
    write_json(table_file(table.name, out), data)
    return data


def _all_runs(
    table: Table, out: Path, seeds: Sequence[int], only: str
) -> dict[str, dict[str, dict[str, Any]]]:
    """Cell -> seed -> what came of it: seeds asked for now, those done, those that failed before.

    A seed that only an earlier call asked for, and that was never run, is no part of the table. Of
    a row that was never run, and is not asked for now, every seed is to be run.
    """
    file = table_file(table.name, out)
    try:
        before = read_json(file)["cells"] if file.exists() else []
    except (ValueError, KeyError):  # a file that is none is written anew
        before = []
    failed = {
        (cell["row"], cell["column"], seed)
        for cell in before
        for seed, run in cell["runs"].items()
        if run["state"] == "failed"
    }
    there = seeds_there(out)
    found = {}
    for cell in table.cells:
        asked = set(seeds) if only in label(cell.row, cell.column) else set()
        runs = {}
        for seed in sorted({*seeds, *there}):
            run = _run(cell, seed, out)
            tried = (cell.row, cell.column, str(seed)) in failed and run["state"] == "failed"
            if seed in asked or run["state"] == "done" or tried:
                runs[str(seed)] = run
        found[cell_id(cell)] = runs or {str(seed): {"state": "not run"} for seed in seeds}
    return found


def seeds_there(out: Path) -> set[int]:
    """Seeds of any run in a folder, by the names of the runs."""
    names = [path.name for path in (out / "runs").glob("*-seed*")]
    return {int(found[1]) for name in names if (found := re.search(r"-seed(\d+)-", name))}


def _counts(cells: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Row and column -> how many seeds it wants; 0 where nothing was run."""
    counts = {}
    for cell in cells:
        begun = any(run["state"] != "not run" for run in cell["runs"].values())
        count = max(map(int, cell["runs"])) + 1 if begun else 0
        counts[label(cell["row"], cell["column"])] = count
    return counts


def _machines(table: Table, out: Path, seeds: Sequence[int]) -> list[str]:
    """What the figures were made on, as their runs say: not necessarily where this is read."""
    runs = dict.fromkeys(run_id(c.with_seed(seed)) for c in table.cells for seed in seeds)
    files = [out / "runs" / run / "environment.json" for run in runs]
    told = [read_json(file) for file in files if file.exists()]
    curves = [out / "costs" / f"{cost.id}.json" for cost in table.costs]
    told += [read_json(file)["machine"] for file in curves if file.exists()]
    return list(
        dict.fromkeys(
            f"{m['cpu']}, {m['threads']} thread(s), torch {m['torch']}, Python {m['python']}"
            for m in told
        )
    )


def command(table: Table, scale: str, counts: Mapping[str, int], flags: Sequence[str] = ()) -> str:
    """What makes a table again whose rows have so many seeds; one call more for each other count.

    The first call makes all rows; the others those that have more seeds.
    """
    sizes = sorted({count for count in counts.values() if count}) or [table.seeds]
    calls = [(sizes[0], "")]
    for count in sizes[1:]:
        rows = [row for row, other in counts.items() if other == count]
        calls += [(count, part) for part in _shared(rows, list(counts))]
    texts = []
    for count, only in calls:
        words = ["chacal", "reproduce", table.name, "--scale", scale, *flags]
        words += ["--seeds", str(count)] if count != table.seeds else []
        texts.append(shlex.join([*words, *(["--only", only] if only else [])]))
    return " && ".join(texts)


def _shared(rows: Sequence[str], everything: Sequence[str]) -> list[str]:
    """A part of their names that these rows have and no other; their names, where there is none."""
    for part in rows[0].split(", "):
        if [row for row in everything if part in row] == list(rows):
            return [part]
    return list(rows)


def _cell(
    cell: Cell, runs: Mapping[str, Mapping[str, Any]], times: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "row": cell.row,
        "column": cell.column,
        "operators": list(cell.operators),
        "causal": cell.causal,
        "task": cell.run.task.describe(),
        "model": cell.run.model.describe(),
        "training": f"{cell.run.train.steps} steps of {cell.run.train.batch_size}",
        "floor": cell.run.task.floor,
        "paper": dict(cell.paper),
        "seconds": seconds_of(cell, times),
        "runs": dict(runs),
        "counts": _group_sizes(cell) if any(r["state"] == "done" for r in runs.values()) else {},
    }


def _group_sizes(cell: Cell) -> dict[str, int]:
    """Of how many test stories each figure of a breakdown is: a share of three says little."""
    task, test = cell.run.task, cell.evaluation
    if not test.divisor or not isinstance(task, Boxes):
        return {}
    return _count_stories(CountedBoxes.of(task, test.divisor), test.examples, test.batch_size)


@cache
def _count_stories(task: CountedBoxes, examples: int, size: int) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for i in range(-(-examples // size)):
        batch = task.batch("test", TEST_SEED, i, min(size, examples - i * size))
        counted = task.count(batch.targets, np.zeros(batch.targets.shape), batch)
        sizes.update({name: int(n) for name, (_, n) in counted.items() if "/" in name})
    return dict(sorted(sizes.items()))


def _run(cell: Cell, seed: int, out: Path) -> dict[str, Any]:
    """What came of a cell with one seed."""
    name = run_id(cell.with_seed(seed))
    folder = out / "runs" / name
    measured, failed = folder / f"{cell.evaluation.id}.json", failure_file(folder)
    if measured.exists() and (folder / "result.json").exists():
        result, record = read_json(folder / "result.json"), read_json(measured)
        metrics = {**record["metrics"], "steps": result["steps"]}
        done = {"state": "done", "run": name, "metrics": metrics}
        done["train_seconds"] = result["seconds"]
        if "look" in record:
            done["look"] = record["look"]
        return done
    if failed.exists():
        return {"state": "failed", "run": name, "why": read_json(failed)["why"]}
    return {"state": "not run"}


def _cost(name: str, row: str, column: str, out: Path) -> dict[str, Any]:
    file = out / "costs" / f"{name}.json"
    failed = file.with_name(f"{name}.failed.json")
    start = {"row": row, "column": column}
    if file.exists():
        record = read_json(file)
        causal = all(
            parse_operator(p["operator"]).causal
            for p in record["points"]
            if p["operator"] not in ("sdpa", "formed")
        )
        return {**start, "state": "done", "causal": causal, **record}
    if failed.exists():
        return {**start, "state": "failed", "why": read_json(failed)["why"]}
    return {**start, "state": "not run"}
