"""A line chart, drawn the same way everywhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#4c566a", "#d08770", "#5e9bd1", "#2e7d4f", "#b48ead", "#c9a227", "#8c6d46")


def has_matplotlib() -> bool:
    """Whether pictures can be drawn (the extra `plot`)."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_curves(
    path: Path,
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    *,
    title: str,
    across: str,
    up: str,
    level: tuple[float, str] | None = None,
) -> Path:
    """Draw shares in [0, 1] against x, one line per name, to a PNG.

    Args:
        path: where to.
        x: positions.
        curves: name -> one value per position.
        title: of the picture.
        across: what x is.
        up: what the values are.
        level: a value to mark with a dotted line, and its name.

    Returns:
        the path.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=150)
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        axes.plot(x, values, marker="o", markersize=4, linewidth=2, label=name, color=colour)
    if level is not None:
        axes.axhline(level[0], color="#999999", linestyle=":", linewidth=1.2)
        axes.annotate(level[1], (x[-1], level[0]), xytext=(0, 4), textcoords="offset points",
                      ha="right", color="#777777", fontsize=9)  # fmt: skip
    axes.set_ylim(-0.02, 1.05)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(title, loc="left", fontsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="center right", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return path
