"""What several tables compute of their figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from chacal.experiments.cells import R
from chacal.experiments.table import Found
from chacal.report.results import CostPoint

T = TypeVar("T")


def mean_of(found: Sequence[Found[R]], metric: str) -> dict[R, float]:
    """Row -> the mean of a metric over its seeds, for the rows that have it."""
    return {of.row: of.figures[metric].mean for of in found if metric in of.figures}


def points(found: Sequence[Found[R]], y: str, x: str) -> dict[R, tuple[float, float]]:
    """Row -> the means of two metrics, for the rows that have both."""
    up, across = mean_of(found, y), mean_of(found, x)
    return {row: (up[row], across[row]) for row in up if row in across}


def frontier(points: Mapping[T, tuple[float, float]]) -> list[T]:
    """Rows (share right, seconds) that no other beats in one without losing in the other.

    They come from the fastest to the best.
    """
    best, rows = -1.0, []
    for row, (right, _) in sorted(points.items(), key=lambda p: (p[1][1], -p[1][0])):
        if right > best:
            best = right
            rows.append(row)
    return rows


DOUBLINGS = ("0", "1", "2-3", "4-7", "8-15", "16-31", "32-63")
"""Names of the groups that `by_doublings` makes of hops; whoever has more is in the last."""


def by_doublings(of: Found[R], metric: str, by: str, few: int = 1) -> dict[int, float]:
    """Place in `DOUBLINGS` -> the mean of a metric in that group, each question weighing the same.

    Args:
        of: a row with its figures by group; groups whose sizes are unknown weigh the same.
        metric: what is averaged.
        by: what the groups are numbers of, such as hops.
        few: questions that a group needs to have a figure, where sizes are known.
    """
    sizes = of.result.group_sizes(by)
    groups: dict[int, list[tuple[float, int]]] = {}
    for at, figure in of.result.broken_down(metric, by).items():
        place = min(int(at).bit_length(), len(DOUBLINGS) - 1)
        groups.setdefault(place, []).append((figure.mean, sizes.get(at, 1)))
    return {
        place: sum(mean * size for mean, size in group) / count
        for place, group in sorted(groups.items())
        if (count := sum(size for _, size in group)) >= (few if sizes else 1)
    }


def exponent(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The slope of log y over log x by least squares; None for fewer than two points."""
    if len(x) < 2:
        return None
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
    spread = sum((v - mean_a) ** 2 for v in a)
    return sum((v - mean_a) * (w - mean_b) for v, w in zip(a, b, strict=True)) / spread


def tail(points: Sequence[tuple[int, float | None]]) -> float | None:
    """The exponent of a curve's last points (n, y): those of its largest three doublings."""
    known = [(n, y) for n, y in points if y]
    kept = [(n, y) for n, y in known if n * 8 >= known[-1][0]]
    return exponent([n for n, _ in kept], [y for _, y in kept])


def best_block(points: Sequence[CostPoint]) -> tuple[int | None, tuple[float, float]]:
    """The fastest block size, and how many times as long the smallest and the largest take."""
    fastest = min(points, key=lambda p: p.seconds)
    first, last = (points[i].seconds / fastest.seconds for i in (0, -1))
    return fastest.block_size, (first, last)
