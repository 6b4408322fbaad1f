"""A line chart of shares, in the style of `pictures.py`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from chacal.report.pictures import COLOURS, DPI, GREY, STYLE


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
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.6), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        for (name, values), colour in zip(curves.items(), cycle(COLOURS)):
            axes.plot(x, values, marker="o", label=name, color=colour)
        if level is not None:
            axes.axhline(level[0], color=GREY, linestyle=":", linewidth=1.2)
            axes.annotate(level[1], (x[0], level[0]), xytext=(0, -16), color=GREY,
                          textcoords="offset points")  # fmt: skip
        axes.set_ylim(-0.02, 1.05)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.set_title(title, loc="left")
        axes.grid(axis="y", color="#eeeeee")
        axes.set_axisbelow(True)
        axes.legend(loc="center right")
        figure.savefig(path)
    return path
