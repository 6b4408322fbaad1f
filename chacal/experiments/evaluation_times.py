"""How long a table's models take over the whole test set: in one process, in turns, medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chacal._files import read_json
from chacal._plain import member
from chacal.bench.timing import interleave, machine
from chacal.experiments.cells import Cell, run_id
from chacal.experiments.files import timing_file, write_json
from chacal.experiments.job import TEST_SEED
from chacal.nn import Transformer
from chacal.report.results import Timing
from chacal.training.display import clock
from chacal.training.evaluate import compute_scores, load_run, override, setting

THREADS = 1


@dataclass(frozen=True)
class Times:
    """What was timed: seconds by cell, and the run and test set that each was of.

    A cell's name may come to mean another run; its time is then not known.
    """

    timing: Timing
    seed: int
    seconds: Mapping[str, float]
    of_runs: Mapping[str, str] | None

    def of(self, cell: Cell[Any]) -> float | None:
        """How long a cell's evaluation takes; None if it was not timed as it is now."""
        name = cell_id(cell)
        if name not in self.seconds:
            return None
        if self.of_runs is not None and self.of_runs[name] != timed_as(cell, self.seed):
            return None
        return float(self.seconds[name])


def read_times(name: str, out: Path) -> Times | None:
    """The times of a table's evaluations, where they were taken."""
    file = timing_file(name, out)
    if not file.exists():
        return None
    data = read_json(file)

    def told(name: str, hint: Any) -> Any:
        return member(data, name, hint, str(file))

    timing = Timing(
        examples=told("examples", int),
        batch_size=told("batch_size", int),
        processor=member(told("machine", dict[str, Any]), "cpu", str, f"{file}: machine"),
    )
    seconds = told("seconds", dict[str, float])
    of = told("of", dict[str, str]) if "of" in data else None
    if of is not None and seconds.keys() - of.keys():
        raise ValueError(f"{file}: of lacks cells that seconds has; expected the run of each")
    return Times(timing, told("seed", int), seconds, of)


def cell_id(cell: Cell[Any]) -> str:
    """A cell's name in the file of times."""
    return f"{cell.row.label} | {cell.column}" if cell.column else cell.row.label


def timed_as(cell: Cell[Any], seed: int) -> str:
    """What is timed of a cell: a run and a test set."""
    return f"{run_id(cell.with_seed(seed))}/{cell.evaluation.id}"


def time_cells(
    name: str,
    cells: Sequence[Cell[Any]],
    out: Path,
    *,
    seed: int,
    rounds: int,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Time the evaluation of every cell that was trained; the figures go to the table's file.

    `tell` hears how far it is, a sentence a round.

    Making the examples and comparing answers is no part of it: what is timed is the model on the
    batches of the test set, the same for all. Nothing is timed again unless a cell is new; and
    then only if all are there, since times of two sessions cannot be compared (a clone has times
    and no weights).
    """
    folders = {cell_id(cell): out / "runs" / run_id(cell.with_seed(seed)) for cell in cells}
    ready = {
        cell_id(cell): cell
        for cell in cells
        if (folders[cell_id(cell)] / "best.safetensors").exists()
    }
    times = read_times(name, out)
    known = {cell_id(cell) for cell in cells if times and times.of(cell) is not None}
    if set(ready) <= known or not known <= set(ready):
        return
    torch.set_num_threads(THREADS)
    calls = {name: _pass(cell, folders[name]) for name, cell in ready.items()}
    tell(f"timing {len(calls)} evaluations, in turns, {rounds} times after one to warm up")
    begun = time.monotonic()

    def tell_round(done: int) -> None:
        left = (time.monotonic() - begun) / (done + 1) * (rounds - done)
        tell(f"timed {done} of {rounds} times, about {clock(left)} to go")

    timings = interleave(calls, rounds=rounds, warmup=1, tell_round=tell_round)
    tests = [cell.evaluation for cell in ready.values()]
    write_json(
        timing_file(name, out),
        {
            "seconds": {name: timing.median for name, timing in timings.items()},
            "of": {name: timed_as(cell, seed) for name, cell in ready.items()},
            "seed": seed,
            "rounds": {name: list(timing.seconds) for name, timing in timings.items()},
            "examples": max(test.examples for test in tests),
            "batch_size": max(test.batch_size for test in tests),
            "machine": machine(THREADS),
        },
    )


def _pass(cell: Cell[Any], folder: Path) -> Callable[[], None]:
    """One pass of a trained model over its test set."""
    model, _ = load_run(
        folder,
        operators=cell.evaluation.operators or None,
        qk_norm=cell.evaluation.qk_norm,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return lambda: _scores(model.to(device), _batches(cell), device)


def _batches(cell: Cell[Any]) -> list[Tensor]:
    task = override(cell.run.task, dict(map(setting, cell.evaluation.settings)))
    key = (repr(task), cell.evaluation.examples, cell.evaluation.batch_size)
    if key not in _MADE:
        examples, size = cell.evaluation.examples, cell.evaluation.batch_size
        _MADE[key] = [
            torch.from_numpy(
                task.batch("test", TEST_SEED, i, min(size, examples - i * size)).tokens
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
