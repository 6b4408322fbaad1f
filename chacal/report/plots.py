"""Plots of tables as SVG that stands in a page and takes its colours, light or dark.

matplotlib draws with two colours that nothing else has; they are then named `currentColor` and
`var(--grid)`. Text is drawn as shapes, so a page needs no font. Nothing is drawn without data.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from chacal.report.aggregate import (
    breakdown,
    cell_figures,
    frontier_rows,
    group_sizes,
    layers_of,
)
from chacal.report.curves import has_matplotlib
from chacal.report.pictures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#0a0b0c", "#0d0e0f"
MARKERS = "osD^vPX"
STYLE: dict[Any, Any] = {
    "font.size": 11, "axes.titlesize": 12, "axes.labelsize": 11, "legend.fontsize": 9.5,
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "lines.linewidth": 1.8, "lines.markersize": 5.0,
    "axes.grid": True, "grid.color": FAINT, "axes.axisbelow": True, "svg.fonttype": "path",
}  # fmt: skip

FEW = 20
"""Test stories below which a group has no point: its share would be chance."""

LEFT_OUT = (
    f" (without BigBird, local attention, every other block size, and groups of fewer than {FEW} "
    "stories)"
)

Table = Mapping[str, Any]
Plot = tuple[str, str]
"""What it shows, and the SVG."""


def plots_of(name: str, table: Table | None) -> list[Plot]:
    """The plots that go with a table; none without matplotlib or without figures."""
    if table is None or not has_matplotlib():
        return []
    drawn = {
        "tab:boxes": [frontier, by_borders, by_crossings, by_updates],
        "tab:regimes": [bars],
        "tab:boxes-topk": [by_top_k],
        "tab:heads-props": [by_properties],
        "fig:sparsity": [mass],
        "fig:cost": [against_n, memory_against_n, against_blocks],
        "fig:leak": [leaks],
    }.get(name, [])
    return [plot for draw in drawn if (plot := draw(table)) is not None]


def frontier(table: Table) -> Plot | None:
    """Exact match against evaluation time; the frontier at L=2 is up and to the left."""
    points = _figures(table, "exact_match", "seconds")
    if len(points) < 2:
        return None
    edge = frontier_rows({row: (m, s) for row, (m, s) in points.items() if layers_of(row) == 2})

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, (match, seconds) in points.items():
            deep = layers_of(row) != 2
            axes.plot(seconds, 100 * match, "o", color=_family(row), mfc="none" if deep else None)
        if edge:
            steps = [(points[row][1], 100 * points[row][0]) for row in edge]
            axes.step(*zip(*steps, strict=True), where="post", color=INK, lw=1, ls=":")
        _label(axes, [(s, 100 * m, row.replace(", L=", " L")) for row, (m, s) in points.items()])
        axes.set_xlabel("evaluation of the test set (s)")
        axes.set_ylabel("exact match (%)")
        axes.margins(0.12)

    text = (
        "Exact match against evaluation time. The dotted line is the frontier at L=2: what no "
        "other row of two layers beats in both. Hollow: five layers, for comparison."
    )
    return text, _svg(draw, "frontier", height=4.6)


def by_borders(table: Table) -> Plot | None:
    """Exact match by the borders of n // 8 that the needed chain crosses."""
    text = f"Exact match by how many borders of blocks of n//8 the needed chain crosses{LEFT_OUT}."
    return _lines(table, "exact_match/borders", "borders crossed", text)


def by_crossings(table: Table) -> Plot | None:
    """Exact match by the hops of the needed chain that cross a border of n // 8."""
    text = (
        "Exact match by how many hops of the needed chain cross a border of blocks of n//8"
        f"{LEFT_OUT}."
    )
    return _lines(table, "exact_match/crossings", "hops that cross a border", text)


def by_updates(table: Table) -> Plot | None:
    """Exact match by the number of updates."""
    text = f"Exact match by the number of updates in a story{LEFT_OUT}."
    return _lines(table, "exact_match/updates", "updates", text)


def bars(table: Table) -> Plot | None:
    """Exact match of every row, one bar for each regime, and the paper's as a mark."""
    rows: dict[str, dict[str, float]] = {}
    paper: dict[str, float] = {}
    for cell in table["cells"]:
        figures = cell_figures(cell)
        if "exact_match" in figures:
            rows.setdefault(cell["row"], {})[cell["column"]] = 100 * figures["exact_match"].mean
            if "exact_match" in cell["paper"]:
                paper[cell["row"]] = cell["paper"]["exact_match"]
    if not rows:
        return None
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        names = list(rows)
        for i, (column, colour) in enumerate(zip(columns, cycle(COLOURS))):
            # a regime that was not run, or does not concern a row, has no bar: none is not 0 %
            there = [x for x, row in enumerate(names) if column in rows[row]]
            at = [x + 0.8 * (i + 0.5) / len(columns) - 0.4 for x in there]
            values = [rows[names[x]][column] for x in there]
            axes.bar(at, values, 0.76 / len(columns), color=colour, label=column)
        at_paper = [i for i, row in enumerate(names) if row in paper]
        axes.plot(at_paper, [paper[names[i]] for i in at_paper], "_", color=INK, ms=34, mew=2,
                  label="the paper's (tab:boxes)")  # fmt: skip
        _short_ticks(axes, names)
        axes.set_ylabel("exact match (%)")
        figure.legend(loc="outside lower center", ncols=1)

    text = "Exact match where chains cross block borders and where stories fit in a block."
    return text, _svg(draw, "bars", height=4.6)


def by_top_k(table: Table) -> Plot | None:
    """Exact match against the entries kept at test."""
    curves: dict[str, list[tuple[str, float]]] = {}
    for cell in table["cells"]:
        figures = cell_figures(cell)
        if "exact_match" in figures:
            point = (cell["row"].removeprefix("k="), 100 * figures["exact_match"].mean)
            curves.setdefault(cell["column"], []).append(point)
    text = "Exact match against the entries of A kept in a row at test."
    return _categories(curves, "entries kept (k)", "exact match (%)", text)


def by_properties(table: Table) -> Plot | None:
    """Accuracy against properties, a line for each number of heads."""
    curves: dict[str, list[tuple[str, float]]] = {}
    for cell in table["cells"]:
        figures = cell_figures(cell)
        if "accuracy" in figures:
            heads, properties = cell["row"].split(", p=")
            point = (properties, 100 * figures["accuracy"].mean)
            curves.setdefault(heads, []).append(point)
    text = "Token accuracy against properties, by number of heads."
    return _categories(curves, "properties (p)", "accuracy (%)", text)


def mass(table: Table) -> Plot | None:
    """Share of the last layer's attention inside blocks and inside a window, against size."""
    looks = {
        cell["row"]: run["look"]["mass"]
        for cell in table["cells"]
        for run in cell["runs"].values()
        if run.get("look")
    }
    if not looks:
        return None

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for (row, curves), colour, mark in zip(looks.items(), cycle(COLOURS), cycle(MARKERS)):
            for axes, kind in ((left, "blocks"), (right, "windows")):
                shares = {int(k): v for k, v in curves[-2][kind].items() if k.isdigit()}
                axes.plot(list(shares), [100 * v for v in shares.values()], marker=mark,
                          color=colour, label=row if axes is left else None)  # fmt: skip
        uniform = next(iter(looks.values()))[-1]
        for axes, kind, title in (
            (left, "blocks", "inside diagonal blocks"), (right, "windows", "inside a window"),
        ):  # fmt: skip
            shares = {int(k): v for k, v in uniform[kind].items() if k.isdigit()}
            axes.plot(list(shares), [100 * v for v in shares.values()], ls=":", color=INK,
                      label="equal weights" if axes is left else None)  # fmt: skip
            axes.set_title(title)
            axes.set_xlabel("tokens")
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(shares), [str(s) for s in shares])
        left.set_ylabel("share of the last layer's mass (%)")
        figure.legend(loc="outside lower center", ncols=2)

    text = "Share of the last layer's attention inside diagonal blocks and inside a sliding window."
    return text, _svg(draw, "mass", height=4.4)


def against_n(table: Table) -> Plot | None:
    """Time against n."""
    text = "Time of a forward pass against n."
    return _costs(table, "n", "n", "seconds", 1.0, "seconds", text)


def memory_against_n(table: Table) -> Plot | None:
    """Peak memory against n."""
    text = "Peak memory of forward and backward against n."
    return _costs(table, "n", "n", "bytes", 2.0**-20, "MiB", text)


def against_blocks(table: Table) -> Plot | None:
    """Time against block size."""
    text = "Time of a forward pass against the block size, at fixed n."
    return _costs(table, "block size", "block_size", "seconds", 1.0, "seconds", text)


def leaks(table: Table) -> Plot | None:
    """The loss on random tokens of every operator, against log V."""
    bars = {
        cell["row"]: (cell_figures(cell)["loss"], cell["causal"], cell["floor"])
        for cell in table["cells"]
        if cell["floor"] and "loss" in cell_figures(cell)
    }
    if not bars:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        names = list(bars)[::-1]
        values = [bars[name][0].mean for name in names]
        colours = [COLOURS[0] if bars[name][1] else COLOURS[1] for name in names]
        axes.barh(names, values, color=colours)
        floor = bars[names[0]][2]
        axes.axvline(floor, color=INK, ls=":", lw=1.4)
        axes.set_xlabel("loss (nats); dotted: log V, which no causal model can beat")
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", labelsize=9)

    text = "Loss on random tokens. Blue: causal operators; orange: those that say they are not."
    return text, _svg(draw, "leaks", height=1.2 + 0.27 * len(bars))


def _figures(table: Table, *metrics: str) -> dict[str, tuple[float, ...]]:
    found = {}
    for cell in table["cells"]:
        figures = cell_figures(cell)
        if all(metric in figures for metric in metrics):
            found[cell["row"]] = tuple(figures[metric].mean for metric in metrics)
    return found


def _lines(table: Table, label: str, across: str, text: str) -> Plot | None:
    chosen = {}
    for cell in table["cells"]:
        sizes = group_sizes(cell, label)
        groups = {
            place: figure
            for place, figure in breakdown(cell_figures(cell), label).items()
            if sizes.get(place, FEW) >= FEW
        }
        # seven lines can be told apart: of the block sizes, every other
        if groups and not re.search(r"n//[357]|BigBird|Local", cell["row"]):
            chosen[cell["row"]] = groups
    if not chosen:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        look = zip(chosen.items(), cycle(COLOURS), cycle(MARKERS))
        for i, ((row, groups), colour, mark) in enumerate(look):
            axes.plot(list(groups), [100 * f.mean for f in groups.values()], marker=mark,
                      color=colour, ls="-" if i < len(COLOURS) else "--", label=row)  # fmt: skip
        axes.set_ylim(-3, 104)
        places = sorted({place for groups in chosen.values() for place in groups})
        axes.set_xticks(places)
        axes.set_xlabel(across)
        axes.set_ylabel("exact match (%)")
        figure.legend(loc="outside lower center", ncols=2)

    return text, _svg(draw, label, height=5.2)


def _categories(
    curves: Mapping[str, Sequence[tuple[str, float]]], across: str, up: str, text: str
) -> Plot | None:
    if not curves:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for (name, points), colour, mark in zip(curves.items(), cycle(COLOURS), cycle(MARKERS)):
            x, y = zip(*points, strict=True)
            axes.plot(x, y, marker=mark, color=colour, label=name)
        axes.set_ylim(-3, 104)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        figure.legend(loc="outside lower center", ncols=2)

    return text, _svg(draw, across, height=4.4)


def _costs(
    table: Table, column: str, x: str, y: str, unit: float, up: str, text: str
) -> Plot | None:
    curves = {
        cost["row"]: [(p[x], unit * p[y]) for p in cost["points"] if p[y]]
        for cost in table["costs"]
        if cost["state"] == "done" and cost["column"] == column
    }
    curves = {row: points for row, points in curves.items() if points}
    if not curves:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        look = zip(curves.items(), cycle(COLOURS), cycle(MARKERS))
        for i, ((row, points), colour, mark) in enumerate(look):
            axes.plot(*zip(*points, strict=True), marker=mark, color=colour, label=row,
                      ls="-" if i < len(COLOURS) else "--")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        at = sorted({p[0] for points in curves.values() for p in points})
        axes.set_xticks(at, [f"{v:,}" for v in at], rotation=45 if len(at) > 6 else 0)
        axes.set_xlabel(column)
        axes.set_ylabel(up)
        figure.legend(loc="outside lower center", ncols=2)

    return text, _svg(draw, column + y, height=5.2)


def _family(row: str) -> str:
    families = ("Dense", "ChaCAL", "Block-ChaCAL", "Local", "BigBird")
    place = next((i for i, name in enumerate(families) if row.startswith(name)), 5)
    return COLOURS[place]


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


def _short_ticks(axes: Axes, names: Sequence[str]) -> None:
    short = [name.replace(", L=2", "").replace("Block-ChaCAL ", "") for name in names]
    axes.set_xticks(range(len(names)), short)


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
    # ids of one plot must not meet those of another in the same page
    prefix = re.sub(r"\W", "", salt)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    return text.replace(INK, "currentColor").replace(FAINT, "var(--grid)").strip()
