"""How long a table's models take over the whole test set: in one process, in turns, medians."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from chacal.bench.timing import interleave, machine
from chacal.experiments.cells import Cell, Table, run_id
from chacal.experiments.job import TEST_SEED
from chacal.experiments.snapshot import (
    cell_id,
    read_json,
    seconds_of,
    timed_as,
    timing_file,
    write_json,
)
from chacal.nn import Transformer
from chacal.training.evaluate import compute_scores, load_run

THREADS = 1


def time_cells(table: Table, out: Path, *, seed: int, rounds: int) -> None:
    """Time the evaluation of every cell that was trained; the figures go to the table's file.

    Making the examples and comparing answers is no part of it: what is timed is the model on the
    batches of the test set, the same for all. Nothing is timed again unless a cell is new; and
    then only if all are there, since times of two sessions cannot be compared (a clone has times
    and no weights).
    """
    folders = {cell_id(cell): out / "runs" / run_id(cell.with_seed(seed)) for cell in table.cells}
    ready = {
        cell_id(cell): cell
        for cell in table.cells
        if (folders[cell_id(cell)] / "best.safetensors").exists()
    }
    file = timing_file(table.name, out)
    times = read_json(file) if file.exists() else None
    known = {cell_id(c) for c in table.cells if seconds_of(c, times) is not None}
    if set(ready) <= known or not known <= set(ready):
        return
    torch.set_num_threads(THREADS)
    calls = {name: _pass(cell, folders[name]) for name, cell in ready.items()}
    timings = interleave(calls, rounds=rounds, warmup=1)
    some = next(iter(ready.values()))
    write_json(
        file,
        {
            "seconds": {name: timing.median for name, timing in timings.items()},
            "of": {name: timed_as(cell, seed) for name, cell in ready.items()},
            "seed": seed,
            "rounds": {name: list(timing.seconds) for name, timing in timings.items()},
            "examples": some.evaluation.examples,
            "batch_size": some.evaluation.batch_size,
            "machine": machine(THREADS),
        },
    )


def _pass(cell: Cell, folder: Path) -> Callable[[], None]:
    """One pass of a trained model over its test set."""
    model, _ = load_run(folder, operators=cell.evaluation.operators or None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return lambda: _scores(model.to(device), _batches(cell), device)


def _batches(cell: Cell) -> list[Tensor]:
    key = (repr(cell.run.task), cell.evaluation.examples, cell.evaluation.batch_size)
    if key not in _MADE:
        examples, size = cell.evaluation.examples, cell.evaluation.batch_size
        _MADE[key] = [
            torch.from_numpy(
                cell.run.task.batch("test", TEST_SEED, i, min(size, examples - i * size)).tokens
            )
            for i in range(-(-examples // size))
        ]
    return _MADE[key]


_MADE: dict[tuple[str, int, int], list[Tensor]] = {}
"""Test sets as tokens: made in the warm-up, and the same for all rows of a task."""


@torch.no_grad()
def _scores(model: Transformer, batches: list[Tensor], device: torch.device) -> None:
    for tokens in batches:
        compute_scores(model, tokens.to(device), False)
    if device.type == "cuda":
        torch.cuda.synchronize()
