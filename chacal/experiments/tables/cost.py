"""fig:cost: time and peak memory against n, and against block size at fixed n."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chacal.experiments.cells import Cost, Row
from chacal.experiments.scales import Scale
from chacal.experiments.table import Table
from chacal.experiments.tables._arithmetic import best_block, tail
from chacal.report.drawings import Line, LinePlot, Panel
from chacal.report.results import CostPoint, CostResult

OPERATORS = {
    "SDPA": "sdpa",
    "Exact ChaCAL": "chacal",
    "ChaCAL with A formed": "formed",
    "Block-ChaCAL n//3": "block/3,values=rows",
    "Block-ChaCAL n//8": "block/8,values=rows",
    "Pooled resolvent": "pooled",
    "Window resolvent": "window@64",
    "Routed resolvent": "routed",
    "Routed resolvent, 3 routes, 3 parts, bound": "routed,routes=3,parts=3,score=bound",
    "Pattern of powers": "pattern,offsets=powers",
    "Pattern of squares": "pattern,offsets=squares",
    "Local window": "local@64",
    "BigBird": "bigbird@64",
}
"""Against n."""

FAMILIES = {"Block-ChaCAL": "block@{},values=rows", "Pooled resolvent": "pooled@{},near=0"}
"""Against the block size."""

SLOWER = 1.1
"""How many times as long both ends of a curve must take, for a U and not for chance."""

COMPARED_AT = 4096


class CostTable(Table[Row]):
    """fig:cost."""

    name = "fig:cost"
    title = "Time and memory against n, and against the block size"
    place = 8
    cost_columns = (
        "time grows as", "memory grows as", "largest n", "time there (s)",
        f"over SDPA's at {COMPARED_AT:,}", "fastest block size m*", "the curve",
    )  # fmt: skip

    def costs(self, scale: Scale) -> Sequence[Cost]:
        """Every operator against n, and the two that have blocks against their size."""
        # below a few MiB a peak is the allocator's
        memory_from = min(1024, scale.lengths[-1])

        def cost(row: str, column: str, text: str, lengths: tuple[int, ...],
                 blocks: tuple[int, ...] = ()) -> Cost:  # fmt: skip
            return Cost(
                row=row, column=column, operators=text, lengths=lengths, blocks=blocks,
                rounds=scale.rounds, budget=scale.budget, memory_from=memory_from,
            )  # fmt: skip

        curves = [cost(row, "n", text, scale.lengths) for row, text in OPERATORS.items()]
        for n in scale.block_lengths:
            sizes = tuple(2**i for i in range(2, n.bit_length()))
            for row, text in FAMILIES.items():
                curves.append(cost(f"{row}, n={n}", "block size", text, (n,), sizes))
        return curves

    def seeds(self, scale: Scale) -> int:
        """Nothing here has one."""
        return 1

    def note(self, scale: Scale) -> str:
        """How it is measured."""
        return (
            f"4 heads of width 64, one sequence, float32, one thread, medians of {scale.rounds} "
            f"rounds in turns with SDPA; a curve ends where a point would take {scale.budget:g} s"
        )

    def cost_texts(self, cost: Cost, result: CostResult) -> list[str]:
        """How a curve grows, or which block size is the fastest."""
        points = result.points
        texts = ["–"] * len(self.cost_columns)
        if cost.blocks:
            size, ends = best_block(points)
            texts[5] = f"{size}"
            shape = "a U" if min(ends) >= SLOWER else "no U"
            texts[6] = f"{shape}: {ends[0]:.2f} and {ends[1]:.2f} times as long at the ends"
        else:
            texts[0] = _power(tail([(p.n, p.seconds) for p in points]))
            texts[1] = _power(tail([(p.n, p.bytes) for p in points]))
            texts[3] = f"{points[-1].seconds:.4f}"
            at = [p.ratio for p in points if p.n == COMPARED_AT and p.ratio]
            texts[4] = f"{at[0]:.2f}" if at else "–"
            texts[6] = result.stopped and f"ends: {result.stopped}"
        texts[2] = f"{points[-1].n:,}"
        return texts

    def cost_plots(self, found: Sequence[tuple[Cost, CostResult]]) -> list[LinePlot]:
        """Time and memory against n, time against block size."""
        against_n = [result for cost, result in found if not cost.blocks]
        against_blocks = [result for cost, result in found if cost.blocks]
        plots = [
            _plot("n seconds", "Time of a forward pass against n.", against_n, "n", "seconds",
                  lambda p: (p.n, p.seconds)),
            _plot("n bytes", "Peak memory of forward and backward against n.", against_n, "n",
                  "MiB", lambda p: (p.n, p.bytes and p.bytes / 2**20)),
            _plot("blocks", "Time of a forward pass against the block size, at fixed n.",
                  against_blocks, "block size", "seconds", lambda p: (p.block_size, p.seconds)),
        ]  # fmt: skip
        return [plot for plot in plots if plot is not None]


def _plot(
    name: str,
    text: str,
    curves: Sequence[CostResult],
    across: str,
    up: str,
    point: Callable[[CostPoint], tuple[int | None, float | None]],
) -> LinePlot | None:
    lines = []
    for curve in curves:
        known = [(x, y) for x, y in map(point, curve.points) if x and y]
        if known:
            x, y = zip(*known, strict=True)
            lines.append(Line(name=curve.row, x=x, y=y))
    if not lines:
        return None
    return LinePlot(
        name=name, text=text, up=up, panels=(Panel(across=across, lines=tuple(lines)),),
        percent=False, log_x=True, log_y=True, height=5.2,
    )  # fmt: skip


def _power(slope: float | None) -> str:
    return "–" if slope is None else f"n^{slope:.2f}"


TABLE = CostTable()
