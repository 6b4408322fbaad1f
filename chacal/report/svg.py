"""Plots as SVG that stands in a page and takes its colours, light or dark.

matplotlib draws with two colours that nothing else has; they are then named `currentColor` and
`var(--grid)`. Text is drawn as shapes, so a page needs no font. Nothing is drawn without data.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from chacal.report.curves import has_matplotlib
from chacal.report.drawings import BarPlot, LinePlot, PointPlot
from chacal.report.pictures import COLOURS
from chacal.report.results import TableResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#0a0b0c", "#0d0e0f"
MARKERS = "osD^vPX"
PLAIN = (":", "-.", (0, (1, 3)))
"""Lines to compare with, where there are several."""
MANY_TICKS = 6
STYLE: dict[Any, Any] = {
    "font.size": 11, "axes.titlesize": 12, "axes.labelsize": 11, "legend.fontsize": 9.5,
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "lines.linewidth": 1.8, "lines.markersize": 5.0,
    "axes.grid": True, "grid.color": FAINT, "axes.axisbelow": True, "svg.fonttype": "path",
}  # fmt: skip


def drawn(table: TableResult) -> list[tuple[str, str]]:
    """What each plot of a table shows, and its SVG; none without matplotlib."""
    if not has_matplotlib():
        return []
    plots = [(plot.text, draw_points(plot)) for plot in table.points]
    plots += [(plot.text, draw_bars(plot)) for plot in table.bars]
    return plots + [(plot.text, draw_lines(plot)) for plot in table.lines]


def draw_points(plot: PointPlot) -> str:
    """Points with their names at the right, and the edge as steps."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for point in plot.points:
            axes.plot(point.x, point.y, "o", color=COLOURS[point.family % len(COLOURS)],
                      mfc="none" if point.hollow else None)  # fmt: skip
        if plot.edge:
            steps = [(plot.points[i].x, plot.points[i].y) for i in plot.edge]
            axes.step(*zip(*steps, strict=True), where="post", color=INK, lw=1, ls=":")
        _label(axes, [(point.x, point.y, point.name) for point in plot.points])
        axes.set_xlabel(plot.across)
        axes.set_ylabel(plot.up)
        axes.margins(0.12)

    return _svg(draw, plot.name, height=max(4.6, 0.19 * len(plot.points)))


def draw_bars(plot: BarPlot) -> str:
    """Bars side by side at each place, or, flat, one below the other."""

    def flat(figure: Figure) -> None:
        axes = figure.add_subplot()
        for bars, colour in zip(plot.bars, cycle(COLOURS)):
            there = [(i, v) for i, v in enumerate(bars.values) if v is not None]
            axes.barh([i for i, _ in there], [v for _, v in there], color=colour)
        axes.set_yticks(range(len(plot.places)), plot.places)
        axes.invert_yaxis()
        if plot.level is not None:
            axes.axvline(plot.level, color=INK, ls=":", lw=1.4)
        axes.set_xlabel(plot.axis)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", labelsize=9)

    def upright(figure: Figure) -> None:
        axes = figure.add_subplot()
        for i, (bars, colour) in enumerate(zip(plot.bars, cycle(COLOURS))):
            # what was not run, or does not concern a place, has no bar: none is not 0
            there = [(x, v) for x, v in enumerate(bars.values) if v is not None]
            at = [x + 0.8 * (i + 0.5) / len(plot.bars) - 0.4 for x, _ in there]
            values = [v for _, v in there]
            axes.bar(at, values, 0.76 / len(plot.bars), color=colour, label=bars.name)
        if plot.marks is not None:
            there = [(x, v) for x, v in enumerate(plot.marks.values) if v is not None]
            axes.plot([x for x, _ in there], [v for _, v in there], "_", color=INK, ms=34, mew=2,
                      label=plot.marks.name)  # fmt: skip
        axes.set_xticks(range(len(plot.places)), plot.places)
        axes.set_ylabel(plot.axis)
        figure.legend(loc="outside lower center", ncols=1)

    if plot.flat:
        return _svg(flat, plot.name, height=1.2 + 0.27 * len(plot.places))
    return _svg(upright, plot.name, height=4.6)


def draw_lines(plot: LinePlot) -> str:
    """Lines with a legend below; panels share y."""

    def draw(figure: Figure) -> None:
        looks, told = _looks(plot), set[str]()
        for i, axes in enumerate(
            figure.subplots(1, len(plot.panels), sharey=True, squeeze=False)[0]
        ):
            panel = plot.panels[i]
            for line in sorted(panel.lines, key=lambda line: line.plain):
                label = None if line.name in told else line.name
                axes.plot(line.x, line.y, label=label, **looks[line.name])
                told.add(line.name)
            if panel.title:
                axes.set_title(panel.title)
            axes.set_xlabel(panel.across)
            if plot.log_x:
                axes.set_xscale("log", base=2)
            if plot.log_y:
                axes.set_yscale("log")
            elif plot.percent and len(plot.panels) == 1:
                axes.set_ylim(-3, 104)
            _ticks(axes, sorted({x for line in panel.lines for x in line.x}), panel.ticks)
            if i == 0:
                axes.set_ylabel(plot.up)
        figure.legend(loc="outside lower center", ncols=2)

    return _svg(draw, plot.name, height=plot.height)


def _looks(plot: LinePlot) -> dict[str, dict[str, Any]]:
    """Name of a line -> how it is drawn, the same in every panel, so that one legend serves all."""
    lines = [line for panel in plot.panels for line in panel.lines]
    names = list(dict.fromkeys(line.name for line in lines if not line.plain))
    looks: dict[str, dict[str, Any]] = {
        name: {"color": colour, "marker": mark, "ls": "-" if j < len(COLOURS) else "--"}
        for j, (name, colour, mark) in enumerate(zip(names, cycle(COLOURS), cycle(MARKERS)))
    }
    plain = dict.fromkeys(line.name for line in lines if line.plain)
    return looks | {name: {"color": INK, "ls": dots} for name, dots in zip(plain, cycle(PLAIN))}


def _ticks(axes: Axes, at: Sequence[float], names: Sequence[str]) -> None:
    if names:
        beside = len(axes.figure.axes)  # narrow panels have no room for names side by side
        axes.set_xticks(range(len(names)), names, rotation=90 if beside > 2 else 0)
    else:
        turned = 45 if len(at) > MANY_TICKS and at[-1] >= 1000 else 0
        axes.set_xticks(at, [f"{x:,g}" if x < 1e6 else f"{x:,.0f}" for x in at], rotation=turned)


def _label(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Names beside points, each a line lower where the one before would be hit."""
    taken: list[float] = []
    low, top = axes.get_ylim()
    per_line = (top - low) / 28  # lines of 8 points in the height of the plot
    for x, y, name in sorted(points, key=lambda p: -p[1]):
        at = y
        while any(abs(at - other) < per_line for other in taken):
            at -= per_line / 2
        taken.append(at)
        axes.annotate(name, (x, y), xytext=(1.01, at), textcoords=("axes fraction", "data"),
                      fontsize=8, va="center", annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": FAINT, "lw": 0.8})  # fmt: skip


def _svg(draw: Callable[[Figure], None], salt: str, height: float, width: float = 7.2) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    # a hundredth of a point is finer than any screen; matplotlib writes millionths
    text = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    # ids of one plot must not meet those of another in the same page
    prefix = re.sub(r"\W", "", salt)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    return text.replace(INK, "currentColor").replace(FAINT, "var(--grid)").strip()
