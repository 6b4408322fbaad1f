"""The one place that runs tables: jobs one after another or side by side, each at most once.

What is done is what lies in the folder, and nothing else: a sweep that was stopped, in any way,
goes on when it is started again. A job that fails says why in a file and the others go on; it is
tried again the next time.

    OUT/scale.json                which scale the folder is of; others are refused
    OUT/runs/ID/                  a run folder, with evaluation-*.json beside result.json
    OUT/runs/ID.failed.json       why a run failed
    OUT/costs/ID.json             a curve of `bench/cost.py`
    OUT/tables/tab-boxes.json     the table as the report reads it (`gather.py`)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from chacal._echo import shown
from chacal._files import read_json
from chacal._plain import member, to_plain
from chacal.bench.cost import against_block_size, against_length
from chacal.bench.timing import machine
from chacal.experiments.cells import Cell, Cost, Evaluation, run_id
from chacal.experiments.evaluation_times import time_cells
from chacal.experiments.files import write_json
from chacal.experiments.gather import choose, save_table
from chacal.experiments.job import (
    Job,
    describe_error,
    failure_file,
    is_done,
    perform,
    record_failure,
)
from chacal.experiments.progress import Progress
from chacal.experiments.records import read_failure
from chacal.experiments.scales import Scale
from chacal.experiments.table import Table
from chacal.report.results import TableResult
from chacal.training.config import RunConfig
from chacal.training.distributed import LostProcess, start
from chacal.training.runs import Interrupted
from chacal.training.torchrun import rank, under_torchrun

GRACE = 300.0
"""Seconds that a stopped job has to finish its step and save."""


def run_table(
    table: Table[Any],
    scale: Scale,
    out: Path,
    *,
    seeds: Sequence[int],
    jobs: int = 1,
    only: str = "",
    quiet: bool = False,
) -> TableResult | None:
    """Run what is left of a table, and return it as its file has it.

    Args:
        table: what to run.
        scale: how large, with data of the user's own.
        out: the folder of its scale.
        seeds: of every cell.
        jobs: how many at once; with 1, in this process.
        only: rows to run, by a part of their label; the others stay as they are, and nothing is
            timed.
        quiet: show no progress.

    Returns:
        the table; None to a process of torchrun that only trains along.
    """
    cells, costs = chosen(table, scale, only)
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; expected at least 1")
    if jobs > 1 and under_torchrun():
        raise ValueError(f"jobs is {jobs} under torchrun; expected 1, whose processes share it")

    def save() -> TableResult:
        return save_table(table, scale, out, seeds=seeds, only=only)

    with start("auto", fsdp=False):  # one process group for all runs
        todo = plan(cells, seeds)
        if rank():  # torchrun's others train along, in the same order
            for job in todo:
                _perform_here(job, out / "runs" / job.id)
            return None
        claim(out, scale.name)
        many = under_torchrun()
        pending = [job for job in todo if many or not is_done(job, out / "runs" / job.id)]
        curves = [cost for cost in costs if not (out / "costs" / f"{cost.id}.json").exists()]
        save()
        done = len(todo) - len(pending) + len(costs) - len(curves)
        total = len(todo) + len(costs)
        ahead = [cost.id for cost in curves]
        with Progress(table.name, total, done, out / "runs", pending, ahead, quiet=quiet) as show:
            try:
                for job, why in _perform_all(pending, out / "runs", jobs, show):
                    show.ended(job.id, why)
                    save()
                for cost in curves:
                    show.started(cost.id, cost.row)
                    show.ended(cost.id, _measure_cost(cost, out))
                    save()
                if table.timed and not only:
                    show.note("timing the evaluations, in turns")
                    time_cells(table.name, cells, out, seed=seeds[0], rounds=scale.rounds)
            except (Interrupted, KeyboardInterrupt):
                save()
                raise Interrupted(
                    f"{table.name} is stopped with {show.done} of {total} cells done; the same "
                    f"command goes on from there"
                ) from None
        return save()


def chosen(table: Table[Any], scale: Scale, only: str) -> tuple[list[Cell[Any]], list[Cost]]:
    """The cells and curves that a part of a label means; a whole label means its own alone.

    What is measured of the same pretrained model belongs to it: a job throws such weights away.
    """
    cells, costs = table.cells(scale), table.costs(scale)
    labels = [cell.label for cell in cells] + [cost.label for cost in costs]
    named = set(choose(labels, only))
    if not named:
        raise ValueError(
            f"only is {shown(only)}; expected a part of one of the rows: {'; '.join(labels)}"
        )
    kept = [c for c in cells if c.label in named]
    tuned = [c.run for c in kept if c.run.model.pretrained is not None]
    return (
        [c for c in cells if c in kept or c.run in tuned],
        [c for c in costs if c.label in named],
    )


def plan(cells: Sequence[Cell[Any]], seeds: Sequence[int]) -> list[Job]:
    """Every run of some cells once, with all that is measured of it; seed by seed."""
    runs: dict[str, RunConfig] = {}
    asked: dict[str, list[Evaluation]] = {}
    for seed in seeds:
        for cell in cells:
            run = cell.with_seed(seed)
            name = run_id(run)
            runs[name] = run
            evaluations = asked.setdefault(name, [])
            if cell.evaluation not in evaluations:
                evaluations.append(cell.evaluation)
    return [Job(run=run, evaluations=tuple(asked[name])) for name, run in runs.items()]


def claim(out: Path, scale: str) -> None:
    """Mark a folder as of one scale; refuse one that is of another, or of something else."""
    mark = out / "scale.json"
    if mark.exists():
        there = member(read_json(mark), "scale", str, str(mark))
        if there != scale:
            raise ValueError(
                f"{out} holds results of the scale {shown(there)}; expected another folder for "
                f"{shown(scale)} (--out), so that they are never mixed"
            )
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"{out} holds other files; expected a new folder, or one of {shown(scale)}"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_json(mark, {"scale": scale})


def _perform_all(
    pending: Sequence[Job], runs: Path, jobs: int, show: Progress
) -> Iterator[tuple[Job, str]]:
    """Perform jobs; yields each with why it failed, or ""."""
    if jobs == 1:
        for job in pending:
            show.started(job.id)
            yield job, _perform_here(job, runs / job.id)
    else:
        with _terminable():
            yield from _perform_beside(pending, runs, jobs, show)


def _perform_here(job: Job, folder: Path) -> str:
    try:
        perform(job, folder)
    except (Interrupted, LostProcess):
        raise
    except Exception as error:  # whatever it is, the others go on
        why = describe_error(error)
        if not rank():
            record_failure(folder, why)
        return why
    return ""


def _perform_beside(
    pending: Sequence[Job], runs: Path, jobs: int, show: Progress
) -> Iterator[tuple[Job, str]]:
    waiting = list(pending)
    running: dict[subprocess.Popen[str], tuple[Job, IO[str]]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                job = waiting.pop(0)
                errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the job ends
                running[_start(job, runs / job.id, errors)] = (job, errors)
                show.started(job.id)
            time.sleep(0.1)
            for process in [p for p in running if p.poll() is not None]:
                job, errors = running.pop(process)
                with errors, _input(process):
                    why = _why(process.returncode, runs / job.id, errors)
                yield job, why
    finally:
        if running:
            show.note("stopping: the cells that run finish a step and save")
        for process in running:
            process.terminate()
        for process, (_, errors) in running.items():
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
            errors.close()
            _input(process).close()


def _start(job: Job, folder: Path, errors: IO[str]) -> subprocess.Popen[str]:
    """The job in a process of its own, one thread wide; Ctrl-C reaches it through us only."""
    one = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "chacal.experiments.job"],
        stdin=subprocess.PIPE, stdout=errors, stderr=errors, text=True,
        env={**os.environ, **one}, start_new_session=True,
    )  # fmt: skip
    asked = {"job": job.to_json(), "folder": str(folder), "command": sys.argv}
    _input(process).write(json.dumps(asked) + "\n")
    _input(process).flush()  # and left open: its end tells the job that we are gone
    return process


def _input(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdin is not None  # as `_start` asked for
    return process.stdin


def _why(code: int, folder: Path, errors: IO[str]) -> str:
    """Why a job's process failed; "" if it did not. One that died leaves its last words."""
    if code == 0:
        return ""
    if code == 130:
        raise Interrupted
    if code != 1 or not failure_file(folder).exists():
        errors.seek(0)
        said = errors.read().strip()[-300:]
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        record_failure(folder, f"its process ended with {how}" + (f": {said}" if said else ""))
    return read_failure(failure_file(folder))


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that children are stopped before we are."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure_cost(cost: Cost, out: Path) -> str:
    import torch

    torch.set_num_threads(1)
    sizes: dict[str, Any] = {
        "heads": cost.heads, "width": cost.width, "rounds": cost.rounds,
        "memory_from": cost.memory_from,
    }  # fmt: skip
    file = out / "costs" / f"{cost.id}.json"
    failed = file.with_name(f"{cost.id}.failed.json")
    try:
        if cost.blocks:
            points = against_block_size(cost.operators, cost.lengths[0], cost.blocks, **sizes)
            stopped = ""
        else:
            points, stopped = against_length(
                cost.operators, cost.lengths, budget=cost.budget, **sizes
            )
    except Exception as error:  # whatever it is, the others go on
        why = describe_error(error)
        write_json(failed, {"why": why})
        return why
    failed.unlink(missing_ok=True)
    record = {"cost": to_plain(cost), "points": points, "stopped": stopped, "machine": machine(1)}
    write_json(file, record)
    return ""
