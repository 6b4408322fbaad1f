"""The one place that runs tables: every job at most once, by whatever engine (`engines.py`).

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

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chacal._echo import shown
from chacal._files import read_json
from chacal._plain import member, to_plain
from chacal.bench.cost import against_block_size, against_length
from chacal.bench.timing import machine
from chacal.experiments.cells import Cell, Cost, Evaluation, run_id
from chacal.experiments.engines import Engine, Local, perform_here
from chacal.experiments.evaluation_times import time_cells
from chacal.experiments.files import write_json
from chacal.experiments.gather import choose, save_table
from chacal.experiments.job import Job, describe_error, is_done
from chacal.experiments.progress import Progress
from chacal.experiments.scales import Scale
from chacal.experiments.table import Table
from chacal.report.results import TableResult
from chacal.training.config import RunConfig
from chacal.training.distributed import start
from chacal.training.lock import alone
from chacal.training.runs import Interrupted
from chacal.training.torchrun import rank, under_torchrun


def run_table(
    table: Table[Any],
    scale: Scale,
    out: Path,
    *,
    seeds: Sequence[int],
    engine: Engine | None = None,
    only: str = "",
    times: bool = False,
    quiet: bool = False,
) -> TableResult | None:
    """Run what is left of a table, and return it as its file has it.

    Args:
        table: what to run.
        scale: how large, with data of the user's own.
        out: the folder of its scale.
        seeds: of every cell.
        engine: what performs the jobs; this process unless given.
        only: rows to run, by a part of their label; the others stay as they are.
        times: whether the evaluations of these rows are timed, as without `only` all are.
        quiet: show no progress.

    Returns:
        the table; None to a process of torchrun that only trains along.
    """
    cells, costs = chosen(table, scale, only)
    engine = engine or Local()

    def save() -> TableResult:
        return save_table(table, scale, out, seeds=seeds, only=only)

    with start("auto", fsdp=False):  # one process group for all runs
        todo = plan(cells, seeds)
        if rank():  # torchrun's others train along, in the same order
            for job in todo:
                perform_here(job, out / "runs" / job.id)
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
                for job, why in engine.perform(pending, out / "runs", show):
                    show.ended(job.id, why)
                    save()
                for cost in curves:
                    show.started(cost.id, cost.row)
                    with alone(out / "costs", wait=True):  # two at once would time each other
                        show.ended(cost.id, _measure_cost(cost, out))
                    save()
                if table.timed and (times or not only):
                    time_cells(
                        table.name, cells, out, seed=seeds[0], rounds=scale.rounds, tell=show.note
                    )
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
    if out.exists() and (not out.is_dir() or any(not _is_mark(path) for path in out.iterdir())):
        if mark.exists():  # another sweep marked it just now
            return claim(out, scale)
        raise ValueError(
            f"{out} holds other files; expected a new folder, or one of {shown(scale)}"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_json(mark, {"scale": scale})


def _is_mark(path: Path) -> bool:
    """Whether a file is the mark, or will be as soon as it is written."""
    return path.name == "scale.json" or path.name.startswith(".scale.json.")


def _measure_cost(cost: Cost, out: Path) -> str:
    import torch

    torch.set_num_threads(1)
    sizes: dict[str, Any] = {
        "heads": cost.heads, "width": cost.width, "rounds": cost.rounds,
        "memory_from": cost.memory_from,
    }  # fmt: skip
    file = out / "costs" / f"{cost.id}.json"
    failed = file.with_name(f"{cost.id}.failed.json")
    if file.exists():  # another sweep measured it meanwhile
        return ""
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
