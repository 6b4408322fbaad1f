"""What a chunk is, and what a sharded operator must say of one: its tasks, its messages, its data.

A chunk is some heads of some sequences, whole ranks' rows of them. A method is an operator on
chunks: it declares a program (schedule.py) for each direction, and makes the state that does one
rank's part of it. `execute` walks through the program of all chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from chacal.parallel.link import Link, Received
from chacal.parallel.schedule import Event, Message, Program, Task


@dataclass(frozen=True)
class Shape:
    """A chunk's sizes, which all ranks know.

    Attributes:
        heads: B of (B, n, d).
        lengths: rows of every rank; a rank without any takes no part.
        d, d_v: widths of keys and values.
    """

    heads: int
    lengths: tuple[int, ...]
    d: int
    d_v: int

    @property
    def n(self) -> int:
        """Rows of all ranks."""
        return sum(self.lengths)

    @property
    def ranks(self) -> list[int]:
        """Those that take part, in the order of the text."""
        return [rank for rank, length in enumerate(self.lengths) if length]

    def offset(self, rank: int) -> int:
        """Rows before a rank's."""
        return sum(self.lengths[:rank])


@dataclass
class Chunk:
    """One rank's part of a chunk.

    Attributes:
        shape: of all ranks' parts.
        rank: whose part it is.
        q, k, v: (B, l, d), (B, l, d) and (B, l, d_v) of the rank's l rows.
        gamma: (B or 1, 1, 1).
        scale: multiplies q·k.
        first: (B, 1, d_v) the first value of all, which the others are counted from: where rows of
            A sum to 1 nothing else changes but the rounding (`from_first` in ops/streaming.py).
        Y: (B, l, d_v) once it is known.
        lse: (B, l) log-sum-exps of rows, once they are known.
        kept: what else the backward pass needs, by name.
    """

    shape: Shape
    rank: int
    q: Tensor
    k: Tensor
    v: Tensor
    gamma: Tensor
    scale: float
    first: Tensor
    Y: Tensor
    lse: Tensor
    kept: dict[str, Any] = field(default_factory=dict)

    def solved(self, H: Tensor, lse: Tensor) -> None:
        """Y and the log-sum-exps, from H = A Z of values that are counted from the first."""
        self.Y.copy_(torch.addcmul(self.first, 1 - self.gamma, H))
        self.lse.copy_(lse)

    def values(self) -> Tensor:
        """v, counted from the first."""
        return self.v - self.first

    def hops(self) -> Tensor:
        """H, from Y."""
        return (self.Y - self.first) / (1 - self.gamma)


class State(Protocol):
    """One rank's part of one chunk in one direction."""

    def run(self, task: Task) -> None:
        """Do it; all messages for it were taken."""

    def send(self, message: Message) -> Tensor:
        """What is sent."""

    def expect(self, message: Message) -> tuple[Tensor, tuple[int, ...]]:
        """What is received: a tensor of the same dtype and device, and the shape."""

    def take(self, message: Message, x: Tensor) -> None:
        """It is here."""

    def finish(self) -> None:
        """Nothing is left to do for this chunk."""


class Gradients(State, Protocol):
    """A state of the backward pass; once finished, it has dq, dk, dv and dγ."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dgamma: Tensor


class Method(Protocol):
    """An operator on chunks."""

    @property
    def drop(self) -> bool:
        """Whether a token may not hop to itself on the way, and inner rows do not sum to 1."""

    def forward_program(self, number: int, shape: Shape) -> Program:
        """What is to be done for the chunk of that number."""

    def backward_program(self, number: int, shape: Shape) -> Program:
        """The same for the gradients."""

    def forward(self, chunk: Chunk) -> State:
        """This rank's part."""

    def backward(self, chunk: Chunk, dY: Tensor) -> Gradients:
        """This rank's part of the gradients."""


def joined(programs: Sequence[Program]) -> Program:
    """One program of those of many chunks."""
    return Program(
        [task for program in programs for task in program.tasks],
        [message for program in programs for message in program.messages],
        [need for program in programs for need in program.needs],
    )


def execute(events: Sequence[Event], link: Link, states: Mapping[int, State]) -> None:
    """Do this rank's part of a program, given its order and the states of chunks by number."""
    own = [
        event
        for event in events
        if link.rank in ((event.rank,) if isinstance(event, Task) else (event.source, event.target))
    ]
    last = {event.chunk: i for i, event in enumerate(own)}
    inbox: dict[Task, list[tuple[Message, Received]]] = {}
    for i, event in enumerate(own):
        state = states[event.chunk]
        if isinstance(event, Task):
            for message, coming in inbox.pop(event, []):
                state.take(message, coming.wait())
            state.run(event)
        elif event.source == link.rank:
            x = state.send(event)
            if x.numel():
                link.send(x, event.target)
        else:
            like, shape = state.expect(event)
            coming = link.receive(like, shape, event.source) if 0 not in shape else Nothing(like)
            inbox.setdefault(event.before, []).append((event, coming))
        if last[event.chunk] == i:
            state.finish()
    link.done()


@dataclass(frozen=True)
class Nothing:
    """What stands for a tensor without numbers, which is not sent."""

    like: Tensor

    def wait(self) -> Tensor:
        """An empty tensor."""
        return self.like.new_empty(0)


def starts(lengths: Sequence[int]) -> list[int]:
    """Where each rank's rows begin, and where the last one's end."""
    return [0, *accumulate(lengths)]
