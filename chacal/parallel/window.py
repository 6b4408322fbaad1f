"""The window's resolvent over ranks: a rank needs the last rows before its own, and no more.

Its keys stand behind those `window - 1` (fewer at the beginning of the text), and the recursion of
`ops/tiled.py` runs over its own rows alone. Rank r + 1 can begin with a chunk when rank r is done
with it, so ranks stand in a pipeline; the backward pass goes through it the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chacal.ops.tiled import Memory, Tiles, TilesAdjoint
from chacal.ops.view import View
from chacal.parallel.chunk import Chunk, Shape
from chacal.parallel.schedule import Message, Program, Task


@dataclass(frozen=True)
class Window:
    """The resolvent of a View with a window."""

    view: View

    @property
    def drop(self) -> bool:
        """Whether a token may not hop to itself on the way."""
        return self.view.drop

    def needed(self, shape: Shape, rank: int) -> list[tuple[int, int]]:
        """(rank, rows): of which earlier ranks a rank needs how many of the last rows."""
        first = shape.offset(rank) - (self.view.window or 1) + 1
        found = []
        for other in shape.ranks[: shape.ranks.index(rank)]:
            end = shape.offset(other) + shape.lengths[other]
            if end > first:
                found.append((other, min(shape.lengths[other], end - first)))
        return found

    def forward_program(self, number: int, shape: Shape) -> Program:
        """One rank after another."""
        tasks = self._tasks(number, shape)
        width = shape.heads * (shape.d + shape.d_v)
        messages = []
        for r, task in tasks.items():
            if r != shape.ranks[0] and not self.drop:
                messages.append(Message("first", number, shape.ranks[0], r, None, task))
            for s, rows in self.needed(shape, r):
                messages.append(Message("keys", number, s, r, tasks[s], task, width * rows))
        return Program(list(tasks.values()), messages)

    def backward_program(self, number: int, shape: Shape) -> Program:
        """The other way."""
        tasks = self._tasks(number, shape)
        width = shape.heads * (shape.d + shape.d_v)
        messages = []
        for r in reversed(tasks):
            for s, rows in self.needed(shape, r):
                size = width * rows
                messages.append(Message("keys", number, s, r, None, tasks[r]))
                messages.append(Message("dkeys", number, r, s, tasks[r], tasks[s], size))
        return Program(list(reversed(tasks.values())), messages)

    def _tasks(self, number: int, shape: Shape) -> dict[int, Task]:
        each = shape.heads * min(shape.n, self.view.window or 1)
        return {
            r: Task("solve", number, r, r, r, float(each * shape.lengths[r])) for r in shape.ranks
        }

    def forward(self, chunk: Chunk) -> WindowForward:
        """This rank's part."""
        return WindowForward(self, chunk)

    def backward(self, chunk: Chunk, dY: Tensor) -> WindowBackward:
        """This rank's part of the gradients."""
        return WindowBackward(self, chunk, dY)


class Halo:
    """The rows before a rank's own that it needs, as they come in."""

    def __init__(self, method: Window, chunk: Chunk) -> None:
        self.chunk = chunk
        self.counts = dict(method.needed(chunk.shape, chunk.rank))
        self.parts: dict[int, Tensor] = {}

    def expect(self, message: Message) -> tuple[Tensor, tuple[int, ...]]:
        """How much comes from a rank."""
        shape = self.chunk.shape
        return self.chunk.q, (shape.heads, self.counts[message.source], shape.d + shape.d_v)

    def joined(self) -> tuple[Tensor, Tensor]:
        """Keys and solved values of those rows."""
        shape = self.chunk.shape
        if not self.parts:
            return self.chunk.k[:, :0], self.chunk.v[:, :0]
        k, Z = torch.cat([self.parts[s] for s in self.counts], 1).split([shape.d, shape.d_v], -1)
        return k, Z


def last_rows(x: Tensor, Z: Tensor, rows: int) -> Tensor:
    """Keys and solved values of a rank's last rows, as they are sent."""
    return torch.cat([x[:, x.shape[1] - rows :], Z[:, Z.shape[1] - rows :]], -1)


class WindowForward:
    """Rows of one rank behind those that it needs."""

    def __init__(self, method: Window, chunk: Chunk) -> None:
        self.method, self.chunk = method, chunk
        self.halo = Halo(method, chunk)
        self.Z = chunk.v[:, :0]

    def run(self, task: Task) -> None:
        """See `State`."""
        c, view = self.chunk, self.method.view
        k, Z = self.halo.joined()
        before = k.shape[1]
        memory = Memory(
            torch.cat([k, c.k], 1), torch.cat([Z, torch.empty_like(c.v)], 1), k[:, :0], Z[:, :0]
        )
        tiles = Tiles(view, memory, c.gamma, c.scale)
        v, H, lse = c.values(), torch.empty_like(c.v), torch.empty_like(c.lse)
        for a, b in view.tiles(before, before + c.q.shape[1]):
            own = slice(a - before, b - before)
            H[:, own] = tiles.step(c.q[:, own], v[:, own], a, b, lse=lse[:, own])
        c.solved(H, lse)
        self.Z = memory.Z[:, before:]

    def send(self, message: Message) -> Tensor:
        """See `State`."""
        c = self.chunk
        if message.kind == "first":
            return c.v[:, :1]
        return last_rows(c.k, self.Z, _asked(self.method, c.shape, message))

    def expect(self, message: Message) -> tuple[Tensor, tuple[int, ...]]:
        """See `State`."""
        if message.kind == "first":
            return self.chunk.q, (self.chunk.shape.heads, 1, self.chunk.shape.d_v)
        return self.halo.expect(message)

    def take(self, message: Message, x: Tensor) -> None:
        """See `State`."""
        if message.kind == "first":
            self.chunk.first = x
        else:
            self.halo.parts[message.source] = x

    def finish(self) -> None:
        """See `State`."""
        self.halo.parts, self.Z = {}, self.chunk.v[:, :0]


class WindowBackward:
    """The transposed solve of one rank's rows."""

    def __init__(self, method: Window, chunk: Chunk, dY: Tensor) -> None:
        self.method, self.chunk, self.dY = method, chunk, dY
        self.halo = Halo(method, chunk)
        self.received: list[Tensor] = []
        self.sent: dict[int, Tensor] = {}
        self.dq = self.dk = chunk.q
        self.dv, self.dgamma = chunk.v, chunk.gamma

    def run(self, task: Task) -> None:
        """See `State`."""
        c, view = self.chunk, self.method.view
        k, Z = self.halo.joined()
        before = k.shape[1]
        adjoint = behind(view, c, k, Z, self.dY)
        for x in self.received:
            adjoint.dk[:, -x.shape[1] :] += x[..., : c.shape.d]
            adjoint.G[:, -x.shape[1] :] += x[..., c.shape.d :]
        for a, b in reversed(list(view.tiles(before, before + c.q.shape[1]))):
            adjoint.step(a, b)
        theirs = torch.cat([adjoint.dk[:, :before], adjoint.G[:, :before]], -1)
        self.sent = dict(
            zip(self.halo.counts, theirs.split(list(self.halo.counts.values()), 1), strict=True)
        )
        self.dq, self.dk, self.dv, self.dgamma = own_gradients(adjoint, before)

    def send(self, message: Message) -> Tensor:
        """See `State`."""
        c = self.chunk
        if message.kind == "dkeys":
            return self.sent[message.target]
        rows = _asked(self.method, c.shape, message)
        return last_rows(c.k, solved_values(c, self.method.drop, rows), rows)

    def expect(self, message: Message) -> tuple[Tensor, tuple[int, ...]]:
        """See `State`."""
        if message.kind == "keys":
            return self.halo.expect(message)
        shape = self.chunk.shape
        rows = dict(self.method.needed(shape, message.source))[message.target]
        return self.chunk.q, (shape.heads, rows, shape.d + shape.d_v)

    def take(self, message: Message, x: Tensor) -> None:
        """See `State`."""
        if message.kind == "keys":
            self.halo.parts[message.source] = x
        else:
            self.received.append(x)

    def finish(self) -> None:
        """See `State`."""
        self.halo.parts, self.received, self.sent = {}, [], {}


def _asked(method: Window, shape: Shape, message: Message) -> int:
    """How many of the last rows a message has."""
    return dict(method.needed(shape, message.target))[message.source]


def solved_values(c: Chunk, drop: bool, rows: int) -> Tensor:
    """Z of a rank's last rows, from what the forward pass left."""
    at = slice(c.q.shape[1] - rows, None)
    Z = c.values()[:, at] + c.gamma * c.hops()[:, at]
    if drop:
        own = ((c.q[:, at] * c.k[:, at]).sum(-1) * c.scale - c.lse[:, at]).exp()
        Z = Z / (1 + c.gamma * own.unsqueeze(-1))
    return Z


def behind(view: View, c: Chunk, k: Tensor, Z: Tensor, dY: Tensor) -> TilesAdjoint:
    """The backward recursion of a rank's rows behind others, given by their keys and Z.

    Those others have no queries and no hops, so that v + γ H is their Z; their log-sum-exps are
    infinite, so that no weight is theirs.
    """
    before = k.shape[1]

    def padded(x: Tensor, value: float = 0.0) -> Tensor:
        new = x.new_full((x.shape[0], before + x.shape[1], *x.shape[2:]), value)
        new[:, before:] = x
        return new

    return TilesAdjoint(
        view, padded(c.q), torch.cat([k, c.k], 1), torch.cat([Z, c.values()], 1), c.gamma, c.scale,
        padded(c.Y - c.first), 0.0, padded(c.lse, torch.inf), padded(dY), True,
    )  # fmt: skip


def own_gradients(adjoint: TilesAdjoint, before: int) -> Sequence[Tensor]:
    """dq, dk, dv and dγ of the rows behind the first `before`."""
    dq, dk, G = (x[:, before:] for x in (adjoint.dq, adjoint.dk, adjoint.G))
    return dq, dk, G, adjoint.dgamma()
