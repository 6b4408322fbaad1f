"""A table as one JSON file, gathered from what lies in the folder: all that a report needs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chacal.experiments.cells import Cell, Table, run_id
from chacal.experiments.job import failure_file
from chacal.notation import parse_operator
from chacal.report.paper import TABLES
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


def save_snapshot(table: Table, out: Path, *, scale: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Gather a table and write its file."""
    timing = timing_file(table.name, out)
    times = read_json(timing) if timing.exists() else None
    data = {
        "table": table.name,
        "title": TABLES[table.name].title,
        "scale": scale,
        "note": table.note,
        "seeds": list(seeds),
        "metrics": list(table.metrics),
        "command": command(table.name, scale, seeds, table.seeds),
        "machines": _machines(table, out, seeds),
        "timing": times and {k: times[k] for k in ("examples", "batch_size", "machine")},
        "cells": [_cell(cell, out, seeds, times) for cell in table.cells],
        "costs": [_cost(cost.id, cost.row, cost.column, out) for cost in table.costs],
    }
    write_json(table_file(table.name, out), data)
    return data


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


def command(name: str, scale: str, seeds: Sequence[int], usual: int) -> str:
    """What makes the table again; as given, where it was given on the command line."""
    if len(sys.argv) > 1 and sys.argv[1] == "reproduce":
        return shlex.join(["chacal", *sys.argv[1:]])
    many = f" --seeds {len(seeds)}" if len(seeds) != usual else ""
    return f"chacal reproduce {name} --scale {scale}{many}"


def _cell(
    cell: Cell, out: Path, seeds: Sequence[int], times: dict[str, Any] | None
) -> dict[str, Any]:
    name = cell_id(cell)
    return {
        "row": cell.row,
        "column": cell.column,
        "operators": list(cell.operators),
        "causal": cell.causal,
        "task": cell.run.task.describe(),
        "model": cell.run.model.describe(),
        "training": f"{cell.run.train.steps} steps of {cell.run.train.batch_size}",
        "floor": getattr(cell.run.task, "floor", None),
        "paper": dict(cell.paper),
        "seconds": times["seconds"].get(name) if times else None,
        "runs": {str(seed): _run(cell, seed, out) for seed in seeds},
    }


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
