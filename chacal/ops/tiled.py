"""The resolvent of attention that sees near keys exactly and, if asked, far ones as block means.

One recursion serves `window.py` and `pooled.py`. Rows come in tiles, in order. A tile sees

    [ means of whole blocks | single keys before the tile | the tile itself ]

under one softmax, P. With H = A Z as in `streaming.py`, its rows are

    Z_i = (I-γT)⁻¹ (V_i + γ P_before Z_before),   H_i = P_before Z_before + T Z_i

where T is the tile's own square of P, and a mean key's value is the mean of its block's Z. Work
and memory are what the tiles see: nothing n x n. The backward pass recomputes P and walks the
tiles in reverse, solving the transposed system.

Of length n there are the inputs, the outputs, their gradients and one number a row, and nothing
else: forward, only the Z that is still seen is held; backward, Z stands where dq will, since no
row before a tile sees its Z. Windows are computed by a library of ours where there is a C compiler
(`native/sparse.c`), which holds Z of what is seen both ways.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chacal.native import resolvent as library
from chacal.native import sparse
from chacal.ops.attend import softmax_rows_lse
from chacal.ops.diagonal import solve_tile
from chacal.ops.library import Operation, no_dgamma
from chacal.ops.view import View

STRETCH = 8
"""What of Z is held at once, in spans of what a tile sees by itself: moved once in so many."""

NOT_KEPT = 0
"""The unit of log-sum-exps that were not kept."""

PIECE_ROWS = 4096
"""Rows whose Z is made at once in the backward pass."""


class Memory:
    """Keys and solved values that rows may still see, from position `origin` on.

    Attributes:
        k, Z: (B, n - origin, d) keys and (B, n - origin, d_v) solved values.
        mean_k, mean_Z: (B, blocks, d) and (B, blocks, d_v) block means, for a pooled view.
    """

    def __init__(
        self, k: Tensor, Z: Tensor, mean_k: Tensor, mean_Z: Tensor, origin: int = 0
    ) -> None:
        self.k, self.Z, self.mean_k, self.mean_Z, self.origin = k, Z, mean_k, mean_Z, origin

    def make_room(self, view: View, a: int, b: int, k: Tensor) -> None:
        """For the Z of rows a to b, which replaces what no row sees any more; `k` is all keys."""
        if b - self.origin > self.Z.shape[1]:
            first = view.first_key(a)
            self.Z[:, : a - first] = self.Z[:, first - self.origin : a - self.origin]
            self.k, self.origin = k[:, first:], first


class Tiles:
    """Scores, weights and the forward step, tile by tile."""

    def __init__(self, view: View, memory: Memory, gamma: Tensor, scale: float) -> None:
        self.view, self.memory = view, memory
        self.gamma, self.scale = gamma, scale
        rows = min(view.tile, memory.k.shape[1])
        self.I = torch.eye(rows, dtype=memory.k.dtype, device=memory.k.device)
        self._bias: dict[tuple[int, int], Tensor] = {}

    def seen(self, a: int, b: int) -> tuple[int, slice, Tensor]:
        """Block means seen, single keys seen (as places in memory), and all seen keys."""
        means = self.view.means(a)
        keys = slice(self.view.first_key(a) - self.memory.origin, b - self.memory.origin)
        k = self.memory.k[:, keys]
        return means, keys, torch.cat([self.memory.mean_k[:, :means], k], 1) if means else k

    def values(self, means: int, keys: slice) -> Tensor:
        """Solved values of the block means and keys."""
        Z = self.memory.Z[:, keys]
        return torch.cat([self.memory.mean_Z[:, :means], Z], 1) if means else Z

    def weights(self, q: Tensor, k: Tensor, means: int) -> tuple[Tensor, Tensor]:
        """Scores S (B, r, seen) and their softmax P."""
        S = torch.bmm(q, k.mT).mul_(self.scale)
        shape = (q.shape[1], k.shape[1] - means)
        if shape not in self._bias:
            self._bias[shape] = self.view.bias(*shape, q)
        S[:, :, means:].add_(self._bias[shape])
        if means:
            # a mean stands for `tile` keys
            S[:, :, :means].add_(math.log(self.view.tile))
        return S, torch.softmax(S, -1)

    def step(
        self,
        q: Tensor,
        v: Tensor,
        a: int,
        b: int,
        far: tuple[Tensor, Tensor] | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """H of rows a to b; their Z goes to memory, their log-sum-exps to `lse` (B, r), if given.

        `far` (B, r, d_v), (B, r) is what the rows see besides: softmax over it alone, times Z,
        and the log-sum-exps of that.
        """
        means, keys, k = self.seen(a, b)
        S, P = self.weights(q, k, means)
        before = k.shape[1] - (b - a)
        past = slice(keys.start, keys.stop - (b - a))
        if far is not None or lse is not None:
            own = softmax_rows_lse(S, P)
        if far is None:
            H = torch.bmm(P[:, :, :before], self.values(means, past))
        else:
            out, far_lse = far
            share = torch.sigmoid(far_lse - own).unsqueeze(-1)
            P.mul_(1 - share)
            H = torch.baddbmm(out * share, P[:, :, :before], self.values(means, past))
            own = torch.logaddexp(own, far_lse)
        if lse is not None:
            lse.copy_(own)
        T = P[:, :, before:]
        inner = T.tril(-1) if self.view.drop else T
        Z = solve_tile(inner, torch.addcmul(v, H, self.gamma), self.gamma, self.I)
        self.memory.Z[:, past.stop : keys.stop] = Z
        if self.view.pool and b % self.view.tile == 0:
            self.pool(b // self.view.tile - 1)
        return H.baddbmm_(T, Z)

    def pool(self, block: int) -> None:
        """The mean of a block that is now whole."""
        first = block * self.view.tile - self.memory.origin
        self.memory.mean_Z[:, block] = self.memory.Z[:, first : first + self.view.tile].mean(1)


class TilesAdjoint:
    """The backward step, last tiles first.

    Attributes:
        G: (B, n, d_v) gradient of v. Until a tile is solved, its rows hold what later rows sent.
        dq, dk: (B, n, d). Where d = d_v, dq has the memory of Z.
        Z: (B, n, d_v) solved values of the tiles that are still to come.
    """

    def __init__(
        self,
        view: View,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gamma: Tensor,
        scale: float,
        Y: Tensor,
        first: Tensor | float,
        lse: Tensor,
        dY: Tensor,
        gamma_needed: bool,
    ) -> None:
        """`Y` (B, n, d_v) and the log-sum-exps `lse` (B, n) are those of whole rows; of `lse` there
        need be none unless the view drops, or rows see more than it.

        `first` (B, 1, d_v) is subtracted from v and Y (see `from_first`); not with view.drop.
        """
        self.view, self.q, self.lse, self.dY = view, q, lse, dY
        self.gamma, self.scale, self.Y, self.first = gamma, scale, Y, first
        self.Z = v.new_empty(v.shape)
        for a in range(0, q.shape[1], PIECE_ROWS):
            at = slice(a, a + PIECE_ROWS)
            Z = torch.addcmul(v[:, at] - first, self.hops(at), gamma)
            if view.drop:
                # H counts the hop to oneself and Z does not: Z = V + γ (H - A_tt Z)
                A_tt = ((q[:, at] * k[:, at]).sum(-1).mul_(scale) - lse[:, at]).exp_()
                Z /= 1 + gamma * A_tt.unsqueeze(-1)
            self.Z[:, at] = Z
        memory = Memory(k, self.Z, view.pooled(k), view.pooled(self.Z))
        self.tiles = Tiles(view, memory, gamma, scale)
        self.dq = self.Z if q.shape == v.shape else q.new_empty(q.shape)
        self.G, self.dk = v.new_zeros(v.shape), k.new_zeros(k.shape)
        self._dgamma = torch.zeros_like(gamma) if gamma_needed else None
        self.mean_G = torch.zeros_like(memory.mean_Z)
        self.mean_dk = torch.zeros_like(memory.mean_k)

    def hops(self, at: slice) -> Tensor:
        """H = A Z of those rows."""
        return (self.Y[:, at] - self.first) / (1 - self.gamma)

    def step(self, a: int, b: int, far: bool = False) -> Tensor:
        """Rows a to b, to which all later rows have sent their share; their W·H, (B, r, 1).

        `far` says that the rows see more than the view, so that `lse` counts more.
        """
        means, keys, seen_k = self.tiles.seen(a, b)
        q, gamma, G = self.q[:, a:b], self.gamma, self.G
        S, P = self.tiles.weights(q, seen_k, means)
        if far:
            P.mul_((softmax_rows_lse(S, P) - self.lse[:, a:b]).exp_().unsqueeze(-1))
        before = seen_k.shape[1] - (b - a)
        T = P[:, :, before:]
        received = G[:, a:b]
        block = a // self.view.tile
        if block < self.mean_G.shape[1]:
            received += self.mean_G[:, block, None] / self.view.tile
        dH = (1 - gamma) * self.dY[:, a:b]
        inner = T.tril(-1) if self.view.drop else T
        G_i = solve_tile(inner, received + torch.bmm(T.mT, dH), gamma, self.tiles.I, True)
        W = torch.addcmul(dH, G_i, gamma)
        G[:, a:b] = G_i
        sent = torch.bmm(P[:, :, :before].mT, W)
        self.mean_G[:, :means] += sent[:, :means]
        G[:, keys.start : a] += sent[:, means:]

        dA = torch.bmm(W, self.tiles.values(means, keys).mT)
        if self.view.drop:
            own = gamma[..., 0] * (G_i * self.Z[:, a:b]).sum(-1)
            dA[:, :, before:].diagonal(dim1=1, dim2=2).sub_(own)
        # the row's sum, if all of the row is here: near γ = 1, W·H differs by much rounding
        delta = ((W * self.hops(slice(a, b))) if far else (dA * P)).sum(-1, keepdim=True)
        if self._dgamma is not None:
            self._dgamma += self._dgamma_of(a, b, T)
        dS = dA.sub_(delta).mul_(P)
        self.dq[:, a:b] = torch.bmm(dS, seen_k).mul_(self.scale)
        seen_dk = torch.bmm(dS.mT, q).mul_(self.scale)
        self.mean_dk[:, :means] += seen_dk[:, :means]
        self.dk[:, keys] += seen_dk[:, means:]
        return delta

    def finish(self) -> None:
        """What keys receive through the means of their tiles."""
        if blocks := self.mean_dk.shape[1]:
            whole = self.dk[:, : blocks * self.view.tile].unflatten(1, (blocks, self.view.tile))
            whole += self.mean_dk.unsqueeze(2) / self.view.tile

    def dgamma(self) -> Tensor:
        """dγ of the steps so far, where it is needed."""
        return no_dgamma(self.gamma) if self._dgamma is None else self._dgamma

    def _dgamma_of(self, a: int, b: int, T: Tensor) -> Tensor:
        """<G, Z's hops> - <dY, H> of rows a to b, summed to γ's shape."""
        H = hops = self.hops(slice(a, b))
        if self.view.drop:
            hops = H - T.diagonal(dim1=1, dim2=2).unsqueeze(-1) * self.Z[:, a:b]
        each = self.G[:, a:b] * hops - self.dY[:, a:b] * H
        return each.sum_to_size(self.gamma.shape)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    scale: float,
    tile: int,
    window: int | None,
    near: int | None,
    pool: bool,
    drop: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Y (B, n, d_v) and what `kept` is for."""
    if window is not None and library.fits(q, k, v, gamma):
        Y, lse = sparse.forward(q, k, v, gamma, scale, drop, sparse.Seen(window))
        return Y, lse, q.new_full((1,), library.UNIT)
    view = View(tile, window, near, pool, drop)
    memory = new_memory(view, k, v)
    tiles = Tiles(view, memory, gamma, scale)
    H, (lse, unit) = v.new_empty(v.shape), kept(q, k, v, window, near, pool, drop)
    for a, b in view.runs(0, q.shape[1]):
        memory.make_room(view, a, b, k)
        H[:, a:b] = tiles.step(q[:, a:b], v[:, a:b], a, b, lse=lse[:, a:b] if drop else None)
    return H.mul_(1 - gamma), lse, unit.fill_(1 if drop else NOT_KEPT)


def backward(
    dY: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    Y: Tensor,
    lse: Tensor,
    unit: Tensor,
    scale: float,
    tile: int,
    window: int | None,
    near: int | None,
    pool: bool,
    drop: bool,
    gamma_needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and γ."""
    if window is not None and library.fits(q, k, v, gamma, Y, lse, dY) and unit != NOT_KEPT:
        powers = library.in_powers(lse, unit)
        return sparse.backward(q, k, v, gamma, scale, drop, sparse.Seen(window), Y, powers, dY)
    view = View(tile, window, near, pool, drop)
    first = 0.0 if drop else v[:, :1]
    lse = lse * unit if drop else lse
    adjoint = TilesAdjoint(view, q, k, v, gamma, scale, Y, first, lse, dY, gamma_needed)
    for a, b in reversed(list(view.runs(0, q.shape[1]))):
        adjoint.step(a, b)
    adjoint.finish()
    return adjoint.dq, adjoint.dk, adjoint.G, adjoint.dgamma()


def kept(q: Tensor, k: Tensor, v: Tensor, *options: object) -> tuple[Tensor, Tensor]:
    """Room for a log-sum-exp of every row, which only the compiled library and rows that drop their
    own hop go back to, and their unit, as in streaming.py; NOT_KEPT where there are none."""
    window, _, _, drop = options[-4:]
    some = drop or window is not None
    return q.new_empty(q.shape[:2] if some else (q.shape[0], 0)), q.new_empty(1)


TILED = Operation(
    "tiled",
    "float scale, SymInt tile, SymInt? window, SymInt? near, bool pool, bool drop",
    forward,
    backward,
    kept,
    num_kept=2,
)
"""The resolvent of a View on (B, n, d)."""


def tiled(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, view: View) -> Tensor:
    """Y (B, n, d_v) of a View."""
    return TILED(q, k, v, gamma, scale, view.tile, view.window, view.near, view.pool, view.drop)


def new_memory(view: View, k: Tensor, v: Tensor) -> Memory:
    """All keys, and room for what is solved and still seen."""
    mean_k = view.pooled(k)
    mean_Z = v.new_empty(*mean_k.shape[:2], v.shape[-1])
    room = v.new_empty(v.shape[0], min(v.shape[1], STRETCH * view.span), v.shape[2])
    return Memory(k, room, mean_k, mean_Z)
