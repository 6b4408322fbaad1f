"""A table by its name: what is left of it is run, and what there is of it is returned."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from chacal._echo import shown
from chacal.experiments.engines import Engine
from chacal.experiments.gather import save_table
from chacal.experiments.scales import SCALES, Given
from chacal.experiments.sweep import chosen, claim, run_table
from chacal.experiments.tables import TABLES
from chacal.report.results import TableResult
from chacal.training.runs import is_full

MOST_SEEDS = 10_000
"""Every cell's run is planned for each of them before the first begins."""


def reproduce(
    name: str,
    *,
    scale: str,
    seeds: int | None = None,
    engine: Engine | None = None,
    out: Path,
    only: str = "",
    times: bool = False,
    run: bool = True,
    given: Given | None = None,
    quiet: bool = False,
) -> TableResult | None:
    """Run what is left of a table, and return it.

    Args:
        name: the table's label.
        scale: how large.
        seeds: how many; as many as the scale has unless given.
        engine: what runs the cells; this process, one after another, unless given.
        out: folder of the scale's results.
        only: rows to run, by a part of their label; the others stay as they are.
        times: whether the evaluations of these rows are timed, as without `only` all are.
        run: false to run nothing and write the table from what lies in the folder.
        given: data and models of the user's own, for the tables on text.
        quiet: show no progress.

    Returns:
        the table; None to a process of torchrun that only trains along.
    """
    if name not in TABLES:
        raise ValueError(f"table is {shown(name)}; expected one of {', '.join(TABLES)}")
    if scale not in SCALES:
        raise ValueError(f"scale is {shown(scale)}; expected one of {', '.join(SCALES)}")
    table, given = TABLES[name], given or Given()
    given.refuse_but(name, *table.given)
    sizes = dataclasses.replace(SCALES[scale], given=given)
    count = table.seeds(sizes) if seeds is None else seeds
    if not 1 <= count <= MOST_SEEDS:
        raise ValueError(f"seeds is {count}; expected at least 1 and at most {MOST_SEEDS}")
    try:
        if run:
            return run_table(
                table, sizes, out, seeds=range(count), engine=engine, only=only, times=times,
                quiet=quiet,
            )  # fmt: skip
        if not (out / "scale.json").is_file():
            raise ValueError(f"{out} holds no results; expected a folder of chacal reproduce")
        claim(out, sizes.name)
        chosen(table, sizes, only)
        return save_table(table, sizes, out, seeds=range(seeds or 0), only=only)
    except OSError as error:
        if not is_full(error):
            raise
        raise ValueError(
            f"{error.filename or out} cannot be written: {error.strerror}; all that was written "
            f"before is kept (make room, and the same command goes on from there)"
        ) from None
