"""Everything that the page draws, as typed values: computed in Python, never in the browser.

`player.py` fills them in; `chacal._plain.to_plain` makes JSON of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from chacal.tasks.reading import Fault


@dataclass(frozen=True)
class ClauseFigure:
    """A piece of the typed text, and the sentences that it was read as."""

    start: int
    end: int
    read: tuple[str, ...]
    fault: Fault | None


@dataclass(frozen=True)
class ToldFigure:
    """What one model says is in each box after 1, 2, ... sentences, and how sure it is."""

    model: str
    told: tuple[tuple[str, ...], ...]
    sure: tuple[tuple[float, ...], ...]
    wrong: tuple[int, ...]


@dataclass(frozen=True)
class StoryFigures:
    """A story, what is true after 1, 2, ... sentences, and what the models say.

    Attributes:
        text: as typed.
        clauses: how it was read.
        boxes: their names.
        sentences: as read, with things by their own names.
        truth: for every sentence, for every box, the thing in it or nothing.
        told: the same as each model says.
        updates: sentences that change something.
        trained: as many of them as the models were trained on, at most.
    """

    text: str
    clauses: tuple[ClauseFigure, ...]
    boxes: tuple[str, ...]
    sentences: tuple[str, ...]
    truth: tuple[tuple[str, ...], ...]
    told: tuple[ToldFigure, ...]
    updates: int
    trained: int


@dataclass(frozen=True)
class PathFigure:
    """One path from the question back, as `chacal.nn.paths.Path` has it, rounded."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    flows: tuple[float, ...]
    share: float


@dataclass(frozen=True)
class SourceFigure:
    """A token that a head reads from.

    Attributes:
        token: where it stands.
        share: of all that the head reads.
        hops: of this, by hops that go somewhere, from 0.
        lengths: of this, by (1-γ)γ^(t-1) A^t, from t = 1.
    """

    token: int
    share: float
    hops: tuple[float, ...]
    lengths: tuple[float, ...]


@dataclass(frozen=True)
class HeadFigure:
    """One head, asked by one token.

    Attributes:
        need: by how much the answer's log-probability falls without it.
        paths: the strongest.
        sources: where they end, most first.
        hops: of all that it reads, by hops that go somewhere, from 0.
        summarised: of all that it reads, what came through a block's summary (Algorithm 1).
    """

    need: float
    paths: tuple[PathFigure, ...]
    sources: tuple[SourceFigure, ...]
    hops: tuple[float, ...]
    summarised: float


@dataclass(frozen=True)
class LayerFigure:
    """One layer: its operator as text, γ if it has one, and its heads."""

    operator: str
    gamma: float | None
    heads: tuple[HeadFigure, ...]


@dataclass(frozen=True)
class HopsFigures:
    """How a model found what is in a box.

    Attributes:
        model: its name.
        gamma: that was asked for; None: its own.
        tokens: of the story and the answer, as the model reads them, by their own names.
        sentence: of every token, the number of its sentence; -1 the start, and from `sentences`
            on the boxes' answers.
        sentences: how many were read.
        question: the token at which the box is asked for.
        box: which.
        answer: what the model says.
        truth: what the story says.
        sure: the probability of the answer.
        layers: first to last.
        layer: the one to look at first, and
        head: its head that the answer needs most.
    """

    model: str
    gamma: float | None
    tokens: tuple[str, ...]
    sentence: tuple[int, ...]
    sentences: int
    question: int
    box: str
    answer: str
    truth: str
    sure: float
    layers: tuple[LayerFigure, ...]
    layer: int
    head: int


Sparse = tuple[tuple[tuple[int, float], ...], ...]
"""For every token, (token, weight) of the entries that are worth a line."""


@dataclass(frozen=True)
class HeadRows:
    """What every token looks at in one hop (A) and in all together (S; empty where it is A)."""

    A: Sparse
    S: Sparse


@dataclass(frozen=True)
class RowsFigures:
    """The rows of every layer's heads."""

    layers: tuple[tuple[HeadRows, ...], ...]


@dataclass(frozen=True)
class ChainFigures:
    """The pointer grid: what stands where, what every position leads to, and how it was found.

    Attributes:
        seed: which grid.
        gamma: that was asked for; None: the model's own.
        blocks: rows of the grid.
        block_size: columns.
        symbols: of every position: a pointer's column, or in the first row a value.
        values: that every position leads to.
        told: what the model says.
        routes: of every position, the pointers from it to the value.
        paths: of every position, the strongest path of the head that counts most.
    """

    seed: int
    gamma: float | None
    blocks: int
    block_size: int
    symbols: tuple[str, ...]
    values: tuple[int, ...]
    told: tuple[int, ...]
    routes: tuple[tuple[int, ...], ...]
    paths: tuple[PathFigure, ...]
