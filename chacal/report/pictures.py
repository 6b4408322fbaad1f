"""Pictures as PNG bytes, from numpy arrays and plain figures.

Nothing global is touched: figures are made without pyplot, and so always drawn by Agg.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chacal._extras import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 120
PANEL_WIDTHS = {1: 6.0, 2: 5.6, 3: 4.6}
"""Inches of a panel by how many stand side by side; `NARROWEST` where there are more."""
NARROWEST = 3.6

MOST_LABELS = 64
"""Tokens that the axes of a wide panel can name one by one."""
FEW_LABELS = 24
"""Tokens that those of a narrow one can."""
MOST_CELLS = 400
"""Cells that a panel can show one by one."""

STYLE: dict[Any, Any] = {
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.labelsize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "lines.linewidth": 2.0,
    "lines.markersize": 6.0,
}

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which the colour-blind can tell apart."""
GREY = "#767676"
REFERENCE = "uniform attention"


@dataclass(frozen=True)
class Panel:
    """One matrix to draw: title, and (n, n) weights, queries down and keys across."""

    title: str
    weights: np.ndarray


@dataclass(frozen=True)
class Mass:
    """Shares of attention mass by block size, window and number of keys; the keys are texts.

    A size is a number of tokens, or "n//3" for that part of each example's own length.
    """

    name: str
    blocks: dict[str, float]
    windows: dict[str, float]
    top: dict[str, float]


def require_matplotlib(what: str = "chacal inspect") -> None:
    """Raise a ValueError that says what to install for `what`, unless matplotlib is there."""
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError:
        raise ValueError(f"{what} needs matplotlib: {install('plot')}") from None


def draw_attention(
    rows: Sequence[Sequence[Panel]],
    *,
    title: str,
    note: str,
    tokens: Sequence[str],
    period: int | None = None,
) -> bytes:
    """Matrices in rows of equal length, all on one colour scale from 0 to 1.

    Args:
        rows: panels from top to bottom, from left to right.
        title: of the whole picture.
        note: what it shows, below the title.
        tokens: names of the n positions, written out where there is room for them.
        period: positions per block, for the ticks where there is none.

    Returns:
        a PNG.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.colors import PowerNorm

    across = max(len(row) for row in rows)
    size = PANEL_WIDTHS.get(across, NARROWEST)
    n = len(tokens)
    places, labels = _ticks(tokens, period)
    named = len(places) == n
    # a cell's height in points, less the space between lines
    font = min(11.0, 72 * size / n * 0.85) if named else 11.0
    # inches beside and below a panel: the longest label and the axis's name
    margin = 0.5 + font / 72 * 0.62 * max(map(len, labels))
    # a picture with a head per row is scrolled: its axes are named in every row
    scrolled = named and across <= 2
    step_x, step_y = size + 0.15, size + 0.45 + (margin if scrolled else 0)
    width = margin + step_x * across + 1.2
    height = step_y * len(rows) + (0 if scrolled else margin)
    pool = -(-n // MOST_CELLS)
    if pool > 1:
        note += f" A cell is the largest of {pool} x {pool} weights."
    note += " White: exactly 0."
    # the square root shows 1 % as a tenth of the scale: that little still carries a chain
    norm = PowerNorm(1 / 2, vmin=0, vmax=1)
    edge = -(-n // pool) * pool - 0.5
    with rc_context(STYLE):
        figure, whole = _figure(width, height, title, note)
        for row, panels in enumerate(rows):
            for column, panel in enumerate(panels):
                x, y = margin + step_x * column, height - step_y * row - 0.35 - size
                ax = figure.add_axes((x / width, y / whole, size / width, size / whole))
                image = ax.imshow(
                    np.ma.masked_equal(pool_max(panel.weights, pool), 0), norm=norm,
                    cmap="magma_r", interpolation="nearest", extent=(-0.5, edge, edge, -0.5),
                )  # fmt: skip
                ax.set_title(panel.title)
                ax.spines[:].set_visible(True)
                ax.spines[:].set_color("#BBBBBB")
                ax.tick_params(length=2, pad=2, color="#BBBBBB")
                ax.set_xticks([])
                ax.set_yticks([])
                if scrolled or row == len(rows) - 1 or column >= len(rows[row + 1]):
                    ax.set_xticks(places, labels, rotation=90, fontsize=font, parse_math=False)
                    ax.set_xlabel("key")
                if column == 0:
                    ax.set_yticks(places, labels, fontsize=font, parse_math=False)
                    ax.set_ylabel("query")
        x, tall = margin + step_x * across + 0.1, min(5.0, height - 0.5)
        beside = (x / width, (height - 0.35 - tall) / whole, 0.2 / width, tall / whole)
        ticks = [0, 0.01, 0.05, 0.1, 0.2, 0.5, 1]
        bar = figure.colorbar(image, cax=figure.add_axes(beside), ticks=ticks)
        bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
        bar.set_label("weight (square-root scale)")
        bar.outline.set_visible(False)
        return _png(figure)


def draw_mass(curves: Sequence[Mass], *, title: str, note: str, length: float) -> bytes:
    """Left: mass inside diagonal blocks and windows by their size. Right: of a row's top keys.

    Args:
        curves: one per layer, and one named `REFERENCE`, which is drawn in grey.
        title: of the whole picture.
        note: what it shows, below the title.
        length: mean n, which the axis at the top divides.

    Returns:
        a PNG.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.lines import Line2D

    sizes = [size for size in curves[0].blocks if size.isdigit()]
    parts = [size for size in curves[0].blocks if not size.isdigit()]
    counts = list(curves[0].top)
    colours = _colours(curves)
    with rc_context(STYLE):
        figure, whole = _figure(13.5, 6.4, title, note)
        figure.set_layout_engine("constrained", rect=(0, 0, 1, 6.4 / whole), w_pad=0.08)
        left, right = figure.subplots(1, 2, sharey=True)
        x = [int(size) for size in sizes]
        kept = [int(count) for count in counts]
        for curve, colour in zip(curves, colours, strict=True):
            grey = curve.name == REFERENCE
            look: dict[str, Any] = {"color": colour, "zorder": 1 if grey else 2}
            blocks = [100 * curve.blocks[size] for size in sizes]
            windows = [100 * curve.windows[size] for size in sizes]
            left.plot(x, blocks, "-", marker="" if grey else "s", **look)
            left.plot(x, windows, "--", marker="" if grey else "o", mfc="white", **look)
            top = [100 * curve.top[count] for count in counts]
            right.plot(kept, top, "-", marker="" if grey else "o", **look)
        left.set_xlabel("m (tokens)")
        left.set_ylabel("share of attention mass (%)")
        left.set_title("In diagonal blocks, or a window, of m tokens", pad=28)
        right.set_xlabel("keys")
        right.set_title("On the largest keys of each row", pad=28)
        right.tick_params(labelleft=True)
        for ax, ticks in ((left, x), (right, kept)):
            ax.set_xscale("log", base=2)
            ax.set_xticks(ticks, [str(tick) for tick in ticks])
            ax.set_yticks(range(0, 101, 20))
            ax.set_ylim(-2, 103)
            ax.grid(axis="y", color="#E5E5E5")
            ax.set_axisbelow(True)
        above = left.secondary_xaxis("top")
        above.set_xticks([max(1.0, length / int(p.removeprefix("n//"))) for p in parts], parts)
        above.set_xticks([], minor=True)
        above.spines[:].set_visible(False)
        above.tick_params(labelsize=10, labelcolor=GREY, color=GREY, pad=1)
        above.get_xticklabels()[parts.index("n//4")].set_ha("right")  # n//3 is near
        named = zip(colours, curves, strict=True)
        handles = [Line2D([], [], color=colour, label=curve.name) for colour, curve in named]
        kind: dict[str, Any] = {"color": "black", "lw": 1.5}
        handles += [
            Line2D([], [], marker="s", label="block: key in the query's block", **kind),
            Line2D(
                [], [], ls="--", marker="o", mfc="white", label="window: last m keys", **kind
            ),
        ]  # fmt: skip
        columns = min(4, len(handles))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        return _png(figure)


def draw_gammas(gammas: Mapping[int, Sequence[float]]) -> bytes:
    """γ by layer, from top to bottom, and head, from left to right.

    Args:
        gammas: γ of each head by layer.

    Returns:
        a PNG.
    """
    require_matplotlib("a picture of γ")
    from matplotlib import rc_context

    across = max(map(len, gammas.values()))
    cell = 0.62 if across <= 16 else 0.5
    width, height = max(6.0, 1.0 + cell * across + 1.2), cell * len(gammas) + 1.0
    values = np.full((len(gammas), across), np.nan)
    for row, heads in enumerate(gammas.values()):
        values[row, : len(heads)] = heads
    with rc_context(STYLE):
        figure, whole = _figure(width, height, "γ of each head", "0 is ordinary attention.")
        figure.set_layout_engine("constrained", rect=(0, 0, 1, height / whole))
        ax = figure.subplots()
        image = ax.imshow(values, vmin=0, vmax=1, cmap="magma_r", interpolation="nearest")
        for row, column in zip(*np.nonzero(~np.isnan(values)), strict=True):
            value = values[row, column]
            ax.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=10,
                color="white" if value > 0.5 else "black",
            )  # fmt: skip
        ax.set_yticks(range(len(gammas)), [str(layer) for layer in gammas])
        ax.set_xticks(range(across), [str(head) for head in range(across)])
        ax.set_ylabel("layer")
        ax.set_xlabel("head")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        figure.colorbar(image, ax=ax, ticks=[0, 0.5, 1]).outline.set_visible(False)
        return _png(figure)


def pool_max(weights: np.ndarray, size: int) -> np.ndarray:
    """The largest of every size x size square of (n, n), the last squares perhaps smaller."""
    n = len(weights)
    padded = np.pad(weights, (0, -n % size))
    m = len(padded) // size
    return padded.reshape(m, size, m, size).max((1, 3))


def _ticks(tokens: Sequence[str], period: int | None) -> tuple[list[int], list[str]]:
    """Every token; of a long example, where its blocks begin, or a token here and there."""
    n = len(tokens)
    names = [token.strip() or "␣" for token in tokens]
    if n <= MOST_LABELS:
        return list(range(n)), names
    places = _sparse(n, period)
    return places, [str(t) if period else f"{names[t]} ({t})" for t in places]


def _sparse(n: int, period: int | None) -> list[int]:
    """At most 17 positions: multiples of the period, or of a round number."""
    step = period or 1
    for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if n / (step * factor) <= 17:
            return list(range(0, n, step * factor))
    return [0, n - 1]


def _colours(curves: Sequence[Mass]) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    layers = sum(curve.name != REFERENCE for curve in curves)
    chosen = iter(
        COLOURS
        if layers <= len(COLOURS)
        else [to_hex(colormaps["viridis"](i / layers)) for i in range(layers)]
    )
    return [GREY if curve.name == REFERENCE else next(chosen) for curve in curves]


def _figure(width: float, height: float, title: str, note: str) -> tuple[Figure, float]:
    """A figure with `height` inches left below its title and note, and its whole height."""
    from matplotlib.figure import Figure

    # about 10 characters of the note's size stand on an inch
    lines = textwrap.wrap(note, int(10.3 * width))
    whole = height + 0.5 + 0.25 * len(lines)
    figure = Figure(figsize=(width, whole), dpi=DPI)
    for text, inches, font, weight, colour in (
        (title, 0.08, 15, "bold", "black"),
        ("\n".join(lines), 0.38, 12, "normal", "#444444"),
    ):
        figure.text(
            0.1 / width, 1 - inches / whole, text, va="top", fontsize=font, fontweight=weight,
            color=colour, parse_math=False,
        )  # fmt: skip
    return figure, whole


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # a token in a script that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
