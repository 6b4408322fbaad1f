"""What a plot shows, as values: points, bars or lines. `svg.py` draws them; tables make them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point with its name beside it.

    Attributes:
        name: of it.
        x: across.
        y: up.
        family: points of one family have one colour.
        hollow: whether it stands apart.
    """

    name: str
    x: float
    y: float
    family: int
    hollow: bool = False


@dataclass(frozen=True, kw_only=True)
class PointPlot:
    """Points, and a dotted edge through some of them."""

    name: str
    text: str
    across: str
    up: str
    points: tuple[Point, ...]
    edge: tuple[int, ...]

    def __post_init__(self) -> None:
        for number in self.edge:
            if not 0 <= number < len(self.points):
                raise ValueError(f"edge has {number}; expected one of {len(self.points)} points")


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of one colour: a value for some of the plot's places, None for the others."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class BarPlot:
    """Groups of bars.

    Attributes:
        name: of the plot, different for all of a page.
        text: what it shows.
        axis: what the values are.
        places: names of the groups.
        bars: one for each colour.
        marks: a value to compare with at some of the places, and what it is.
        level: a dotted line across, if any.
        flat: whether bars lie on their side, one below the other.
    """

    name: str
    text: str
    axis: str
    places: tuple[str, ...]
    bars: tuple[Bars, ...]
    marks: Bars | None = None
    level: float | None = None
    flat: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line; `plain` is a dotted one in the colour of the text, to compare with."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    plain: bool = False

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} values and y {len(self.y)}; expected as many")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: "" for none.
        across: what x is.
        lines: what is drawn.
        ticks: names of x, where numbers would not do: 0, 1, 2, ... are then its places.
    """

    title: str = ""
    across: str
    lines: tuple[Line, ...]
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LinePlot:
    """Lines, in one panel or in several that share y.

    Attributes:
        name: of the plot, different for all of a page.
        text: what it shows.
        up: what y is.
        panels: from left to right.
        percent: whether y is a share from 0 to 100.
        log_x: whether x is drawn in powers of two.
        log_y: whether y is drawn in powers of ten.
        height: in inches, of a width of 7.2.
    """

    name: str
    text: str
    up: str
    panels: tuple[Panel, ...]
    percent: bool = True
    log_x: bool = False
    log_y: bool = False
    height: float = 4.4

    def __post_init__(self) -> None:
        if not self.panels:
            raise ValueError("panels is empty; expected at least one")
        if not 1 <= self.height <= 100:
            raise ValueError(f"height is {self.height}; expected 1 to 100 inches")
