"""Exact ChaCAL over ranks: Z = V + γ A Z by forward substitution, a rank's rows at a time.

Rank r needs, for its rows, the squares of A against the keys of every earlier rank s, times Z_s.
A square can be computed by either of the two for the same number of bytes: r is sent k and Z of s,
or s is sent q of r and sends back what r's rows see there. Later ranks have more squares than
earlier ones; so the two take turns from chunk to chunk, and all ranks have the same work, though
each holds consecutive tokens. The backward pass is the transposed solve, last rank first, with the
same turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chacal.ops.attend import attend, attend_backward
from chacal.ops.streaming import Adjoint, Rows
from chacal.parallel.chunk import Chunk, Shape
from chacal.parallel.schedule import Message, Program, Task


@dataclass(frozen=True)
class Exact:
    """The exact resolvent; `drop` keeps a token from hopping to itself on the way."""

    drop: bool = False

    def forward_program(self, number: int, shape: Shape) -> Program:
        """Squares of a rank's rows, then its own triangle."""
        tasks: list[Task] = []
        messages: list[Message] = []
        needs: list[tuple[Task, Task]] = []
        solves: dict[int, Task] = {}
        length, B = shape.lengths, shape.heads
        for r in shape.ranks:
            solve = Task("solve", number, r, r, r, B * length[r] ** 2 / 2)
            if solves and not self.drop:
                messages.append(Message("first", number, shape.ranks[0], r, None, solve))
            for s, earlier in solves.items():
                see = Task("see", number, turn(number, r, s), r, s, B * length[r] * length[s])
                tasks.append(see)
                if see.rank == r:
                    size = B * length[s] * (shape.d + shape.d_v)
                    messages.append(Message("keys", number, s, r, earlier, see, size))
                    needs.append((see, solve))
                else:
                    size = B * length[r] * (shape.d_v + 1)
                    messages.append(Message("queries", number, r, s, None, see))
                    messages.append(Message("seen", number, s, r, see, solve, size))
                    needs.append((earlier, see))
            tasks.append(solve)
            solves[r] = solve
        return Program(tasks, messages, needs)

    def backward_program(self, number: int, shape: Shape) -> Program:
        """The triangle of a rank's rows, then what they send to earlier keys."""
        tasks: list[Task] = []
        messages: list[Message] = []
        needs: list[tuple[Task, Task]] = []
        length, B, d, d_v = shape.lengths, shape.heads, shape.d, shape.d_v
        solves = {r: Task("solve", number, r, r, r, B * length[r] ** 2) for r in shape.ranks}
        for r in reversed(shape.ranks):
            tasks.append(solves[r])
            finish = Task("finish", number, r, r, r, 0.0)
            needs.append((solves[r], finish))
            for s in reversed(shape.ranks[: shape.ranks.index(r)]):
                at = turn(number, r, s)
                see = Task("see", number, at, r, s, 2 * B * length[r] * length[s])
                tasks.append(see)
                if at == r:
                    size = B * length[s] * (d + d_v)
                    messages.append(Message("keys", number, s, r, None, see))
                    messages.append(Message("dkeys", number, r, s, see, solves[s], size))
                    needs += [(solves[r], see), (see, finish)]
                else:
                    size = B * length[r] * (d + 2 * d_v + 2)
                    messages.append(Message("rows", number, r, s, solves[r], see, size))
                    size = B * length[r] * d
                    messages.append(Message("dqueries", number, s, r, see, finish, size))
                    needs.append((see, solves[s]))
            tasks.append(finish)
        return Program(tasks, messages, needs)

    def forward(self, chunk: Chunk) -> ExactForward:
        """This rank's part."""
        return ExactForward(chunk, self.drop)

    def backward(self, chunk: Chunk, dY: Tensor) -> ExactBackward:
        """This rank's part of the gradients."""
        return ExactBackward(chunk, self.drop, dY)


def turn(number: int, rows: int, keys: int) -> int:
    """Which of two ranks computes the square of their rows and keys in this chunk."""
    return rows if (number + rows + keys) % 2 else keys


class ExactForward:
    """Rows of one rank, and squares of others against its keys."""

    def __init__(self, chunk: Chunk, drop: bool) -> None:
        self.chunk, self.drop = chunk, drop
        self._rows: Rows | None = None
        self.k = self.Z = self.q = self.out = chunk.q[:0]

    @property
    def rows(self) -> Rows:
        """Made when it is first needed, and gone when all is done: few chunks are under way."""
        if self._rows is None:
            c = self.chunk
            self._rows = Rows(c.q, c.k, c.v, c.gamma, c.scale, self.drop)
        return self._rows

    def run(self, task: Task) -> None:
        """See `State`."""
        rows, c = self.rows, self.chunk
        if task.kind == "solve":
            rows.v = c.values()
            rows.solve(0, c.q.shape[1])
            c.solved(rows.H, rows.lse)
        elif task.rows == c.rank:
            rows.join(0, c.q.shape[1], *attend(c.q, self.k, self.Z, c.scale))
        else:
            out, lse = attend(self.q, c.k, rows.Z, c.scale)
            self.out = torch.cat([out, lse.unsqueeze(-1)], -1)

    def send(self, message: Message) -> Tensor:
        """See `State`."""
        match message.kind:
            case "first":
                return self.chunk.v[:, :1]
            case "keys":
                return torch.cat([self.chunk.k, self.rows.Z], -1)
            case "queries":
                return self.chunk.q
            case _:
                return self.out

    def expect(self, message: Message) -> tuple[Tensor, tuple[int, ...]]:
        """See `State`."""
        shape = self.chunk.shape
        rows = {"first": 1, "seen": shape.lengths[message.target]}
        width = {
            "first": shape.d_v,
            "keys": shape.d + shape.d_v,
            "queries": shape.d,
            "seen": shape.d_v + 1,
        }
        count = rows.get(message.kind, shape.lengths[message.source])
        return self.chunk.q, (shape.heads, count, width[message.kind])

    def take(self, message: Message, x: Tensor) -> None:
        """See `State`."""
        match message.kind:
            case "first":
                self.chunk.first = x
            case "keys":
                self.k, self.Z = x.split([self.chunk.shape.d, self.chunk.shape.d_v], -1)
            case "queries":
                self.q = x
            case _:
                self.rows.join(0, self.chunk.q.shape[1], x[..., :-1], x[..., -1])

    def finish(self) -> None:
        """See `State`."""
        self._rows = None
        self.k = self.Z = self.q = self.out = self.chunk.q[:0]


class ExactBackward:
    """The transposed solve of one rank's rows, and what rows of others send to its keys."""

    def __init__(self, chunk: Chunk, drop: bool, dY: Tensor) -> None:
        self.chunk, self.drop, self.dY = chunk, drop, dY
        self._adjoint: Adjoint | None = None
        self.received: tuple[Tensor, ...] = ()
        self.made = chunk.q[:0]
        self.dq = self.dk = chunk.q
        self.dv, self.dgamma = chunk.v, chunk.gamma

    @property
    def adjoint(self) -> Adjoint:
        """Made when it is first needed, and gone when all is done."""
        if self._adjoint is None:
            c = self.chunk
            self._adjoint = Adjoint(
                c.q, c.k, c.values(), c.gamma, c.scale, self.drop, c.hops(), c.lse, self.dY
            )
        return self._adjoint

    def run(self, task: Task) -> None:
        """See `State`."""
        adjoint, c = self.adjoint, self.chunk
        if task.kind == "solve":
            adjoint.solve(0, c.q.shape[1])
        elif task.kind == "see" and task.rows == c.rank:
            k, Z = self.received
            dq, dk, G = attend_backward(
                adjoint.W, c.q, k, Z, adjoint.H, adjoint.lse, c.scale, adjoint.shift
            )
            adjoint.dq += dq
            self.made = torch.cat([dk, G], -1)
        elif task.kind == "see":
            q, W, H, lse, shift = self.received
            self.made, dk, G = attend_backward(
                W, q, c.k, adjoint.Z, H, lse[..., 0], c.scale, shift if self.drop else None
            )
            adjoint.dk += dk
            adjoint.G += G

    def send(self, message: Message) -> Tensor:
        """See `State`."""
        adjoint, c = self.adjoint, self.chunk
        match message.kind:
            case "keys":
                return torch.cat([c.k, adjoint.Z], -1)
            case "rows":
                lse = adjoint.lse.unsqueeze(-1)
                shift = torch.zeros_like(lse) if adjoint.shift is None else adjoint.shift
                return torch.cat([c.q, adjoint.W, adjoint.H, lse, shift], -1)
            case _:
                return self.made

    def expect(self, message: Message) -> tuple[Tensor, tuple[int, ...]]:
        """See `State`."""
        shape = self.chunk.shape
        both = shape.d + shape.d_v
        width = {"keys": both, "dkeys": both, "rows": both + shape.d_v + 2, "dqueries": shape.d}
        here = message.kind in ("dkeys", "dqueries")
        count = shape.lengths[message.target if here else message.source]
        return self.chunk.q, (shape.heads, count, width[message.kind])

    def take(self, message: Message, x: Tensor) -> None:
        """See `State`."""
        shape = self.chunk.shape
        match message.kind:
            case "keys":
                self.received = x.split([shape.d, shape.d_v], -1)
            case "rows":
                self.received = x.split([shape.d, shape.d_v, shape.d_v, 1, 1], -1)
            case "dkeys":
                self.adjoint.dk += x[..., : shape.d]
                self.adjoint.G += x[..., shape.d :]
            case _:
                self.adjoint.dq += x

    def finish(self) -> None:
        """See `State`."""
        adjoint = self.adjoint
        self.dq, self.dk, self.dv = adjoint.dq, adjoint.dk, adjoint.G
        self.dgamma = adjoint.dgamma(True)
        self._adjoint, self.received, self.made = None, (), self.dq[:0]
