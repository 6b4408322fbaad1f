"""`chacal bench context`: one text over several processes, as a table."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from chacal.bench import context
from chacal.bench.timing import machine
from chacal.commands.console import console, plain_table, progress, write_json


def bench_context(
    operators: Sequence[str],
    *,
    processes: int,
    length: int,
    heads: int,
    width: int,
    batch: int,
    rounds: int,
    threads: int,
    models: Sequence[int],
    bandwidth: float,
    json_file: Path | None,
) -> None:
    """Time, model, print a table, and write all figures with the machine."""
    sizes = context.Sizes(length=length, heads=heads, width=width, batch=batch)
    rows = context.measure(
        operators or context.DEFAULT_OPERATORS,
        sizes,
        processes=processes,
        rounds=rounds,
        threads=threads,
        models=models,
        bandwidth=bandwidth,
        report=lambda row: progress(f"{row.operator}: {row.work:.0%} work"),
    )
    out = console()
    out.print(
        f"one text of {length} tokens, batch {batch}, h = {heads}, d = {width}, over {processes} "
        f"processes (gloo, {threads} thread(s) each); forward and backward, medians of {rounds} "
        f"interleaved rounds"
    )
    table = plain_table(
        ("operator", "ms", "x one process", "bytes per token", "waiting", "work",
         *(f"MODEL of {ranks}" for ranks, _ in rows[0].models))
    )  # fmt: skip
    for row in rows:
        shares = (f"{share:.0%}" for _, share in row.models)
        table.add_row(
            row.operator,
            f"{1e3 * row.seconds:.1f}",
            f"{row.ratio:.2f}",
            f"{row.bytes_per_token:,.0f}",
            f"{row.waiting:.0%}",
            f"{row.work:.0%}",
            *shares,
        )
    out.print(table)
    out.print(
        f"bytes: sent by all ranks, per token of the text. MODEL, not measured: the share of work "
        f"of so many processes with {length // processes} tokens each, 4 heads for each of them "
        f"(of {processes}: these heads), and {bandwidth:g} GB/s between two"
    )
    if json_file:
        figures = {
            "command": shlex.join(["chacal", *sys.argv[1:]]), "machine": machine(threads),
            **dataclasses.asdict(sizes), "dtype": "float32", "bandwidth_of_the_model": bandwidth,
            "rows": [
                {**dataclasses.asdict(row), "ratio": row.ratio, "work": row.work} for row in rows
            ],
        }  # fmt: skip
        write_json(json_file, figures)
