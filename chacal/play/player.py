"""What can be asked of the models: to answer a story, to show how, and to follow pointers.

`Player` reads a text, asks the models, and looks inside one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from chacal.nn.paths import Path, Ways, by_hops, by_length
from chacal.nn.views import LayerView, view_layers
from chacal.operators import BlockResolvent, Resolvent
from chacal.play.answers import Answer, Answers, states
from chacal.play.figures import (
    ChainFigures,
    ClauseFigure,
    HeadFigure,
    HeadRows,
    HopsFigures,
    LayerFigure,
    PathFigure,
    RowsFigures,
    SourceFigure,
    Sparse,
    StoryFigures,
    ToldFigure,
)
from chacal.play.importance import needed_heads
from chacal.play.models import BOXES, CHAINS, BoxesModel, ChainsModel, Model
from chacal.tasks.base import stream, uniforms
from chacal.tasks.boxes import Boxes
from chacal.tasks.reading import Reading, read_story
from chacal.tasks.stories import LETTERS, Sentence

PATHS = 6
"""Paths of a head that are told."""

SOURCES = 4
"""Tokens that a head reads from, at most."""

LEAST, MOST = 0.01, 8
"""Weights below this are not worth a line on the page, and no row has more lines."""

LARGEST_SEED = 2**31 - 1

NEEDED = 0.05
"""Nats by which an answer must fall without a head for the head to count as needed."""

MOST_GAMMA = 0.99
"""γ up to which the page goes."""


class Player:
    """The models, and what can be asked of them; models are loaded when first asked for."""

    def __init__(self) -> None:
        self.answers = cache(self._load)
        self.chains = cache(lambda: ChainsModel(CHAINS))

    def _load(self, name: str) -> Answers:
        bundled = next((model for model in BOXES if model.name == name), None)
        if bundled is None:
            known = ", ".join(model.name for model in BOXES)
            raise ValueError(f"model is {name!r}; expected one of {known}")
        return Answers(BoxesModel(bundled))

    @property
    def first(self) -> BoxesModel:
        """The model whose boxes and things the stories are about."""
        return self.answers(BOXES[0].name).model

    def read(self, text: str) -> Reading:
        """A text as it is meant."""
        task = self.first.task
        return read_story(text, task.boxes, self.first.objects, task.max_items)

    def draw(self, seed: int, boxes: int, updates: int) -> str:
        """A story at random, with as many boxes and updates as wanted."""
        task = self.first.task
        _check("seed", seed, 0, LARGEST_SEED)
        _check("boxes", boxes, 2, task.boxes)
        _check("updates", updates, 0, 2 * task.updates)
        drawn = Boxes(boxes=boxes, objects=task.objects, updates=updates)
        uniform = uniforms(stream("play", seed, boxes, updates))
        sentences, _ = drawn.story(uniform, "test", updates)
        return "\n".join(sentence.text for sentence in sentences)

    def story(self, text: str, models: Sequence[str], gamma: float | None = None) -> StoryFigures:
        """What is in each box after every sentence.

        Args:
            text: as typed.
            models: names of those to ask.
            gamma: stands in for the own γ of the exact model.
        """
        reading = self.read(text)
        task = self.first.task
        gamma = _check_gamma(gamma)
        truth = states(reading.told, task.boxes)[1:]
        told = []
        for name in models:
            answers = self.answers(name)
            found = answers.after_each(reading.story, _own_gamma(answers.model, gamma))
            said = tuple(
                tuple(reading.names.get(item, item) for item in answer.items) for answer in found
            )
            sure = tuple(tuple(_short(share) for share in answer.sure) for answer in found)
            wrong = tuple(
                sum(a != b for a, b in zip(items, true, strict=True))
                for items, true in zip(said, truth, strict=True)
            )
            told.append(ToldFigure(name, said, sure, wrong))
        return StoryFigures(
            text=text,
            clauses=tuple(
                ClauseFigure(c.start, c.end, tuple(s.text for s in c.told), c.fault)
                for c in reading.clauses
            ),
            boxes=tuple(LETTERS[: task.boxes]),
            sentences=tuple(s.text for s in reading.told),
            truth=tuple(truth),
            told=tuple(told),
            updates=sum(s.kind != "is" for s in reading.told),
            trained=task.updates,
        )

    def hops(
        self, text: str, model: str, box: str, step: int | None = None, gamma: float | None = None
    ) -> HopsFigures:
        """How a model found what is in a box.

        Args:
            text: as typed.
            model: its name.
            box: which.
            step: after how many sentences; None: all.
            gamma: stands in for the own γ of the exact model.
        """
        reading = self.read(text)
        answers = self.answers(model)
        asked = answers.model
        letters = LETTERS[: asked.task.boxes]
        if len(box) != 1 or box not in letters:
            raise ValueError(f"box is {box!r}; expected one of {', '.join(letters)}")
        gamma = _own_gamma(asked, _check_gamma(gamma))
        answer, row, told = self._answered(reading, answers, step, gamma)
        count = len(told)
        place = letters.index(box)
        question = len(row) - 2 * len(letters) + 2 * place
        tokens = asked.padded([row])
        needs = needed_heads(asked, tokens, [question], [row[question + 1]], gamma)
        with asked.at(gamma):
            views = view_layers(asked.net, tokens)
        layers = tuple(
            _layer(view, len(row), question, need) for view, need in zip(views, needs, strict=True)
        )
        # the layer that composes hops, where there is one
        layer = max(range(len(layers)), key=lambda i: (views[i].gamma is not None, i))
        need = [head.need for head in layers[layer].heads]
        if max(need) < NEEDED:
            # no head is missed where the answer is what a model says of itself ("is empty"); then
            # the head is of interest that the answers to all boxes need
            every = list(range(len(row) - 2 * len(letters), len(row), 2))
            need = needed_heads(asked, tokens, every, [row[at + 1] for at in every], gamma)[layer]
        return HopsFigures(
            model=model,
            gamma=gamma,
            tokens=_tokens(told, [reading.names.get(item, item) for item in answer.items]),
            sentence=(-1, *(i for i, s in enumerate(told) for _ in s.pieces),
                      *(count + i // 2 for i in range(2 * len(letters)))),
            sentences=count,
            question=question,
            box=box,
            answer=reading.names.get(answer.items[place], answer.items[place]),
            truth=states(told, len(letters))[-1][place],
            sure=_short(answer.sure[place]),
            layers=layers,
            layer=layer,
            head=int(np.argmax(need)),
        )  # fmt: skip

    def rows(
        self, text: str, model: str, step: int | None = None, gamma: float | None = None
    ) -> RowsFigures:
        """What every token looks at, in every layer and head; arguments as for `hops`."""
        answers = self.answers(model)
        gamma = _own_gamma(answers.model, _check_gamma(gamma))
        _, row, _ = self._answered(self.read(text), answers, step, gamma)
        with answers.model.at(gamma):
            views = view_layers(answers.model.net, answers.model.padded([row]))
        return RowsFigures(
            tuple(
                tuple(
                    HeadRows(
                        _sparse(view.A[head], len(row)),
                        () if view.S is None else _sparse(view.S[head], len(row)),
                    )
                    for head in range(len(view.A))
                )
                for view in views
            )
        )

    def _answered(
        self, reading: Reading, answers: Answers, step: int | None, gamma: float | None
    ) -> tuple[Answer, list[int], tuple[Sentence, ...]]:
        """The answer after some sentences, the tokens with it, and the sentences as told."""
        if not reading.told:
            raise ValueError("the story has no sentence that can be read; expected one or more")
        count = len(reading.told) if step is None else step
        _check("step", count, 1, len(reading.told))
        story = reading.story[:count]
        answer = answers.after_each(story, gamma)[-1]
        return answer, answers.sequence(story, answer.items), reading.told[:count]

    def chain(self, seed: int, gamma: float | None = None) -> ChainFigures:
        """The pointer grid of a seed, answered by one layer."""
        model = self.chains()
        task = model.task
        _check("seed", seed, 0, LARGEST_SEED)
        gamma = _own_gamma(model, _check_gamma(gamma))
        batch = task.batch("test", seed, 0, 1)
        tokens = torch.from_numpy(batch.tokens)
        told = model.scores(tokens, gamma)[0].argmax(-1).tolist()
        links = batch.tokens[0].tolist()
        routes = []
        for place in range(task.length):
            route = [place]
            while route[-1] >= task.block_size:
                above = route[-1] // task.block_size - 1
                route.append(above * task.block_size + links[route[-1]])
            routes.append(tuple(route))
        every = list(range(task.length))
        needs = needed_heads(model, tokens, every, batch.targets[0].tolist(), gamma)
        with model.at(gamma):
            (view,) = view_layers(model.net, tokens, resolvents=False)
        head = int(np.argmax(needs[0]))
        ways = Ways(view.hops[head].double().numpy(), _gamma_of(view, head), 1)
        paths = [_path(ways.of(place)[0]) for place in range(task.length)]
        return ChainFigures(
            seed=seed,
            gamma=gamma,
            blocks=task.blocks,
            block_size=task.block_size,
            symbols=tuple(task.show(batch.tokens[0])),
            values=tuple(batch.targets[0].tolist()),
            told=tuple(told),
            routes=tuple(routes),
            paths=tuple(paths),
        )


def _layer(view: LayerView, n: int, question: int, needs: Sequence[float]) -> LayerFigure:
    """A layer's heads, asked by one token; the padding behind the first n tokens is left out."""
    heads = []
    for head, need in enumerate(needs):
        hops = view.hops[head, :n, :n].double().numpy()
        gamma = _gamma_of(view, head)
        reached = by_hops(hops, gamma, question)
        lengths = by_length(hops, gamma, question)
        total = reached.sum(0)
        order = [int(at) for at in np.argsort(-total)[:SOURCES] if total[at] >= LEAST]
        heads.append(
            HeadFigure(
                need=_short(need),
                paths=tuple(_path(p) for p in Ways(hops, gamma, PATHS).of(question)),
                sources=tuple(
                    SourceFigure(at, _short(total[at]), _shares(reached[:, at] / total[at]),
                                 _shares(lengths[:, at] / total[at]))
                    for at in order
                ),
                hops=_shares(reached.sum(1)),
                summarised=(
                    _short(1 - float(total.sum()))
                    if isinstance(view.operator, BlockResolvent)
                    else 0.0
                ),
            )
        )  # fmt: skip
    own = None if view.gamma is None else _short(view.gamma[0])
    return LayerFigure(str(view.operator), own, tuple(heads))


def _gamma_of(view: LayerView, head: int) -> float:
    return 0.0 if view.gamma is None else view.gamma[head]


def _path(path: Path) -> PathFigure:
    weights = tuple(_short(weight) for weight in path.weights)
    flows = tuple(_short(flow) for flow in path.flows)
    return PathFigure(path.tokens, weights, flows, _short(path.share))


def _tokens(told: Sequence[Sentence], items: Sequence[str]) -> tuple[str, ...]:
    """The tokens as text: the start, the sentences' pieces, and each box with its answer."""
    found = ["start", *(piece.strip() for sentence in told for piece in sentence.pieces)]
    for letter, item in zip(LETTERS, items, strict=False):
        found += [f"Box {letter}", f"contains the {item}" if item else "is empty"]
    return tuple(found)


def _sparse(rows: Tensor, n: int) -> Sparse:
    return tuple(
        tuple((int(at), _short(row[at])) for at in np.argsort(-row)[:MOST] if row[at] >= LEAST)
        for row in rows[:n, :n].numpy()
    )


def _shares(values: np.ndarray) -> tuple[float, ...]:
    """Rounded, without the zeros at the end."""
    short = [_short(value) for value in values]
    while short and not short[-1]:
        short.pop()
    return tuple(short)


def _short(value: float) -> float:
    return round(float(value), 4)


def _own_gamma(model: Model, gamma: float | None) -> float | None:
    """The γ to ask a model with: only the exact one has a slider, at its own γ it is itself."""
    exact = any(isinstance(operator, Resolvent) for operator in model.operators)
    return gamma if exact and gamma != model.gamma else None


def _check_gamma(gamma: float | None) -> float | None:
    if gamma is not None and not 0 <= gamma <= MOST_GAMMA:
        raise ValueError(f"gamma is {gamma}; expected a number from 0 to {MOST_GAMMA}")
    return gamma


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; expected {low} to {high}")
