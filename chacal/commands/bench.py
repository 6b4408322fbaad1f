"""`chacal bench`: what an operator costs, as a table and, if wanted, as JSON."""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from chacal.bench import decode, kernels, ops, page
from chacal.bench.timing import Timed, machine, processor, repeat
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
    runs: int,
    threads: int,
    mode: str,
    memory: bool,
    baseline: bool,
    budget: float,
    growth: bool,
    clock: str,
    device: str,
    dtype: str,
    json_file: Path | None,
) -> None:
    """Time whole sequences; print a table, and write all figures with the machine."""
    operators = operators or ops.DEFAULT_OPERATORS
    rows: list[ops.Row] = []
    for backward in PASSES[mode]:
        one_run = partial(
            ops.measure, operators, lengths, heads=heads, width=width, batch=batch,
            backward=backward, rounds=rounds, baseline=baseline, budget=budget, growth=growth,
            clock=clock, device=device, dtype=dtype, tell=progress,
        )  # fmt: skip
        rows += repeat(
            one_run, runs=runs, threads=threads,
            report=lambda run, row: progress(
                f"run {run}: n={row.n} {row.operator}: {row.seconds:.3f} s"
            ),
        )  # fmt: skip
    out = console()
    if rows:
        out.print(
            f"h={heads}, d={width}, batch {batch}, {dtype}, {_where(device, threads)}\n"
            f"x sdpa: time over scaled_dot_product_attention's; {_medians(runs, rounds, clock)}"
        )
        if growth:
            out.print(
                f"growth: time per token over that at n = {min(lengths)}, exponent of the time"
            )
        columns = ("n", "pass", "operator", "ms", *_ratio_columns(runs), "us/token")
        columns += ("growth", "exponent") if growth else ()
        table = plain_table(columns, names=2)
        for row in rows:
            table.add_row(
                str(row.n),
                _pass(row.backward),
                row.operator,
                f"{1e3 * row.seconds:.1f}",
                *_ratio_cells(row, runs),
                f"{1e6 * row.per_token:.2f}",
                *(_growth_cells(row, row.n / min(lengths)) if growth else ()),
            )
        out.print(table)
    timed = {(row.n, row.backward) for row in rows if row.operator == ops.BASELINE}
    missing = sorted({(row.n, row.backward) for row in rows} - timed) if baseline else []
    for n, backward in missing:
        out.print(
            f"sdpa at n = {n}, {_pass(backward)}: left out, as its {rounds} rounds would take "
            f"longer than the {budget:g} s of --budget"
        )
    peaks, backward = [], mode != "forward"
    for n in lengths if memory else ():
        wanted = [text for text in operators if text not in (ops.MATERIALISED, ops.LOOKS)]
        measured = ops.measure_memory(
            wanted, n, heads=heads, width=width, backward=backward, threads=threads, device=device,
            dtype=dtype,
        )  # fmt: skip
        whole = ops.whole_tensors(n, heads, width, backward, dtype)
        for text, peak in measured.items():
            peaks.append(
                {"operator": text, "n": n, "backward": backward, "bytes": peak, "tensors": whole}
            )
            passes = "both passes" if backward else "forward"
            tensors = "q, k, v, Y and their gradients" if backward else "q, k, v and Y"
            out.print(
                f"{text} at n = {n}: peak {peak / 2**20:,.0f} MiB, {passes}; "
                f"{whole / 2**20:,.0f} of it are {tensors}"
            )
    if json_file:
        figures = {
            **_origin(threads, runs, device),
            "heads": heads, "width": width, "batch": batch, "dtype": dtype, "clock": clock,
            "rows": [{**_figures(row), "per_token": row.per_token} for row in rows],
            "left_out": [{"operator": ops.BASELINE, "n": n, "backward": b} for n, b in missing],
            "memory": peaks,
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
    runs: int,
    threads: int,
    growth: bool,
    clock: str,
    device: str,
    dtype: str,
    json_file: Path | None,
) -> None:
    """Time one token after a context; print a table, and write all figures with the machine."""
    one_run = partial(
        decode.measure, operators or decode.DEFAULT_OPERATORS, contexts, heads=heads, width=width,
        batch=batch, rounds=rounds, growth=growth, clock=clock, device=device, dtype=dtype,
    )  # fmt: skip
    rows = repeat(
        one_run, runs=runs, threads=threads,
        report=lambda run, row: progress(
            f"run {run}: context {row.context} {row.operator}: {1e3 * row.seconds:.2f} ms"
        ),
    )  # fmt: skip
    out = console()
    out.print(
        f"one token, h={heads}, d={width}, batch {batch}, {dtype}, {_where(device, threads)}\n"
        f"x sdpa: time over SDPA's with the same cache machinery; {_medians(runs, rounds, clock)}"
    )
    if growth:
        out.print(f"growth: time over that after a context of {min(contexts)}")
    out.print("read: the context at once, timed once")
    columns = ("context", "operator", "ms", *_ratio_columns(runs), "cache MiB", "read, s")
    columns += ("growth",) if growth else ()
    table = plain_table(columns, names=1)
    for row in rows:
        table.add_row(
            str(row.context),
            row.operator,
            f"{1e3 * row.seconds:.2f}",
            *_ratio_cells(row, runs),
            f"{row.kept / 2**20:.2f}",
            "-" if row.reading is None else f"{row.reading:.2f}",
            *([f"{row.growth:.2f}"] if growth else []),
        )
    out.print(table)
    if json_file:
        figures = {
            **_origin(threads, runs, device),
            "heads": heads, "width": width, "batch": batch, "dtype": dtype, "clock": clock,
            "tokens": decode.TOKENS, "rows": [_figures(row) for row in rows],
        }  # fmt: skip
        write_json(json_file, figures)


def bench_kernels(
    *,
    target: str,
    dtype: str,
    widths: tuple[int, ...],
    length: int,
    heads: int,
    batch: int,
    json_file: Path | None,
) -> None:
    """Compile the kernels for a card; print what the binaries tell, and counts."""
    lines = []
    for line in kernels.compile_table(target, dtype, widths):
        progress(f"{line.kernel}, width {line.width}: compiled")
        lines.append(line)
    out = console()
    out.print(f"binaries for {target}, {dtype}; nothing ran, and nothing is timed")
    table = plain_table(
        ("kernel", "d", "tile", "warps", "stages", "registers", "spilled B", "shared B",
         "programs per multiprocessor")
    )  # fmt: skip
    for line in lines:
        config = line.config
        figures = (
            line.width, config.tile, config.warps, config.stages, line.registers, line.spilled,
            line.shared, line.programs,
        )  # fmt: skip
        table.add_row(line.kernel, *(f"{figure:,}" for figure in figures))
    out.print(table)
    counted = []
    for width in widths:
        rows = kernels.against_flash(target, dtype, width, n=length, heads=heads, batch=batch)
        counted += [{"width": width, **dataclasses.asdict(row)} for row in rows]
    out.print(
        f"\nexact ChaCAL over flash attention, counted, n = {length}, h = {heads}, batch {batch}\n"
        "work: tensor-core products; memory: bytes if each tensor goes there once; cache: bytes "
        "from the cache\nMODEL, not measured: times of both at one share of the peak of a card, "
        f"{kernels.card_name(target)}"
    )
    table = plain_table(("pass", "d", "launches", "work", "memory", "cache", "MODEL of time"))
    for row in counted:
        ratios = (f"{row[name]:.2f}" for name in ("work", "memory", "cache", "model"))
        table.add_row(row["name"], str(row["width"]), str(row["launches"]), *ratios)
    out.print(table)
    if json_file:
        figures_of = {
            "command": shlex.join(["chacal", *sys.argv[1:]]), "target": target, "dtype": dtype,
            "n": length, "heads": heads, "batch": batch, "measured": False,
            "binaries": [dataclasses.asdict(line) for line in lines], "counted": counted,
        }  # fmt: skip
        write_json(json_file, figures_of)


def _origin(threads: int, runs: int, device: str = "cpu") -> dict[str, Any]:
    """What figures came from."""
    command = shlex.join(["chacal", *sys.argv[1:]])
    return {"command": command, "machine": machine(threads, device), "runs": runs}


def _where(device: str, threads: int) -> str:
    """What figures were measured on, for people."""
    if device == "cuda":
        return str(machine(threads, device)["gpu"])
    return f"{threads} thread(s) of {processor()}; exact ChaCAL {machine(threads)['exact']}"


def _figures(row: Timed) -> dict[str, Any]:
    return {**dataclasses.asdict(row), "ratio": row.ratio, "growth": row.growth}


def _pass(backward: bool) -> str:
    return "forward+backward" if backward else "forward"


def _growth_cells(row: Timed, longer: float) -> tuple[str, str]:
    """Time per token over the shortest's, and the exponent of the whole time."""
    if row.growth is None or longer == 1:
        return ("-", "-") if row.growth is None else (f"{row.growth:.2f}", "-")
    return f"{row.growth:.2f}", f"{1 + math.log(row.growth) / math.log(longer):.2f}"


def _medians(runs: int, rounds: int, clock: str) -> str:
    once = f"medians of {rounds} interleaved rounds" + ", CPU time" * (clock == "cpu")
    return once if runs == 1 else f"{once}; {runs} runs, median and range"


def _ratio_columns(runs: int) -> tuple[str, ...]:
    return ("x sdpa",) if runs == 1 else ("x sdpa", "range")


def _ratio_cells(row: Timed, runs: int) -> tuple[str, ...]:
    if row.ratio is None:
        return ("-",) * len(_ratio_columns(runs))
    cells = (f"{row.ratio:.2f}", f"{min(row.ratios):.2f} to {max(row.ratios):.2f}")
    return cells[: len(_ratio_columns(runs))]


def bench_page(*, pages: Sequence[int], rounds: int, json_file: Path | None) -> None:
    """Time the page's answers; print a table, and write all figures with the machine."""
    table = plain_table(["pages", "answers", "median, ms", "slowest, ms"], "from sentence to boxes")
    found = [page.time_page(count, rounds) for count in pages]
    for times in found:
        row = (times.pages, times.answers, 1000 * times.median, 1000 * times.slowest)
        table.add_row(*(f"{value:.0f}" for value in row))
    console().print(table)
    if json_file is not None:
        rows = [dataclasses.asdict(times) for times in found]
        write_json(json_file, {**_origin(1, 1), "rows": rows})
