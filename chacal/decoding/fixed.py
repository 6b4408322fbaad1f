"""The states of fixed size, one for each that grows; `slots.py` says what they have in common."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from chacal.decoding.delta import DeltaState
from chacal.decoding.pattern import PatternState
from chacal.decoding.slots import (
    FixedState,
    fill,
    grown,
    hide,
    like_heads,
    put,
    scores,
    take,
)
from chacal.decoding.states import BlockState, ExactState, RoutedState, TiledState
from chacal.ops.cards import decode_on_card
from chacal.ops.inputs import over_heads
from chacal.ops.pattern import offsets_below
from chacal.ops.view import View


class FixedView(FixedState):
    """Keys and Z that a View sees by themselves, in a ring, and block means of the rest.

    Of exact ChaCAL the ring has a slot for every token.
    """

    def __init__(self, like: Any, capacity: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        exact = isinstance(like, ExactState)
        self.view = View(tile=1, drop=like.drop) if exact else like.view
        self.drop = self.view.drop
        super().__init__(like, capacity, q, k, v)

    # a class's own tuple elsewhere; here the view tells
    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """A pooled view has means too."""
        return ("k", "Z", "mean_k", "mean_Z") if self.view.pool else ("k", "Z")

    def _make(self) -> None:
        tile = self.view.tile
        whole = -(-self.capacity // tile) * tile
        if self.view.window is not None:
            self.ring = min(self.view.window, self.capacity)
        else:
            near = whole if self.view.near is None else (self.view.near + 1) * tile
            self.ring = min(near, whole)
        self.k = self._room(self.key_heads, self.ring, self.d)
        self.Z = self._room(self.heads, self.ring, self.d_v)
        if self.view.pool:
            self.mean_k = self._room(self.key_heads, whole // tile, self.d)
            self.mean_Z = self._room(self.heads, whole // tile, self.d_v)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, t: Tensor
    ) -> Tensor:
        """Y (batch, heads, 1, d_v) of the tokens at places t (batch,)."""
        slot = t % self.ring
        put(self.k, slot, k)
        if self.kernel is not None:
            gammas = gamma[..., 0, 0]
            return decode_on_card(self.kernel, q, v, gammas, self.k, self.Z, t, scale)
        # what stood here is out of sight, but 0 times NaN would be NaN
        put(self.Z, slot, over_heads(v, self.heads))
        H, Z_t = self._solve(q, k, v, gamma, scale, *self._seen(q, scale, t))
        put(self.Z, slot, Z_t)
        if self.view.pool:
            self._pool(t)
        return (1 - gamma) * H

    def _first(self, t: Tensor) -> Tensor:
        """The first key that token t sees by itself, as `View.first_key` has it."""
        if self.view.window is not None:
            return (t - self.view.window + 1).clamp(min=0)
        if self.view.near is None:
            return torch.zeros_like(t)
        return (t // self.view.tile - self.view.near).clamp(min=0) * self.view.tile

    def _seen(self, q: Tensor, scale: float, t: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the past, and its Z."""
        t = t[:, None]
        slots = torch.arange(self.ring, device=t.device)
        place = t - (t - slots) % self.ring  # of the last token that was written there
        hidden = (place < self._first(t)) | (place == t)
        S = hide(scores(q, self.k, scale), hidden)
        if not self.view.pool:
            return S, self.Z
        block = torch.arange(self.mean_k.shape[2], device=t.device)
        # a mean stands for `tile` keys
        S_far = scores(q, self.mean_k, scale) + math.log(self.view.tile)
        S_far = hide(S_far, block * self.view.tile >= self._first(t))
        return torch.cat([S_far, S], -1), torch.cat([self.mean_Z, self.Z], 2)

    def _pool(self, t: Tensor) -> None:
        """The mean of the block that token t is in."""
        tile = self.view.tile
        first = (t // tile * tile) % self.ring
        within = first[:, None] + torch.arange(tile, device=t.device)
        for mean, of in ((self.mean_k, self.k), (self.mean_Z, self.Z)):
            put(mean, t // tile, take(of, within).mean(2, keepdim=True))

    def store(self, rows: slice, state: Any) -> None:
        """Sequences `rows`, from a state that holds their heads one after another."""
        origin, first = state.origin, max(state.origin, state.length - self.ring)
        slots = torch.arange(first, state.length, device=self.k.device) % self.ring
        for mine, buffer in ((self.k, state.k), (self.Z, state.Z)):
            mine[rows, :, slots] = like_heads(buffer, mine)[:, :, first - origin :]
        if self.view.pool and state.mean_k.length:
            fill(self.mean_k, rows, state.mean_k)
            fill(self.mean_Z, rows, state.mean_Z)

    def _restore(self, rows: slice, state: Any) -> None:
        state.origin = self.view.first_key(state.length)
        slots = torch.arange(state.origin, state.length, device=self.k.device) % self.ring
        state.k = grown(self.k[rows][:, :, slots], state.groups)
        state.Z = grown(self.Z[rows][:, :, slots])
        blocks = state.length // self.view.tile
        if self.view.pool and blocks:
            state.mean_k = grown(self.mean_k[rows, :, :blocks], state.groups)
            state.mean_Z = grown(self.mean_Z[rows, :, :blocks])


class FixedRouted(FixedState):
    """All keys and Z, and a summary of each tile's keys, by which a token chooses tiles."""

    names = ("k", "Z", "summary")

    def _make(self) -> None:
        self.view, self.routing = self.like.view, self.like.routing
        tile = self.view.tile
        self.tiles = -(-self.capacity // tile)
        self.parts = min(self.routing.parts, tile)
        self.k = self._room(self.key_heads, self.tiles * tile, self.d)
        self.Z = self._room(self.heads, self.tiles * tile, self.d_v)
        width = self.parts * self.routing.width(self.d)
        self.summary = self._room(self.key_heads, self.tiles, width)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, t: Tensor
    ) -> Tensor:
        """Y (batch, heads, 1, d_v) of the tokens at places t (batch,)."""
        tile, slots = self.view.tile, self.k.shape[2]
        put(self.k, t, k)
        put(self.Z, t, over_heads(v, self.heads))
        far = t // tile - self.view.near  # so many tiles may be chosen
        near = min((self.view.near + 1) * tile, slots)
        at = far.clamp(min=0)[:, None] * tile + torch.arange(near, device=t.device)
        hidden = at >= t[:, None]
        at = at.clamp(max=slots - 1)
        S_near = hide(scores(q, take(self.k, at), scale), hidden)
        Z_near = take(self.Z, at)

        chosen, none = self._choose(q, far)  # (batch, heads, routes)
        at = (chosen[..., None] * tile + torch.arange(tile, device=t.device)).flatten(2)
        keys = take(self.k, at.view(self.batch, self.key_heads, -1))
        S_far = scores(q, keys.view(self.batch, self.heads, -1, self.d), scale)
        S_far = S_far.masked_fill(none.repeat_interleave(tile, -1)[:, :, None], -math.inf)
        S, Z = torch.cat([S_far, S_near], -1), torch.cat([take(self.Z, at), Z_near], 2)

        H, Z_t = self._solve(q, k, v, gamma, scale, S, Z)
        put(self.Z, t, Z_t)
        within = (t // tile * tile)[:, None] + torch.arange(tile, device=t.device)
        put(self.summary, t // tile, self._summary(take(self.k, within)))
        return (1 - gamma) * H

    def _choose(self, q: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, heads, routes) tiles, and where there is none to choose."""
        asked = self.routing.query(q.flatten(0, 1)).unflatten(0, q.shape[:2])
        S = scores(asked, self.summary.unflatten(3, (self.parts, -1)).flatten(2, 3), 1.0)
        S = S.unflatten(3, (self.tiles, self.parts)).amax(-1)
        S = hide(S, torch.arange(self.tiles, device=q.device) >= far[:, None])
        best, chosen = S[:, :, 0].topk(min(self.routing.routes, self.tiles), -1)
        return chosen, best == -math.inf

    def _summary(self, k: Tensor) -> Tensor:
        """(batch, key heads, tiles · tile, d) -> (batch, key heads, tiles, parts · width)."""
        tiles = k.flatten(0, 1).unflatten(1, (-1, self.view.tile))
        return self.routing.summary(tiles).flatten(2).unflatten(0, k.shape[:2])

    def store(self, rows: slice, state: Any) -> None:
        """Sequences `rows`, from a state that holds their heads one after another."""
        fill(self.k, rows, state.k)
        fill(self.Z, rows, state.Z)
        self.summary[rows] = self._summary(self.k[rows])

    def _restore(self, rows: slice, state: Any) -> None:
        state.k = grown(self.k[rows, :, : state.length], state.groups)
        state.Z = grown(self.Z[rows, :, : state.length])


class FixedPattern(FixedState):
    """All keys and Z; a token sees those at fixed offsets."""

    names = ("k", "Z")

    def _make(self) -> None:
        self.k = self._room(self.key_heads, self.capacity, self.d)
        self.Z = self._room(self.heads, self.capacity, self.d_v)
        offsets = offsets_below(self.like.offsets, self.capacity)
        self.offsets = torch.tensor(offsets, dtype=torch.long, device=self.k.device)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, t: Tensor
    ) -> Tensor:
        """Y (batch, heads, 1, d_v) of the tokens at places t (batch,)."""
        at = t[:, None] - self.offsets
        S = hide(scores(q, take(self.k, at.clamp(min=0)), scale), at < 0)
        put(self.k, t, k)
        H, Z_t = self._solve(q, k, v, gamma, scale, S, take(self.Z, at.clamp(min=0)))
        put(self.Z, t, Z_t)
        return (1 - gamma) * H

    def store(self, rows: slice, state: Any) -> None:
        """Sequences `rows`, from a state that holds their heads one after another."""
        slots = slice(state.origin, state.length)
        self.k[rows, :, slots] = like_heads(state.k, self.k)
        self.Z[rows, :, slots] = like_heads(state.Z, self.Z)

    def _restore(self, rows: slice, state: Any) -> None:
        state.k = grown(self.k[rows, :, : state.length], state.groups)
        state.Z = grown(self.Z[rows, :, : state.length])


class FixedBlock(FixedState):
    """Algorithm 1: all keys, V and Z of the current block, a reduced row of every block."""

    names = ("k", "V", "Z", "reduced_Z", "reduced_H")

    def _make(self) -> None:
        self.block_size = self.like.block_size
        blocks = -(-self.capacity // self.block_size)
        self.k = self._room(self.key_heads, blocks * self.block_size, self.d)
        self.V = self._room(self.key_heads, self.block_size, self.d_v)
        self.Z = self._room(self.heads, self.block_size, self.d_v)
        self.reduced_Z = self._room(self.heads, blocks, self.d_v)
        self.reduced_H = self._room(self.heads, blocks, self.d_v)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, t: Tensor
    ) -> Tensor:
        """Y (batch, heads, 1, d_v) of the tokens at places t (batch,)."""
        m, block, within = self.block_size, t // self.block_size, t % self.block_size
        put(self.k, t, k)
        put(self.V, within, v)
        slots = torch.arange(self.k.shape[2], device=t.device)
        S = hide(scores(q, self.k, scale), slots > t[:, None])
        A = torch.softmax(S, -1).unflatten(3, (-1, m))  # (batch, heads, 1, blocks, m)
        index = block.view(-1, 1, 1, 1, 1).expand(*A.shape[:3], 1, m)
        own = A.gather(3, index)[:, :, :, 0]  # of the block's keys
        before = torch.arange(m, device=t.device) < within[:, None]
        # the block before may have left NaN, and 0 times NaN is NaN
        u = own.masked_fill(~before[:, None, None], 0) @ torch.where(
            before[:, None, :, None], self.Z, 0
        )
        A_tt = own.gather(3, within.view(-1, 1, 1, 1).expand(*own.shape[:3], 1))
        Z_t = (over_heads(v, self.heads) + gamma * u) / (1 - gamma * A_tt)
        put(self.Z, within, Z_t)
        H = u + A_tt * Z_t

        opened = self._open_block(A, block)
        known = take(self.reduced_H, block[:, None])
        reduced = torch.where((within == 0).view(-1, 1, 1, 1), opened, known)
        put(self.reduced_H, block, reduced)
        V = self.V[:, :, :1] if self.like.values == "rows" else self.V.mean(2, keepdim=True)
        put(self.reduced_Z, block, over_heads(V, self.heads) + gamma * reduced)
        if self.like.branches == "residual":
            H = reduced
        elif self.like.branches == "both":
            H = H + reduced
        return (1 - gamma) * H

    def _open_block(self, A: Tensor, block: Tensor) -> Tensor:
        """The block's row of the reduced system (Eq. 7), from its first token."""
        blocks = torch.arange(A.shape[3], device=A.device)
        A_res = A.sum(-1) if self.like.columns == "sum" else A.mean(-1)
        return A_res.masked_fill((blocks >= block[:, None])[:, None, None], 0) @ self.reduced_Z

    def store(self, rows: slice, state: Any) -> None:
        """Sequences `rows`, from a state that holds their heads one after another."""
        fill(self.k, rows, state.k)
        fill(self.reduced_H, rows, state.reduced_H)
        if state.reduced_Z.length:
            fill(self.reduced_Z, rows, state.reduced_Z)
        first = state.length // self.block_size * self.block_size - state.origin
        count = state.V.length - first
        # the state that grows has V of every head
        V = state.V.kept()[:, first:].unflatten(0, (-1, self.heads))
        self.V[rows, :, :count] = V[:, :: self.heads // self.key_heads].to(self.V.dtype)
        self.Z[rows, :, :count] = like_heads(state.Z, self.Z)[:, :, first:]

    def _restore(self, rows: slice, state: Any) -> None:
        state.origin = state.length // self.block_size * self.block_size
        count = state.length - state.origin
        state.k = grown(self.k[rows, :, : state.length], state.groups)
        state.V = grown(over_heads(self.V[rows, :, :count], self.heads))
        state.Z = grown(self.Z[rows, :, :count])
        opened = -(-state.length // self.block_size)
        state.reduced_H = grown(self.reduced_H[rows, :, :opened])
        state.reduced_Z = grown(self.reduced_Z[rows, :, : state.length // self.block_size])


class FixedDelta(FixedState):
    """Keys and u of all tokens; the values that come have β as their last column."""

    names = ("k", "u")

    def _make(self) -> None:
        self.k = self._room(self.key_heads, self.capacity, self.d)
        self.u = self._room(self.heads, self.capacity, self.d_v)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, t: Tensor
    ) -> Tensor:
        """Y (batch, heads, 1, d_v) of the tokens at places t (batch,)."""
        v, beta = v[..., :-1], v[..., -1:]
        put(self.k, t, k)
        put(self.u, t, v)  # what stood here is out of sight, but 0 times NaN would be NaN
        slots, t = torch.arange(self.capacity, device=t.device), t[:, None]
        asks = q if self.like.read == "queries" else over_heads(k, self.heads)
        before = torch.softmax(hide(scores(asks, self.k, scale), slots >= t), -1)
        # before the first token there is nothing, of which a softmax is NaN
        held = torch.where(t[:, None, None] > 0, before @ self.u, 0)
        put(self.u, t[:, 0], v - beta * held)
        return torch.softmax(hide(scores(q, self.k, scale), slots > t), -1) @ self.u

    def store(self, rows: slice, state: Any) -> None:
        """Sequences `rows`, from a state that holds their heads one after another."""
        fill(self.k, rows, state.k)
        fill(self.u, rows, state.u)

    def _restore(self, rows: slice, state: Any) -> None:
        state.k = grown(self.k[rows, :, : state.length], state.groups)
        state.u = grown(self.u[rows, :, : state.length])


FIXED: dict[type[Any], type[FixedState]] = {
    ExactState: FixedView,
    TiledState: FixedView,
    RoutedState: FixedRouted,
    PatternState: FixedPattern,
    BlockState: FixedBlock,
    DeltaState: FixedDelta,
}
"""The state of fixed size of each that grows."""
