"""The routed resolvent over ranks: a rank asks earlier ones for the tiles that its rows chose.

Shards begin and end where tiles do (`attention.py` moves the few rows between, there and back).
Earlier ranks first send the summaries of their tiles, one row of numbers for each; from these a
rank chooses, and tells each which of its tiles it wants, head by head. It gets their keys and Z,
and puts them before its own rows, chosen ones in any order and then the near ones, as if they were
the text: from there on it is `ops/routed.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chacal.ops.routing import Far, FarAdjoint, Groups, Routing
from chacal.ops.tiled import Memory, Tiles
from chacal.ops.view import View
from chacal.parallel.chunk import Chunk, Shape
from chacal.parallel.schedule import Message, Program, Task
from chacal.parallel.window import behind, own_gradients, solved_values


@dataclass(frozen=True)
class Routed:
    """The resolvent of near and chosen tiles; `view` has no window."""

    view: View
    routing: Routing

    @property
    def drop(self) -> bool:
        """No: it has no such form."""
        return False

    def forward_program(self, number: int, shape: Shape) -> Program:
        """Choose, ask, answer, solve."""
        tasks: list[Task] = []
        messages: list[Message] = []
        needs: list[tuple[Task, Task]] = []
        solves: dict[int, Task] = {}
        for r in shape.ranks:
            rows = shape.heads * shape.lengths[r]
            seen = shape.offset(r) // self.view.tile * self.routing.parts + 1
            choose = Task("choose", number, r, r, r, float(rows * seen))
            solve = Task("solve", number, r, r, r, float(rows * self._keys(shape)))
            tasks.append(choose)
            needs.append((choose, solve))
            if solves:
                messages.append(Message("first", number, shape.ranks[0], r, None, solve))
            for s, earlier in solves.items():
                answer = Task("answer", number, s, r, s, float(shape.heads * shape.lengths[s]))
                tasks.append(answer)
                needs.append((earlier, answer))
                messages += [
                    Message("summary", number, s, r, None, choose),
                    Message("asked", number, r, s, choose, answer, self._tiles(shape, s)),
                    Message("keys", number, s, r, answer, solve, self._answer(shape, r, s)),
                ]
            tasks.append(solve)
            solves[r] = solve
        return Program(tasks, messages, needs)

    def backward_program(self, number: int, shape: Shape) -> Program:
        """The transposed solve, last rank first."""
        messages: list[Message] = []
        each = 2 * shape.heads * self._keys(shape)
        solves = {
            r: Task("solve", number, r, r, r, float(each * shape.lengths[r])) for r in shape.ranks
        }
        for r in reversed(shape.ranks):
            for s in shape.ranks[: shape.ranks.index(r)]:
                size = self._answer(shape, r, s)
                messages += [
                    Message("keys", number, s, r, None, solves[r]),
                    Message("dkeys", number, r, s, solves[r], solves[s], size),
                ]
        return Program(list(reversed(solves.values())), messages)

    def _keys(self, shape: Shape) -> int:
        """Keys that a row sees, about."""
        return min(shape.n, self.view.tile * ((self.view.near or 0) + 1 + self.routing.routes))

    def _tiles(self, shape: Shape, rank: int) -> int:
        return shape.heads * (shape.lengths[rank] // self.view.tile)

    def _answer(self, shape: Shape, r: int, s: int) -> float:
        """Numbers that s sends to r at most, if rows choose evenly among earlier ranks."""
        chosen = shape.lengths[r] * self.routing.routes / max(1, shape.ranks.index(r))
        tiles = min(shape.lengths[s] / self.view.tile, chosen)
        return shape.heads * tiles * self.view.tile * (shape.d + shape.d_v)

    def forward(self, chunk: Chunk) -> RoutedForward:
        """This rank's part."""
        return RoutedForward(self, chunk)

    def backward(self, chunk: Chunk, dY: Tensor) -> RoutedBackward:
        """This rank's part of the gradients."""
        return RoutedBackward(self, chunk, dY)


@dataclass
class Choice:
    """What a rank's rows chose, and where it stands before them.

    Attributes:
        asked: (B, tiles before the rank) whether a tile is needed.
        place: (B, all tiles up to the rank's last) where a tile stands in this rank's order.
        chosen: (B, l, routes) by those places; -1 for none.
        before: tiles that stand before the rank's own.
    """

    asked: Tensor
    place: Tensor
    chosen: Tensor
    before: int


def choose(method: Routed, c: Chunk, summaries: list[Tensor]) -> Choice:
    """Choose, given the summaries of all tiles up to the rank's last."""
    tile, rows = method.view.tile, c.shape.offset(c.rank)
    earlier = rows // tile
    chosen = method.routing.choose(c.q, torch.cat(summaries, 1), method.view, rows)
    B, tiles = c.q.shape[0], earlier + -(-c.q.shape[1] // tile)
    asked = torch.zeros(B, tiles + 1, dtype=torch.bool, device=c.q.device)
    asked.scatter_(1, torch.where(chosen >= 0, chosen, tiles).flatten(1), True)
    near = min(method.view.near or 0, earlier)
    far = asked[:, : earlier - near]
    most = int(far.sum(1).amax()) if far.shape[1] else 0
    place = torch.arange(tiles, device=c.q.device) + most - (earlier - near)
    place = place.expand(B, -1).clone()
    place[:, : earlier - near] = far.cumsum(1) - 1
    asked[:, earlier - near :] = True
    there = place.gather(1, chosen.clamp(min=0).flatten(1)).view_as(chosen)
    return Choice(asked[:, :earlier], place, torch.where(chosen >= 0, there, -1), most + near)


class Tiled:
    """What both directions share: whole tiles that are sent, and where they are put."""

    def __init__(self, method: Routed, chunk: Chunk) -> None:
        self.method, self.chunk = method, chunk
        self.tile = method.view.tile
        self.parts: dict[int, Tensor] = {}

    @property
    def choice(self) -> Choice:
        """This rank's."""
        found: Choice = self.chunk.kept["choice"]
        return found

    def asked_of(self, rank: int) -> Tensor:
        """(B, tiles of that rank) what this rank asked it for."""
        first = self.chunk.shape.offset(rank) // self.tile
        return self.choice.asked[:, first : first + self.chunk.shape.lengths[rank] // self.tile]

    def asked_by(self, rank: int) -> Tensor:
        """(B, tiles of this rank) what a later rank asked it for."""
        found: Tensor = self.chunk.kept[f"asked by {rank}"]
        return found

    def tiles(self, x: Tensor) -> Tensor:
        """(B, l, d) -> (B, whole tiles, tile, d)."""
        whole = x.shape[1] // self.tile
        return x[:, : whole * self.tile].unflatten(1, (whole, self.tile))

    def answer(self, Z: Tensor, rank: int) -> Tensor:
        """Keys and solved values of the tiles that a later rank asked for."""
        return self.tiles(torch.cat([self.chunk.k, Z], -1))[self.asked_by(rank)]

    def expected(self, asked: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """So many tiles."""
        shape = self.chunk.shape
        return self.chunk.q, (int(asked.sum()), self.tile, shape.d + shape.d_v)

    def places(self, rank: int) -> tuple[Tensor, Tensor]:
        """Where the tiles asked of a rank stand: (which of B, which tile) of each."""
        heads, tiles = self.asked_of(rank).nonzero(as_tuple=True)
        return heads, self.choice.place[heads, tiles + self.chunk.shape.offset(rank) // self.tile]

    def before(self) -> tuple[Tensor, Tensor]:
        """Keys and solved values that stand before the rank's own rows."""
        shape = self.chunk.shape
        x = self.chunk.q.new_zeros(shape.heads, self.choice.before, self.tile, shape.d + shape.d_v)
        for rank, part in self.parts.items():
            if part.numel():
                x[self.places(rank)] = part
        k, Z = x.flatten(1, 2).split([shape.d, shape.d_v], -1)
        return k, Z

    def chosen(self) -> Tensor:
        """(B, rows before and own, routes)."""
        own = self.choice.chosen
        rows = self.choice.before * self.tile
        return torch.cat([own.new_full((own.shape[0], rows, own.shape[2]), -1), own], 1)


class RoutedForward(Tiled):
    """Rows of one rank behind the tiles that it asked for."""

    def __init__(self, method: Routed, chunk: Chunk) -> None:
        super().__init__(method, chunk)
        self.summaries: dict[int, Tensor] = {}
        self.Z = chunk.v[:, :0]

    def run(self, task: Task) -> None:
        """See `State`."""
        if task.kind == "choose":
            # in the order of the text
            given = [self.summaries[rank] for rank in sorted(self.summaries)]
            own = self.method.routing.summary(self.tiles(self.chunk.k))
            self.chunk.kept["choice"] = choose(self.method, self.chunk, [*given, own])
            self.summaries = {}
        elif task.kind == "solve":
            self._solve()

    def _solve(self) -> None:
        c, view, tile = self.chunk, self.method.view, self.tile
        k, Z = self.before()
        before = k.shape[1]
        q = torch.cat([c.q.new_zeros(c.q.shape[0], before, c.q.shape[2]), c.q], 1)
        k = torch.cat([k, c.k], 1)
        far = Far(q, k, c.v.shape[2], c.scale, tile, self.chosen())
        memory = Memory(k, torch.cat([Z, torch.empty_like(c.v)], 1), k[:, :0], Z[:, :0])
        for J in range(self.choice.before):
            far.push(J, Z[:, J * tile : (J + 1) * tile])
        tiles = Tiles(view, memory, c.gamma, c.scale)
        v, H, lse = c.values(), torch.empty_like(c.v), torch.empty_like(c.lse)
        for a, b in view.tiles(before, k.shape[1]):
            own = slice(a - before, b - before)
            seen = far.out[:, a:b], far.lse[:, a:b]
            H[:, own] = tiles.step(c.q[:, own], v[:, own], a, b, seen, lse[:, own])
            if b - a == tile:
                far.push(a // tile, memory.Z[:, a:b])
        c.solved(H, lse)
        self.Z = memory.Z[:, before:]

    def send(self, message: Message) -> Tensor:
        """See `State`."""
        match message.kind:
            case "first":
                return self.chunk.v[:, :1]
            case "summary":
                return self.method.routing.summary(self.tiles(self.chunk.k))
            case "asked":
                return self.asked_of(message.target).to(torch.uint8)
            case _:
                return self.answer(self.Z, message.target)

    def expect(self, message: Message) -> tuple[Tensor, tuple[int, ...]]:
        """See `State`."""
        c = self.chunk
        B, tiles = c.shape.heads, c.shape.lengths[message.source] // self.tile
        match message.kind:
            case "first":
                return c.q, (B, 1, c.shape.d_v)
            case "summary":
                parts = min(self.method.routing.parts, self.tile)
                each = c.shape.d * (1 if self.method.routing.score == "mean" else 2)
                return c.q, (B, tiles, parts, each)
            case "asked":
                own = c.shape.lengths[c.rank] // self.tile
                return c.q.new_empty(0, dtype=torch.uint8), (B, own)
            case _:
                return self.expected(self.asked_of(message.source))

    def take(self, message: Message, x: Tensor) -> None:
        """See `State`."""
        match message.kind:
            case "first":
                self.chunk.first = x
            case "summary":
                self.summaries[message.source] = x
            case "asked":
                self.chunk.kept[f"asked by {message.source}"] = x.bool()
            case _:
                self.parts[message.source] = x

    def finish(self) -> None:
        """See `State`."""
        self.parts, self.Z = {}, self.chunk.v[:, :0]


class RoutedBackward(Tiled):
    """The transposed solve of one rank's rows."""

    def __init__(self, method: Routed, chunk: Chunk, dY: Tensor) -> None:
        super().__init__(method, chunk)
        self.dY = dY
        self.received: dict[int, Tensor] = {}
        self.sent = chunk.q[:0]
        self.dq = self.dk = chunk.q
        self.dv, self.dgamma = chunk.v, chunk.gamma

    def run(self, task: Task) -> None:
        """See `State`."""
        c, view, tile = self.chunk, self.method.view, self.tile
        k, Z = self.before()
        before = k.shape[1]
        close = behind(view, c, k, Z, self.dY)
        far = FarAdjoint(close, Groups(self.chosen(), tile))
        for rank, x in self.received.items():
            if x.numel():
                dk, G = x.split([c.shape.d, c.shape.d_v], -1)
                asked = self.asked_by(rank).nonzero(as_tuple=True)
                self.tiles(close.dk[:, before:])[asked] += dk
                self.tiles(close.G[:, before:])[asked] += G
        for a, b in reversed(list(view.tiles(before, before + c.q.shape[1]))):
            if b - a == tile:
                far.pull(a // tile, close.Z[:, a:b], close.G[:, a:b], close.dk[:, a:b])
            far.delta[:, a:b] = close.step(a, b, far=True)[..., 0]
        for J in range(self.choice.before):
            at = slice(J * tile, (J + 1) * tile)
            far.pull(J, close.Z[:, at], close.G[:, at], close.dk[:, at])
        self.sent = self.tiles(torch.cat([close.dk[:, :before], close.G[:, :before]], -1))
        self.dq, self.dk, self.dv, self.dgamma = own_gradients(close, before)

    def send(self, message: Message) -> Tensor:
        """See `State`."""
        if message.kind == "dkeys":
            return self.sent[self.places(message.target)]
        return self.answer(solved_values(self.chunk, False, self.chunk.q.shape[1]), message.target)

    def expect(self, message: Message) -> tuple[Tensor, tuple[int, ...]]:
        """See `State`."""
        if message.kind == "dkeys":
            return self.expected(self.asked_by(message.source))
        return self.expected(self.asked_of(message.source))

    def take(self, message: Message, x: Tensor) -> None:
        """See `State`."""
        (self.received if message.kind == "dkeys" else self.parts)[message.source] = x

    def finish(self) -> None:
        """See `State`."""
        self.parts, self.received, self.sent = {}, {}, self.dq[:0]
