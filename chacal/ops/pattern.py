"""The resolvent of attention to fixed offsets: row t sees itself and the rows t - f(j).

ChaCAL's authors proposed such patterns in 2026 (*Trading Complexity for Expressivity Through
Structured Generalized Linear Token Mixing*, arXiv 2605.31367): with f(j) = 2^j a row sees
log n keys, with f(j) = j²+1 about √n, and in both a few hops reach every earlier row. Which keys a
row sees does not depend on the data, so nothing is gathered: an offset is the same tensor a few
rows on, and products with it run on plain slices.

Scores and softmax need no recursion and come first, as P (B, J, n): one weight per offset and row,
offset 0 being the row itself. Then, with H = A Z as in `streaming.py`, rows are solved in order,
in tiles. How an offset f enters depends on its length:

    f < tile:   within a tile, or in the one before. These weights are written as the diagonals of
                a (tile, 2·tile) band: its left half multiplies solved Z, its right half is the T
                of Z_i = (I-γT)⁻¹ (V_i + γ H_i), solved by forward substitution.
    f >= tile:  f rows in a row do not need each other. So such an offset is added to H for a run
                of many tiles at once, as soon as the first of them is reached.

The backward pass walks the tiles in reverse, solves the transposed system and lets runs send what
they received; the gradients of q and k follow for all rows at once. Work is O(n · J · d), memory
O(n · (J + d)).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chacal.ops.diagonal import solve_tile
from chacal.ops.inputs import Gamma, run
from chacal.ops.library import Operation, no_dgamma
from chacal.ops.streaming import from_first

Offsets = str | tuple[int, ...]
Place = tuple[int, slice, slice]
"""(j, rows, keys): rows that see the keys which stand the offset j before them."""

PATTERNS: dict[str, Callable[[int], int]] = {
    "powers": lambda j: 2**j,
    "squares": lambda j: j**2 + 1,
}
"""f(j) by name, for j = 0, 1, 2, ..."""

TILE = 64
"""Rows solved at once."""

GROUP = 8
"""Tiles whose bands are written at once."""

PIECE = 1 << 18
"""Numbers that an elementwise product works on at once: 1 MiB in float32 was the fastest."""


def pattern_resolvent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Gamma = 0.9,
    offsets: Offsets = "powers",
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = (1-γ) A (I-γA)⁻¹ V (Eq. 1) where row t of A sees keys t and t - f(j) >= 0.

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        gamma: γ in [0, 1): a float, or a tensor that broadcasts over the leading dimensions.
        offsets: "powers" is f(j) = 2^j, O(n log n · d); "squares" is f(j) = j²+1, O(n √n · d); a
            tuple is the offsets themselves, different whole numbers of at least 1.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_offsets(offsets)

    def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        name, listed = (offsets, None) if isinstance(offsets, str) else (None, list(offsets))
        return PATTERN(q, k, v, gamma, scale, name, listed)

    return run(core, q, k, v, gamma=gamma, scale=scale, mask=mask, cu_seqlens=cu_seqlens)


def check_offsets(offsets: object) -> None:
    """A pattern's name, or a tuple of different whole numbers of at least 1."""
    if isinstance(offsets, str) and offsets in PATTERNS:
        return
    if (
        not isinstance(offsets, tuple)
        or not offsets
        or any(isinstance(f, bool) or not isinstance(f, int) or not 1 <= f < 2**48 for f in offsets)
        or len(set(offsets)) < len(offsets)
    ):
        names = ", ".join(map(repr, PATTERNS))
        raise ValueError(
            f"offsets is {offsets!r}; expected one of {names}, or a tuple of different whole "
            f"numbers of at least 1, such as (1, 2, 5) (as text, 1+2+5)"
        )


def offsets_below(offsets: Offsets, n: int) -> list[int]:
    """The offsets that some of n rows can use, the shortest first."""
    if isinstance(offsets, tuple):
        return sorted(f for f in offsets if f < n)
    return list(itertools.takewhile(lambda f: f < n, map(PATTERNS[offsets], itertools.count())))


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    scale: float,
    name: str | None,
    listed: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """Y (B, n, d_v) and the weights (B, J, n); offsets have a name or are listed."""
    pattern = Pattern(name or tuple(listed or ()), q.shape[1])
    P = pattern.weights(q, k, scale)
    return pattern.solve(P, v, torch.empty_like(v), gamma).mul_(1 - gamma), P


def backward(
    dY: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    Y: Tensor,
    P: Tensor,
    scale: float,
    name: str | None,
    listed: Sequence[int] | None,
    gamma_needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and γ."""
    pattern = Pattern(name or tuple(listed or ()), q.shape[1])
    v, H = from_first(v, Y, gamma)
    Z = torch.addcmul(v, H, gamma)
    G, W = pattern.solve_transposed(P, (1 - gamma) * dY, gamma)
    dA = pattern.products(W, Z, torch.zeros_like(P))
    # the row's sum, not W·H: near γ = 1 the two differ by much rounding
    dS = dA.sub_((dA * P).sum(1, keepdim=True)).mul_(P).mul_(scale)
    dq, dk = pattern.spread(dS, q, k)
    if gamma_needed:
        return dq, dk, G, (G * H - dY * H).sum_to_size(gamma.shape)
    return dq, dk, G, no_dgamma(gamma)


def kept(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, name: str | None,
    listed: Sequence[int] | None,
) -> tuple[Tensor]:  # fmt: skip
    """Room for the weights."""
    B, n, _ = q.shape
    return (q.new_empty(B, 1 + len(offsets_below(name or tuple(listed or ()), n)), n),)


PATTERN = Operation("pattern", "float scale, str? name, int[]? listed", forward, backward, kept)
"""The resolvent of a pattern on (B, n, d)."""


class Pattern:
    """Which keys rows see, when the rows are the last `count` of `past + count` keys.

    Attributes:
        offsets: 0, the row itself, and the others, ascending.
        near: how many of them are shorter than a tile.
        runs: offset indices by how many rows they take at once, a tile times a power of 2.
    """

    def __init__(self, offsets: Offsets, count: int, past: int = 0) -> None:
        self.count, self.past = count, past
        self.tile = min(TILE, count)
        self.offsets = [0, *offsets_below(offsets, past + count)]
        self.near = sum(f < self.tile for f in self.offsets)
        self.runs: dict[int, list[int]] = {}
        for j, f in enumerate(self.offsets[self.near :], self.near):
            doublings = (f // self.tile).bit_length() - 1
            self.runs.setdefault(self.tile << doublings, []).append(j)

    def place(self, j: int, a: int, b: int) -> Place | None:
        """Those of rows a to b that have a key at offset j, and their keys, if there are any."""
        f = self.offsets[j]
        a = max(a, f - self.past)
        b = min(b, self.count)
        return (j, slice(a, b), slice(self.past + a - f, self.past + b - f)) if a < b else None

    def places(self, size: int) -> Iterator[Place]:
        """Every offset of all rows, in pieces of rows of about PIECE numbers, `size` in a row."""
        step = max(TILE, PIECE // max(1, size))
        for a in range(0, self.count, step):
            for j in range(len(self.offsets)):
                place = self.place(j, a, a + step)
                if place is None:
                    break
                yield place

    def far(self, a: int) -> Iterator[Place]:
        """The runs of far offsets that begin at row a, a tile's first."""
        for length, indices in self.runs.items():
            if a % length:
                break  # and of every longer run
            for j in indices:
                place = self.place(j, a, a + length)
                if place is not None:
                    yield place

    def products(self, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """out[:, j, t] = x_t · y_(t - f(j)), where there is such a key; out is (B, J, count)."""
        room = x.new_empty(0)  # for all of them: new memory costs as much as what is done with it
        for j, rows, keys in self.places(x.shape[0] * x.shape[2]):
            shape = x[:, rows].shape
            if room.numel() < shape.numel():
                room = x.new_empty(shape.numel())
            xy = torch.mul(x[:, rows], y[:, keys], out=room[: shape.numel()].view(shape))
            torch.sum(xy, -1, out=out[:, j, rows])
        return out

    def weights(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """P (B, J, count): each row's softmax over the keys it sees."""
        shape = (q.shape[0], len(self.offsets), self.count)
        S = self.products(q * scale, k, q.new_full(shape, -torch.inf))
        return torch.softmax(S, 1)

    def spread(self, dS: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """dq and dk, from the gradient (B, J, count) of q·k."""
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        columns = dS.unsqueeze(-1).unbind(1)
        for j, rows, keys in self.places(q.shape[0] * q.shape[2]):
            column = columns[j][:, rows]
            dq[:, rows].addcmul_(column, k[:, keys])
            dk[:, keys].addcmul_(column, q[:, rows])
        return dq, dk

    def bands(self, P: Tensor, backwards: bool = False) -> Iterator[tuple[int, int, Tensor]]:
        """Tiles (a, b, T): their near weights as (B, b - a, tile + b - a), the tile's keys last."""
        r = self.tile
        order: Callable[..., Any] = reversed if backwards else iter
        # every group writes the same diagonals: what is zero once stays zero
        T = P.new_zeros(P.shape[0], min(GROUP, -(-self.count // r)), r, 2 * r)
        for first in order(range(0, self.count, GROUP * r)):
            near = P[:, : self.near, first : first + GROUP * r]
            tiles = -(-near.shape[2] // r)
            if near.shape[2] % r:
                near = F.pad(near, (0, tiles * r - near.shape[2]))
            near = near.unflatten(2, (tiles, r))
            for j, f in enumerate(self.offsets[: self.near]):
                T[:, :tiles].diagonal(r - f, 2, 3).copy_(near[:, j])
            for i in order(range(tiles)):
                a = first + i * r
                b = min(a + r, self.count)
                yield a, b, T[:, i, : b - a, : r + b - a]

    def solve(self, P: Tensor, v: Tensor, Z: Tensor, gamma: Tensor) -> Tensor:
        """H (B, count, d_v); Z (B, past + count, d_v) holds `past` solved rows, gets the rest."""
        H = torch.zeros_like(v)
        I = torch.eye(self.tile, dtype=v.dtype, device=v.device)
        columns = P.unsqueeze(-1).unbind(1)
        for a, b, T in self.bands(P):
            for j, rows, keys in self.far(a):
                H[:, rows].addcmul_(columns[j][:, rows], Z[:, keys])
            H_i, at = H[:, a:b], self.past + a
            before = min(at, self.tile)
            if before:
                H_i.baddbmm_(T[:, :, self.tile - before : self.tile], Z[:, at - before : at])
            own = T[:, :, self.tile :]
            Z_i = solve_tile(own, torch.addcmul(v[:, a:b], H_i, gamma), gamma, I)
            Z[:, at : at + b - a] = Z_i
            H_i.baddbmm_(own, Z_i)
        return H

    def solve_transposed(self, P: Tensor, dH: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """G = AᵀW and W = dH + γG, (B, count, d_v), for rows without a past; W is written to dH."""
        G, W = torch.zeros_like(dH), dH
        I = torch.eye(self.tile, dtype=dH.dtype, device=dH.device)
        columns = P.unsqueeze(-1).unbind(1)
        for a, b, T in self.bands(P, backwards=True):
            own = T[:, :, self.tile :]
            received = torch.baddbmm(G[:, a:b], own.mT, dH[:, a:b])
            G_i = solve_tile(own, received, gamma, I, True)
            G[:, a:b] = G_i
            W_i = W[:, a:b].addcmul_(G_i, gamma)
            before = min(a, self.tile)
            if before:
                G[:, a - before : a].baddbmm_(T[:, :, self.tile - before : self.tile].mT, W_i)
            for j, rows, keys in self.far(a):
                G[:, keys].addcmul_(columns[j][:, rows], W[:, rows])
        return G, W
