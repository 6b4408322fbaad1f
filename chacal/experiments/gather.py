"""A table as one value, gathered from what lies in its folder: all that a report needs.

A table may be made in steps: some rows first (`--only`), a seed more later. So what is told is what
lies there, not what the last call asked for: each cell has every seed that is done, and the
command is the one that makes all of it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from chacal._plain import to_plain
from chacal.experiments.cells import Cell, Cost, run_id
from chacal.experiments.evaluation_times import Times, read_times
from chacal.experiments.files import table_file, write_json
from chacal.experiments.job import TEST_SEED, failure_file
from chacal.experiments.records import (
    Look,
    read_curve,
    read_failure,
    read_machine,
    read_measured,
)
from chacal.experiments.scales import Scale
from chacal.experiments.table import Found, Table
from chacal.operators import parse_operator
from chacal.report.files import read_table
from chacal.report.results import (
    SMOKE,
    Breakdown,
    CellResult,
    CostResult,
    GroupSizes,
    RunResult,
    TableResult,
    Timing,
)
from chacal.tasks import Boxes, CountedBoxes, Variables
from chacal.tasks.assignments import hops_left
from chacal.tasks.base import group_of
from chacal.training.evaluate import override, setting

NOT_RUN = RunResult(state="not run", metrics={})

T = TypeVar("T")


def save_table(
    table: Table[Any],
    scale: Scale,
    out: Path,
    *,
    seeds: Sequence[int],
    only: str = "",
) -> TableResult:
    """Gather a table and write its file.

    Args:
        table: which.
        scale: how large, with data of the user's own.
        out: the folder of its scale.
        seeds: that are asked for now, of rows with `only` in their label; none, to tell what is
            there.
        only: "" for all rows.
    """
    result = gather(table, scale, out, seeds=seeds, only=only)
    write_json(table_file(table.name, out), to_plain(result))
    return result


def gather(
    table: Table[Any], scale: Scale, out: Path, *, seeds: Sequence[int], only: str = ""
) -> TableResult:
    """A table from what lies in a folder; arguments as of `save_table`."""
    cells, costs = table.cells(scale), table.costs(scale)
    times = read_times(table.name, out)
    told = _seeds_to_tell(cells, out, seeds)
    tried = _failed_before(table, out)
    named = set(choose([cell.label for cell in cells], only))
    found = []
    for cell in cells:
        asked = set(seeds) if cell.label in named else set()
        runs, looks = {}, []
        for seed in told:
            run, look = _run(cell, seed, out)
            known = (cell.label, str(seed)) in tried and run.state == "failed"
            if seed in asked or run.state == "done" or known:
                runs[str(seed)] = run
                looks += [look.mass] if look else []
        # of a row that was never run, and is not asked for now, every seed is to be run
        runs = runs or {str(seed): NOT_RUN for seed in seeds or range(table.seeds(scale))}
        found.append(Found(cell=cell, result=_cell(cell, runs, times), looks=tuple(looks)))
    return assemble(table, scale, found, [(cost, _cost(table, cost, out)) for cost in costs],
                    seeds=seeds, timing=times.timing if times else None,
                    machines=_machines(cells, costs, told, out))  # fmt: skip


def assemble(
    table: Table[Any],
    scale: Scale,
    found: Sequence[Found[Any]],
    costs: Sequence[tuple[Cost, CostResult]],
    *,
    seeds: Sequence[int],
    timing: Timing | None = None,
    machines: Iterable[str] = (),
) -> TableResult:
    """What a table tells of its figures; smoke figures say nothing, and differ from none."""
    smoke = scale.name == SMOKE
    if not smoke:
        found = [_explained(table, of) for of in found]
    results = [of.result for of in found]
    done = [(cost, result) for cost, result in costs if result.state == "done"]
    return TableResult(
        table=table.name,
        title=table.title,
        caption=table.caption,
        anchor=table.anchor,
        scale=scale.name,
        note=table.note(scale),
        seeds=tuple(sorted({int(seed) for cell in results for seed in cell.runs}) or seeds),
        metrics=table.metrics,
        command=command(table.name, scale, table.seeds(scale), results),
        machines=tuple(machines),
        timing=timing,
        cells=tuple(results),
        by_group=table.by_group,
        cost_columns=table.cost_columns,
        costs=tuple(result for _, result in costs),
        findings=() if smoke else tuple(table.findings(found)),
        points=tuple(table.point_plots(found)),
        bars=tuple(table.bar_plots(found)),
        lines=(*table.line_plots(found), *table.cost_plots(done)),
    )


def never_run(table: Table[Any], scale: Scale) -> TableResult:
    """A table of which nothing was run: the rows that the paper prints, with its figures."""
    cells = [
        CellResult(
            row=row.label, column="", operators=(), causal=None, task="", model="", training="",
            paper=table.figures_of(row), seconds=None, runs={"0": NOT_RUN}, sizes=(), difference="",
        )
        for row in table.paper
    ]  # fmt: skip
    return TableResult(
        table=table.name, title=table.title, caption=table.caption, anchor=table.anchor,
        scale=scale.name, note="", seeds=(), metrics=table.metrics,
        command=command(table.name, scale, table.seeds(scale), []), machines=(), timing=None,
        cells=tuple(cells), by_group=(), cost_columns=(), costs=(), findings=(), points=(), bars=(),
        lines=(),
    )  # fmt: skip


def command(name: str, scale: Scale, usual: int, cells: Sequence[CellResult]) -> str:
    """What makes a table again whose rows have so many seeds; one call more for each other count.

    The first call makes all rows; the others those that have more seeds.
    """
    counts = {
        cell.label: max(map(int, cell.runs)) + 1
        for cell in cells
        if any(run.state != "not run" for run in cell.runs.values())
    }
    sizes = sorted(set(counts.values())) or [usual]
    calls = [(sizes[0], "")]
    for size in sizes[1:]:
        rows = [row for row, other in counts.items() if other == size]
        calls += [(size, part) for part in shared_part(rows, [cell.label for cell in cells])]
    texts = []
    for size, only in calls:
        words = ["chacal", "reproduce", name, "--scale", scale.name, *scale.given.flags()]
        words += ["--seeds", str(size)] if size != usual else []
        texts.append(shlex.join([*words, *(["--only", only] if only else [])]))
    return " && ".join(texts)


def choose(labels: Sequence[str], only: str) -> list[str]:
    """The labels that a part of them means (`--only`), or one of several parts between "|".

    A label in whole means itself alone, and not also others that it is a part of.
    """
    named: set[str] = set()
    for part in only.split("|"):
        named |= {part} if part in labels else {label for label in labels if part in label}
    return [label for label in labels if label in named]


def shared_part(rows: Sequence[str], everything: Sequence[str]) -> list[str]:
    """The longest part that these names have and no other; the names, where there is none."""
    first = rows[0]
    for length in range(len(first), 2, -1):
        for start in range(len(first) - length + 1):
            part = first[start : start + length]
            if part == part.strip(" ,") and choose(everything, part) == list(rows):
                return [part]
    return list(rows)


def _seeds_to_tell(cells: Sequence[Cell[Any]], out: Path, seeds: Sequence[int]) -> list[int]:
    """Seeds asked for now, and all that any cell was run with: they are 0, 1, 2, ..."""

    def was_run(seed: int) -> bool:
        folders = [out / "runs" / run_id(cell.with_seed(seed)) for cell in cells]
        return any(path.exists() or failure_file(path).exists() for path in folders)

    first_missing = next(seed for seed in count() if not was_run(seed))
    return sorted({*seeds, *range(first_missing)})


def _failed_before(table: Table[Any], out: Path) -> set[tuple[str, str]]:
    """Labels and seeds that the table's file says failed; a file that is none is written anew."""
    file = table_file(table.name, out)
    try:
        before = read_table(file) if file.exists() else None
    except ValueError:
        before = None
    return {
        (cell.label, seed)
        for cell in (before.cells if before else ())
        for seed, run in cell.runs.items()
        if run.state == "failed"
    }


def _machines(
    cells: Sequence[Cell[Any]], costs: Sequence[Cost], seeds: Sequence[int], out: Path
) -> list[str]:
    """What the figures were made on, as their runs say: not necessarily where this is read."""
    runs = dict.fromkeys(run_id(cell.with_seed(seed)) for cell in cells for seed in seeds)
    files = [out / "runs" / run / "environment.json" for run in runs]
    told = [read_machine(file) for file in files if file.exists()]
    curves = [out / "costs" / f"{cost.id}.json" for cost in costs]
    told += [read_machine(file, "machine") for file in curves if file.exists()]
    return list(dict.fromkeys(told))


def _cell(cell: Cell[Any], runs: dict[str, RunResult], times: Times | None) -> CellResult:
    done = any(run.state == "done" for run in runs.values())
    return CellResult(
        row=cell.row.label,
        column=cell.column,
        operators=cell.operators,
        causal=cell.causal,
        task=cell.run.task.describe(),
        model=cell.run.model.describe(),
        training=f"{cell.run.train.steps} steps of {cell.run.train.batch_size}",
        paper=dict(cell.paper),
        seconds=times.of(cell) if times else None,
        runs=runs,
        sizes=_group_sizes(cell) if done else (),
        difference="",
    )


def _explained(table: Table[Any], of: Found[Any]) -> Found[Any]:
    """A cell with why it differs from the paper's, if it does."""
    below = of.result.differing(table.metrics).values()
    if not below:
        return of
    why = table.difference(of.row, all(below))
    return dataclasses.replace(of, result=dataclasses.replace(of.result, difference=why))


def _run(cell: Cell[Any], seed: int, out: Path) -> tuple[RunResult, Look | None]:
    """What came of a cell with one seed, and what was measured of its attention, if it was."""
    name = run_id(cell.with_seed(seed))
    folder = out / "runs" / name
    measured, failed = folder / f"{cell.evaluation.id}.json", failure_file(folder)
    if measured.exists() and (folder / "result.json").exists():
        found = read_measured(folder / "result.json", measured, cell.run.task.metric)
        metrics, breakdowns = by_groups(found.metrics)
        files = found.look.files if found.look else ()
        return (
            RunResult(
                state="done",
                run=name,
                metrics={**metrics, "steps": found.steps},
                breakdowns=breakdowns,
                train_seconds=found.seconds,
                maps=tuple(file for file in files if "attention" in file),
            ),
            found.look,
        )
    if failed.exists():
        return RunResult(state="failed", run=name, why=read_failure(failed), metrics={}), None
    return NOT_RUN, None


def by_groups(values: Mapping[str, T]) -> tuple[dict[str, T], tuple[Breakdown, ...]]:
    """A task's metrics: those of all examples, and the others by metric and kind of group."""
    whole: dict[str, T] = {}
    groups: dict[tuple[str, str], dict[int, Any]] = {}
    for name, value in values.items():
        group = group_of(name)
        if group is None:
            whole[name] = value
        else:
            groups.setdefault((group.metric, group.by), {})[group.at] = value
    breakdowns = tuple(
        Breakdown(metric=metric, by=by, at=tuple(found), values=tuple(found.values()))
        for (metric, by), found in groups.items()
    )
    return whole, breakdowns


def _group_sizes(cell: Cell[Any]) -> tuple[GroupSizes, ...]:
    task, test = cell.run.task, cell.evaluation
    if test.divisor and isinstance(task, Boxes):
        return _count_stories(CountedBoxes.of(task, test.divisor), test.examples, test.batch_size)
    if isinstance(task, Variables):
        given = override(task, dict(setting(text) for text in test.settings))
        assert isinstance(given, Variables)
        return _count_questions(given, test.examples, test.batch_size)
    return ()


@cache
def _count_questions(task: Variables, examples: int, size: int) -> tuple[GroupSizes, ...]:
    """Questions by their hops, which need no tokenizer."""
    sizes: Counter[int] = Counter()
    for i in range(-(-examples // size)):
        for world in task.worlds("test", TEST_SEED, i, min(size, examples - i * size)):
            sizes.update(hops_left(world, task.told))
    at = tuple(sorted(sizes))
    return (GroupSizes(by="hops", at=at, sizes=tuple(sizes[hops] for hops in at)),)


@cache
def _count_stories(task: CountedBoxes, examples: int, size: int) -> tuple[GroupSizes, ...]:
    sizes: Counter[str] = Counter()
    for i in range(-(-examples // size)):
        batch = task.batch("test", TEST_SEED, i, min(size, examples - i * size))
        counted = task.count(batch.targets, np.zeros(batch.targets.shape), batch)
        sizes.update({name: int(n) for name, (_, n) in counted.items()})
    _, groups = by_groups(dict(sorted(sizes.items())))
    return tuple(
        GroupSizes(by=group.by, at=group.at, sizes=tuple(int(n) for n in group.values))
        for group in groups
    )


def _cost(table: Table[Any], cost: Cost, out: Path) -> CostResult:
    file = out / "costs" / f"{cost.id}.json"
    failed = file.with_name(f"{cost.id}.failed.json")
    empty = CostResult(
        row=cost.row, column=cost.column, state="not run", causal=None, points=(), stopped="",
        why="", texts=(),
    )  # fmt: skip
    if file.exists():
        points, stopped = read_curve(file)
        causal = all(
            parse_operator(p.operator).causal
            for p in points
            if p.operator not in ("sdpa", "formed")
        )
        made = dataclasses.replace(
            empty, state="done", causal=causal, points=points, stopped=stopped
        )
        return dataclasses.replace(made, texts=tuple(table.cost_texts(cost, made)))
    if failed.exists():
        return dataclasses.replace(empty, state="failed", why=read_failure(failed))
    return empty
