"""What each operator remembers of a sequence, so that it can go on from there.

A state holds (B, n, d) buffers, all of B at the same length; `decoder.py` gives them to users.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from chacal.decoding.buffers import Buffer, BufferedState
from chacal.ops import cards
from chacal.ops.attend import row_lse, score_pieces
from chacal.ops.cards import Kernel
from chacal.ops.routed import solve
from chacal.ops.routing import Routing, attend_chosen
from chacal.ops.streaming import Rows
from chacal.ops.tiled import Memory, Tiles
from chacal.ops.view import View

ROLLBACK = 64
"""Tokens that `crop` can take back, by default, from a state that forgets."""


class State(Protocol):
    """What an operator remembers of (B, n, d) tokens; all of B at the same length."""

    length: int
    kernel: Kernel | None

    def share_keys(self, groups: int) -> None:
        """Keep the keys of every `groups` rows of B once; before the first token."""

    def extend(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """Outputs (B, c, d_v) of c new tokens."""

    def remembers(self, length: int) -> bool:
        """Whether it could `crop` to `length` tokens."""

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on; `remembers(length)` must hold."""

    def select(self, index: Tensor) -> State:
        """A copy with rows `index` of B, in that order."""

    def tensors(self) -> list[Tensor]:
        """All that is kept."""

    def now(self) -> dict[str, Any]:
        """What `back_to` needs to undo all that comes; nothing is copied."""

    def back_to(self, then: dict[str, Any]) -> None:
        """Be as it was when `now` was asked."""


class ExactState(BufferedState):
    """Keys and Z of all tokens; with γ = 0, Z is V and this is ordinary attention's cache."""

    names = ("k", "Z")
    k: Buffer
    Z: Buffer

    def __init__(self, drop: bool = False) -> None:
        super().__init__()
        self.drop, self.kernel = drop, Kernel(drop)

    def extend(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """Outputs (B, c, d_v) of c new tokens."""
        past, count = self.length, q.shape[1]
        if (count == 1 or not past) and cards.fits(q, v):
            return on_card(self, q, k, v, gamma, scale)
        if count == 1:
            return (1 - gamma) * self._one_row(q, k, v, gamma, scale)
        rows = Rows(q, self.k.append(k), v, gamma, scale, self.drop, self.Z.append(v))
        if past:
            rows.see(0, count, 0, past)
        rows.solve(0, count)
        self.length += count
        return (1 - gamma) * rows.H

    def _one_row(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """H of a single token: u = Σ_{s<t} A_ts Z_s, Z_t = (V_t + γu) / (1 - γA_tt)."""
        # one row of scores is no more than a key's worth of numbers: no kernel need avoid it; and
        # keys times a vector is faster than a vector times keys
        self.k.add(k)
        keys = self.k.kept()  # rows that share their keys meet them together, and nothing is copied
        sharing = q.shape[0] // max(1, keys.shape[0])
        q_t = (q * scale).reshape(keys.shape[0], sharing, q.shape[2])
        A_t = torch.softmax(torch.bmm(keys, q_t.mT).mT, -1).reshape(q.shape[0], 1, keys.shape[1])
        A_tt = A_t[..., -1:]
        past = self.length
        u = torch.bmm(A_t[..., :past], self.Z.view()) if past else torch.zeros_like(v)
        Z_t = torch.addcmul(v, u, gamma)
        if not self.drop:
            Z_t /= 1 - gamma * A_tt
        self.Z.add(Z_t)
        self.length += 1
        return torch.addcmul(u, A_tt, Z_t)

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.k.crop(length)
        self.Z.crop(length)
        self.length = length


def on_card(state: Any, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
    """Y (B, c, d_v) by the state's kernel, of the first tokens or of one more."""
    past, count = state.k.length, q.shape[1]
    state.k.add(k)
    gamma, shared_v = gamma.view(1, -1), v[None, :: state.groups]
    if count > 1:
        keys = k[None, :: state.groups]
        Y, Z = cards.solve_on_card(state.kernel, q[None], keys, shared_v, gamma, scale)
        state.Z.add(Z[0])
    else:
        state.Z.add(v)  # room, to which the kernel writes
        lengths = torch.full((1,), past, device=q.device)
        Y = cards.decode_on_card(
            state.kernel, q[None], shared_v, gamma, state.k.slots[None], state.Z.slots[None],
            lengths, scale,
        )  # fmt: skip
    state.length += count
    return Y[0]


class TiledState(BufferedState):
    """What a View still sees: near keys and Z, and block means of the rest."""

    names: tuple[str, ...] = ("k", "Z", "mean_k", "mean_Z")
    k: Buffer
    Z: Buffer
    mean_k: Buffer
    mean_Z: Buffer

    def __init__(self, view: View, rollback: int = ROLLBACK) -> None:
        super().__init__()
        self.view, self.rollback = view, rollback
        if view.window is not None:
            self.kernel = Kernel(view.drop, view.window)

    def extend(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """Outputs (B, c, d_v) of c new tokens."""
        fits = self.kernel is not None and cards.fits(q, v)
        if fits and (q.shape[1] == 1 or not self.length):
            Y = on_card(self, q, k, v, gamma, scale)
        else:
            Y = (1 - gamma) * self._extend(q, k, v, gamma, scale)
        keep = self._oldest_needed(max(0, self.length - self.rollback))
        if keep - self.origin >= self.view.tile:  # a tile at a time, not a copy for every token
            self.k.drop_front(keep - self.origin)
            self.Z.drop_front(keep - self.origin)
            self.origin = keep
        return Y

    def _extend(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """H (B, c, d_v) of c new tokens."""
        first, last = self.length, self.length + q.shape[1]
        keys, Z = self.k.append(k), self.Z.append(v)
        mean_k, mean_Z = self._means(keys, v, last)
        tiles = Tiles(self.view, Memory(keys, Z, mean_k, mean_Z, self.origin), gamma, scale)
        H = torch.empty_like(v)
        for a, b in self.view.runs(first, last):
            at = slice(a - first, b - first)
            far = self._far(q[:, at], a, scale)
            H[:, at] = tiles.step(q[:, at], v[:, at], a, b, far)
        self.length = last
        return H

    def remembers(self, length: int) -> bool:
        """Whether every key that token `length` would see is kept."""
        return not length or self._oldest_needed(length) >= self.origin

    def _oldest_needed(self, length: int) -> int:
        """The first key that a token from position `length` on may see by itself."""
        return self.view.first_key(length)

    def _far(self, q: Tensor, a: int, scale: float) -> tuple[Tensor, Tensor] | None:
        """What rows from a on see beyond the view: outputs and log-sum-exps."""
        return None

    def _means(self, keys: Tensor, v: Tensor, last: int) -> tuple[Tensor, Tensor]:
        """Mean keys up to position `last`, and room for their values, which come as tiles end."""
        if not self.view.pool:
            return keys[:, :0], v[:, :0]
        tile = self.view.tile
        whole, known = last // tile, self.length // tile
        at = slice(known * tile - self.origin, whole * tile - self.origin)
        new = keys[:, at].unflatten(1, (whole - known, tile)).mean(2)
        room = v.new_zeros(v.shape[0], whole - known, v.shape[2])
        return self.mean_k.append(new), self.mean_Z.append(room)

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        if not length:
            self.clear()
            return
        self.k.crop(length - self.origin)
        self.Z.crop(length - self.origin)
        if self.view.pool:
            self.mean_k.crop(length // self.view.tile)
            self.mean_Z.crop(length // self.view.tile)
        self.length = length


class RoutedState(TiledState):
    """All keys and Z, since any tile may be chosen again, and a summary of each tile's keys."""

    names = (*TiledState.names, "summary")
    summary: Buffer

    def __init__(self, view: View, routing: Routing) -> None:
        super().__init__(view)
        self.routing = routing

    def _oldest_needed(self, length: int) -> int:
        return 0

    def _extend(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        if self.length or q.shape[1] < 2 * self.view.tile:
            return super()._extend(q, k, v, gamma, scale)
        # a prompt: rows that choose the same tile share it, and none gathers keys for itself
        H, _, _ = solve(q, k, v, gamma, scale, self.view, self.routing)
        self.k.add(k)
        self.Z.add(torch.addcmul(v, H, gamma))
        self.length = q.shape[1]
        return H

    def _far(self, q: Tensor, a: int, scale: float) -> tuple[Tensor, Tensor] | None:
        tile, tiles = self.view.tile, self.view.far_tiles(a)
        if not tiles:
            return None
        k, Z = self.k.view(), self.Z.view()
        known = self.summary.length
        if known < tiles:
            new = k[:, known * tile : tiles * tile].unflatten(1, (-1, tile))
            self.summary.append(self.routing.summary(new).flatten(2))
        summary = self.summary.view().unflatten(2, (min(self.routing.parts, tile), -1))
        chosen = self.routing.choose(q, summary, self.view, a)
        return attend_chosen(q, k, Z, scale, tile, chosen)

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        super().crop(length)
        self.summary.crop(min(self.summary.length, length // self.view.tile))


class BlockState(BufferedState):
    """Algorithm 1 with rows="first": all keys, V and Z of the current block, one reduced Z each.

    A block's Ṽ may need all of its values, and only later blocks read it: its reduced Z is made
    when its last token is here.
    """

    names = ("k", "V", "Z", "reduced_Z", "reduced_H")
    k: Buffer
    V: Buffer
    Z: Buffer
    reduced_Z: Buffer
    reduced_H: Buffer

    def __init__(
        self,
        block_size: int,
        columns: str,
        branches: str,
        values: str,
        rollback: int = ROLLBACK,
    ) -> None:
        super().__init__()
        self.block_size, self.columns, self.branches = block_size, columns, branches
        self.values, self.rollback = values, rollback

    def extend(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """Outputs (B, c, d_v) of c new tokens."""
        first, count = self.length, q.shape[1]
        self.k.add(k)
        self.V.add(v)
        self.Z.add(v)
        H = torch.empty_like(v)
        for a, b in View(tile=self.block_size).tiles(first, first + count):
            at = slice(a - first, b - first)
            H[:, at] = self._within_block(q[:, at], v[:, at], a, b, gamma, scale)
            if b % self.block_size == 0:
                self._close_block(b, gamma)
        self.length += count
        keep = max(0, self.length - self.rollback) // self.block_size * self.block_size
        if keep > self.origin:
            self.V.drop_front(keep - self.origin)
            self.Z.drop_front(keep - self.origin)
            self.origin = keep
        return (1 - gamma) * H

    def remembers(self, length: int) -> bool:
        """Whether the Z of the block of token `length` is kept."""
        return not length or length >= self.origin

    def _within_block(
        self, q: Tensor, v: Tensor, a: int, b: int, gamma: Tensor, scale: float
    ) -> Tensor:
        """H of rows a to b, all of one block: the local branch plus the block's reduced row."""
        start = a - a % self.block_size
        k = self.k.view()
        Z = self.Z.view()[:, start - self.origin : b - self.origin]
        rows = Rows(q, k[:, start:b], v, gamma, scale, Z=Z)
        for heads, piece, S, spare in score_pieces(q, k[:, :start], scale):
            rows.lse[heads, piece] = row_lse(S, spare)
        lse_past = rows.lse.clone()
        if a > start:
            rows.see(0, b - a, 0, a - start)
        rows.solve(0, b - a)
        if a == start:
            self._open_block(q[:, :1], v[:, :1], (lse_past - rows.lse)[:, :1], start, scale)
        H = torch.zeros_like(rows.H) if self.branches == "residual" else rows.H
        if self.branches != "local":
            block = start // self.block_size
            H = H + self.reduced_H.view()[:, block : block + 1]
        return H

    def _open_block(self, q: Tensor, v: Tensor, past: Tensor, start: int, scale: float) -> None:
        """The block's row of the reduced system (Eq. 7), from its first token."""
        H = torch.zeros_like(v)
        if start:
            S = torch.bmm(q, self.k.view()[:, :start].mT).mul_(scale)
            P = torch.softmax(S, -1) * past.exp().unsqueeze(-1)
            A_res = P.unflatten(-1, (-1, self.block_size)).sum(-1)
            if self.columns == "mean":
                A_res = A_res / self.block_size
            H = torch.bmm(A_res, self.reduced_Z.view())
        self.reduced_H.append(H)

    def _close_block(self, end: int, gamma: Tensor) -> None:
        """What later blocks read of a block that is whole."""
        V = self.V.view()[:, end - self.block_size - self.origin : end - self.origin]
        V = V[:, :1] if self.values == "rows" else V.mean(1, keepdim=True)
        self.reduced_Z.append(torch.addcmul(V, self.reduced_H.view()[:, -1:], gamma))

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        if not length:
            self.clear()
            return
        self.k.crop(length)
        self.V.crop(length - self.origin)
        self.Z.crop(length - self.origin)
        self.reduced_Z.crop(length // self.block_size)
        self.reduced_H.crop(-(-length // self.block_size))
        self.length = length
