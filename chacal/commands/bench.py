"""`chacal bench`: what an operator costs, as a table and, if wanted, as JSON."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chacal.bench import decode, ops
from chacal.bench.timing import machine, use_threads
from chacal.commands.console import console, plain_table, progress, write_json

PASSES = {"forward": (False,), "both": (True,), "all": (False, True), "none": ()}
"""Whether the backward pass is part of it, for each --mode."""


def bench_operators(
    operators: Sequence[str],
    *,
    lengths: Sequence[int],
    heads: int,
    width: int,
    batch: int,
    rounds: int,
    threads: int,
    mode: str,
    memory: bool,
    baseline: bool,
    json_file: Path | None,
) -> None:
    """Time whole sequences; print a table, and write all figures with the machine."""
    operators = operators or ops.DEFAULT_OPERATORS
    use_threads(threads)
    rows: list[ops.Row] = []
    for backward in PASSES[mode]:
        rows += ops.measure(
            operators, lengths, heads=heads, width=width, batch=batch, backward=backward,
            rounds=rounds, baseline=baseline,
            report=lambda row: progress(f"n={row.n} {row.operator}: {row.seconds:.3f} s"),
        )  # fmt: skip
    out = console()
    if rows:
        out.print(
            f"h={heads}, d={width}, batch {batch}, float32, {threads} thread(s); time over "
            f"scaled_dot_product_attention's, medians of interleaved rounds"
        )
        table = plain_table(("n", "pass", "operator", "ms", "x sdpa", "us/token"), names=2)
        for row in rows:
            table.add_row(
                str(row.n),
                "forward+backward" if row.backward else "forward",
                row.operator,
                f"{1e3 * row.seconds:.1f}",
                "-" if row.ratio is None else f"{row.ratio:.2f}",
                f"{1e6 * row.per_token:.2f}",
            )
        out.print(table)
    peaks = []
    for n in lengths if memory else ():
        wanted = [text for text in operators if text != ops.MATERIALISED]
        measured = ops.measure_memory(wanted, n, heads=heads, width=width, threads=threads)
        for text, peak in measured.items():
            peaks.append({"operator": text, "n": n, "bytes": peak})
            out.print(f"{text} at n = {n}: peak {peak / 2**20:,.0f} MiB, both passes")
    if json_file:
        figures = {
            **_origin(threads), "heads": heads, "width": width, "batch": batch, "dtype": "float32",
            "rows": [dataclasses.asdict(row) for row in rows], "memory": peaks,
        }  # fmt: skip
        write_json(json_file, figures)


def bench_decoding(
    operators: Sequence[str],
    *,
    contexts: Sequence[int],
    heads: int,
    width: int,
    batch: int,
    rounds: int,
    threads: int,
    json_file: Path | None,
) -> None:
    """Time one token after a context; print a table, and write all figures with the machine."""
    use_threads(threads)
    rows = decode.measure(
        operators or decode.DEFAULT_OPERATORS, contexts, heads=heads, width=width, batch=batch,
        rounds=rounds,
        report=lambda row: progress(
            f"context {row.context} {row.operator}: {1e3 * row.seconds:.2f} ms"
        ),
    )  # fmt: skip
    out = console()
    out.print(
        f"one token, h={heads}, d={width}, batch {batch}, float32, {threads} thread(s); time over "
        f"SDPA's with the same cache machinery, medians of interleaved rounds"
    )
    table = plain_table(("context", "operator", "ms", "x sdpa", "cache MiB"), names=1)
    for row in rows:
        table.add_row(
            str(row.context),
            row.operator,
            f"{1e3 * row.seconds:.2f}",
            f"{row.ratio:.2f}",
            f"{row.kept / 2**20:.2f}",
        )
    out.print(table)
    if json_file:
        figures = {
            **_origin(threads), "heads": heads, "width": width, "batch": batch, "dtype": "float32",
            "tokens": decode.TOKENS, "rows": [dataclasses.asdict(row) for row in rows],
        }  # fmt: skip
        write_json(json_file, figures)


def _origin(threads: int) -> dict[str, Any]:
    """What figures came from."""
    return {"command": shlex.join(["chacal", *sys.argv[1:]]), "machine": machine(threads)}
