"""Curves of time and peak memory: an operator against n, or a family against its block size.

A curve ends where its next point would take longer than a budget, as judged by its last two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chacal.bench.ops import (
    BASELINE,
    MATERIALISED,
    MATERIALISED_LIMIT,
    measure,
    measure_memory,
)

BASELINE_LIMIT = 4096
"""The longest n at which SDPA, which is quadratic, is timed in turns with every point."""

Point = dict[str, Any]


def against_length(
    text: str,
    lengths: Sequence[int],
    *,
    heads: int,
    width: int,
    rounds: int,
    budget: float,
    memory_from: int,
    report: Callable[[Point], None] = lambda point: None,
) -> tuple[list[Point], str]:
    """Points of an operator at growing n, and why there are no more of them ("" if all)."""
    points: list[Point] = []
    for n in lengths:
        if text == MATERIALISED and n > MATERIALISED_LIMIT:
            return points, f"n x n matrices are formed up to n = {MATERIALISED_LIMIT:,} only"
        expected = (rounds + 1) * _expect(points, n)
        if expected > budget:
            return points, f"n = {n:,} would take about {expected:,.0f} s of {budget:g}"
        points.append(_point(text, n, None, heads, width, rounds, memory_from))
        report(points[-1])
    return points, ""


def against_block_size(
    family: str,
    n: int,
    sizes: Sequence[int],
    *,
    heads: int,
    width: int,
    rounds: int,
    memory_from: int,
    report: Callable[[Point], None] = lambda point: None,
) -> list[Point]:
    """Points of a family such as "block@{}" at one n and growing block sizes."""
    points = []
    for size in sizes:
        text = family.format(size)
        points.append(_point(text, n, size, heads, width, rounds, memory_from))
        report(points[-1])
    return points


def _point(
    text: str, n: int, size: int | None, heads: int, width: int, rounds: int, memory_from: int
) -> Point:
    alone = text == BASELINE
    rows = measure(
        [] if alone else [text], [n], heads=heads, width=width, rounds=rounds,
        baseline=alone or n <= BASELINE_LIMIT,
    )  # fmt: skip
    row = rows[-1]
    peak = None
    if n >= memory_from:
        peak = measure_memory([text], n, heads=heads, width=width)[text]
    return {
        "operator": text, "n": n, "block_size": size, "seconds": row.seconds, "ratio": row.ratio,
        "bytes": peak,
    }  # fmt: skip


def _expect(points: list[Point], n: int) -> float:
    """Seconds at n if the curve goes on as it did; as a square where it has one point."""
    if not points:
        return 0.0
    last = points[-1]
    grown = n / last["n"]
    if len(points) == 1:
        return float(last["seconds"] * grown**2)
    before = points[-2]
    per_step = max(1.0, last["seconds"] / before["seconds"])
    return float(last["seconds"] * max(grown, per_step))
