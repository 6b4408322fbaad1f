"""Worlds of assignments: chains of names that lead to values, told among others and asked about.

    statement   0        1        2        3        4
    text        a = v1   b = v0   c = a    d = c    e = b
    chain       0        1        0        0        1
    hops        0        0        1        2        1

A world has numbers in place of names and values, so that every form of the task is drawn from the
same one: text for a language model, RULER's form, symbols for a small model from nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Draw = Callable[[], float]

ORDERS = ("forward", "backward", "shuffled")
"""How statements are told: a name after what it is given from, before it, or in any order."""


class Statement(NamedTuple):
    """A name and what it is given: another name, or (`source` is None) its chain's value."""

    name: int
    source: int | None
    chain: int
    hops: int


class World(NamedTuple):
    """What is told and what is asked.

    Attributes:
        statements: in the order in which they are told.
        values: of each chain, all different.
        noise: for every sentence of noise, the number of statements before it, ascending.
        asked: the statements whose names are asked for, in the order of the questions.
    """

    statements: tuple[Statement, ...]
    values: tuple[int, ...]
    noise: tuple[int, ...]
    asked: tuple[Statement, ...]

    def told(self) -> Iterator[Statement | None]:
        """Statements in their order, and None wherever a sentence of noise stands."""
        at = 0
        for number, statement in enumerate(self.statements):
            while at < len(self.noise) and self.noise[at] <= number:
                yield None
                at += 1
            yield statement
        yield from [None] * (len(self.noise) - at)


def free_turns(draw: Draw, statements: int, chains: int) -> list[int]:
    """Whose turn each statement is: every chain begins, then any of them goes on."""
    return [*range(chains), *(int(draw() * chains) for _ in range(statements - chains))]


def equal_turns(draw: Draw, hops: int, chains: int) -> list[int]:
    """The same where every chain has the same number of hops, and begins at any time."""
    return shuffled(draw, [chain for chain in range(chains) for _ in range(hops + 1)])


def draw_world(
    draw: Draw,
    turns: Sequence[int],
    *,
    names: int,
    values: int,
    hops: int | None = None,
    order: str = "forward",
    questions: int = 1,
    noise: int = 0,
) -> World:
    """A world of the statements whose chains are `turns`.

    Args:
        draw: numbers in [0, 1).
        turns: the chain of every statement, from 0.
        names: how many there are to draw from.
        values: how many there are to draw from, one for each chain at least.
        hops: a chain that has so many begins at its value again; None for no limit.
        order: one of `ORDERS`.
        questions: how many names are asked for, at most all.
        noise: sentences that say nothing.
    """
    chains = 1 + max(turns)
    last: dict[int, Statement] = {}
    told: list[Statement] = []
    for name, chain in zip(distinct(draw, names, len(turns)), turns, strict=True):
        before = last.get(chain)
        if before is None or before.hops == hops:
            last[chain] = Statement(name, None, chain, 0)
        else:
            last[chain] = Statement(name, before.name, chain, before.hops + 1)
        told.append(last[chain])
    if order != "forward":
        told = told[::-1] if order == "backward" else shuffled(draw, told)
    return World(
        tuple(told),
        tuple(distinct(draw, values, chains)),
        tuple(sorted(int(draw() * (len(told) + 1)) for _ in range(noise))),
        tuple(told[i] for i in distinct(draw, len(told), min(questions, len(told)))),
    )


def hops_left(world: World, told: bool) -> list[int]:
    """Hops from every asked name to what tells its value.

    Args:
        world: whose questions.
        told: whether answers stand in the text. A name that was answered for tells its value as
            its chain's first statement does, and may be nearer.
    """
    source = {s.name: s.source for s in world.statements}
    answered: set[int] = set()
    left = []
    for statement in world.asked:
        name, count = statement.name, 0
        while name not in answered and (parent := source[name]) is not None:
            name, count = parent, count + 1
        left.append(count)
        if told:
            answered.add(statement.name)
    return left


def distinct(draw: Draw, total: int, count: int) -> list[int]:
    """`count` different numbers below `total`."""
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn[int(draw() * total)] = None
    return list(drawn)


def shuffled(draw: Draw, things: Sequence[T]) -> list[T]:
    """The things in any order."""
    left = list(things)
    return [left.pop(int(draw() * len(left))) for _ in things]
