"""Which past tiles a row sees, and how to serve many rows that chose differently.

A row picks tiles by a score of its query against a summary of each tile's keys. The choice takes
no gradient. Rows that picked the same tile are then put together in groups of equal size, so that
what they do with its keys is a batch of small matrix products: no row ever gathers keys for
itself, which would move `tile` times as much memory as it multiplies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chacal.ops.attend import PIECE, row_lse, softmax_lse
from chacal.ops.tiled import View

SCORES = ("mean", "bound")

CARD_PIECE = 1 << 26
"""Scores that a card makes at a time: it has no use for pieces that fit into a small cache."""


@dataclass(frozen=True)
class Routing:
    """How rows choose.

    Attributes:
        routes: tiles that a row chooses, per head, where there are so many.
        parts: a tile is scored by the best of so many parts of it.
        score: "mean" is q · (mean key of a part); "bound" the largest q·k that keys within the
            part's least and greatest value of each channel could have.
    """

    routes: int
    parts: int = 1
    score: str = "mean"

    def summary(self, k: Tensor) -> Tensor:
        """(B, tiles, tile, d) keys -> (B, tiles, parts, d or 2d), to be multiplied with `query`."""
        # parts may differ in size by one key
        return torch.stack([self._summary(part) for part in self._split(k)], 2)

    def _split(self, k: Tensor) -> tuple[Tensor, ...]:
        return torch.tensor_split(k, min(self.parts, k.shape[2]), 2)

    def _summary(self, k: Tensor) -> Tensor:
        if self.score == "mean":
            return k.mean(2)
        return torch.cat([k.amax(2), k.amin(2)], -1)

    def query(self, q: Tensor) -> Tensor:
        """(B, r, d) queries -> (B, r, d or 2d)."""
        if self.score == "mean":
            return q
        # a positive channel gains most from the greatest key, a negative one from the least
        return torch.cat([q.clamp(min=0), q.clamp(max=0)], -1)

    def choose(self, q: Tensor, summary: Tensor, view: View, first: int = 0) -> Tensor:
        """(B, r, routes) tiles chosen by the rows from position `first` on; -1 for none."""
        B, r, _ = q.shape
        routes = min(self.routes, max(1, (first + r - 1) // view.tile))  # there are no more tiles
        chosen = torch.full((B, r, routes), -1, dtype=torch.long, device=q.device)
        parts = summary.shape[2]
        size = PIECE if q.device.type == "cpu" else CARD_PIECE
        for at in pieces(r, B * max(1, summary.shape[1] * parts), size=size):
            near = view.near or 0
            most = (first + at.stop - 1) // view.tile - near
            if most < 1:
                continue
            t = torch.arange(first + at.start, first + at.stop, device=q.device)
            far_tiles = t // view.tile - near
            q_at = self.query(q[:, at].to(summary.dtype))
            S = torch.bmm(q_at, summary[:, :most].flatten(1, 2).mT)
            if parts > 1:
                S = S.unflatten(2, (most, parts)).amax(-1)
            unseen = torch.arange(most, device=q.device) >= far_tiles[:, None]
            best, tiles = S.masked_fill_(unseen, -torch.inf).topk(min(routes, most), -1)
            chosen[:, at, : tiles.shape[-1]] = torch.where(best > -torch.inf, tiles, -1)
        return chosen


class Groups:
    """(row, tile) pairs in groups of up to `size` rows that share a tile, tile by tile.

    Attributes:
        rows: (groups, size) place of a row in (B · n); B · n where a group is not full.
        sequence: (groups,) the sequence (of B) whose tile a group sees.
        keys: (groups,) place of that tile in (B · tiles).
        spans: the groups of each tile.
    """

    def __init__(self, chosen: Tensor, tiles: int, size: int) -> None:
        """`chosen` (B, n, routes) holds tiles below `tiles`, or -1."""
        B, n, routes = chosen.shape
        self.size, self.nobody = size, B * n
        self.routes = routes
        at = (chosen.flatten() >= 0).nonzero()[:, 0]  # a pair's place in (B · n · routes)
        row = at // routes
        # tiles in order, within a tile sequences in order, within those rows in order
        key, order = (chosen.flatten()[at] * B + row // n).sort(stable=True)
        counts = torch.bincount(key, minlength=tiles * B)
        groups = (counts + size - 1).div(size, rounding_mode="floor")
        begin = (groups.cumsum(0) - groups) * size
        within = torch.arange(len(key), device=key.device) - (counts.cumsum(0) - counts)[key]
        place = begin[key] + within
        total = int(groups.sum())
        rows = torch.full((total * size,), self.nobody, dtype=torch.long, device=key.device)
        rows[place] = row[order]
        self.rows = rows.view(total, size)
        pairs = torch.full_like(rows, self.nobody * routes)
        pairs[place] = at[order]
        self._pairs = pairs.view(total, size)
        which = torch.arange(tiles * B, device=key.device).repeat_interleave(groups)
        self.sequence = which % B
        self.keys = self.sequence * tiles + which // B
        ends = [0, *groups.view(tiles, B).sum(1).cumsum(0).tolist()]
        self.spans = [slice(a, b) for a, b in itertools.pairwise(ends)]

    def per_row(self, per_pair: Tensor) -> Tensor:
        """(groups, size) log-sum-exps of pairs -> (B · n + 1,) of rows; -inf for no tile."""
        table = per_pair.new_full(((self.nobody + 1) * self.routes,), -torch.inf)
        table[self._pairs] = per_pair
        return table.view(-1, self.routes).logsumexp(-1)


class Far:
    """What rows receive from the tiles they chose, as those tiles are solved.

    Attributes:
        lse: (B, n) log-sum-exp of a row's scores over all keys of its tiles; -inf for no tile.
        out: (B, n, d_v) softmax over those keys alone, times Z, of the tiles solved so far.
    """

    def __init__(
        self, q: Tensor, k: Tensor, d_v: int, scale: float, tile: int, chosen: Tensor
    ) -> None:
        B, n, d = q.shape
        self.groups = Groups(chosen, n // tile, group_size(tile))
        rows, q = self.groups.rows, with_nobody(q)
        keys = k[:, : n - n % tile].reshape(-1, tile, d)
        self.S = q.new_empty(*rows.shape, tile)
        per_pair, spare = q.new_empty(rows.shape), self.S[:0]
        for at in pieces(len(rows), rows.shape[1] * tile):
            q_at = q.index_select(0, rows[at].flatten()).view(-1, rows.shape[1], d).mul_(scale)
            S = torch.bmm(q_at, keys.index_select(0, self.groups.keys[at]).mT, out=self.S[at])
            if len(spare) < len(S):
                spare = torch.empty_like(S)
            per_pair[at] = row_lse(S, spare[: len(S)])
        self._lse = self.groups.per_row(per_pair)
        self._out = q.new_zeros(B * n + 1, d_v)
        self.lse, self.out = self._lse[:-1].view(B, n), self._out[:-1].view(B, n, d_v)

    def push(self, J: int, Z: Tensor) -> None:
        """Tile J is solved, with Z (B, tile, d_v): hand it to the rows that chose it."""
        at = self.groups.spans[J]
        rows = self.groups.rows[at]
        if len(rows):
            P = self.S[at].sub_(self._lse[rows].unsqueeze(-1)).exp_()
            sent = torch.bmm(P, Z.index_select(0, self.groups.sequence[at]))
            self._out.index_add_(0, rows.flatten(), sent.flatten(0, 1))


class FarAdjoint:
    """The transpose: what rows send back to the tiles they chose, last tiles first.

    Attributes:
        W: (B, n, d_v) to be filled, a row's before any tile that it chose is asked for.
        delta: (B, n) W·H of each row, to be filled with W.
        dq: (B, n, d) this part's gradient of q.
    """

    def __init__(
        self, q: Tensor, k: Tensor, d_v: int, scale: float, tile: int, chosen: Tensor, lse: Tensor
    ) -> None:
        B, n, d = q.shape
        self.k, self.scale, self.tile = k, scale, tile
        self.groups = Groups(chosen, n // tile, group_size(tile))
        self._q, self._lse = with_nobody(q), torch.cat([lse.flatten(), lse.new_zeros(1)])
        self._W, self._delta = q.new_zeros(B * n + 1, d_v), q.new_zeros(B * n + 1)
        self._dq = torch.zeros_like(self._q)
        self.W, self.delta = self._W[:-1].view(B, n, d_v), self._delta[:-1].view(B, n)
        self.dq = self._dq[:-1].view(B, n, d)

    def pull(self, J: int, Z: Tensor, G: Tensor, dk: Tensor) -> None:
        """Add what tile J, with Z (B, tile, d_v), receives: to its G and dk, and to dq."""
        span, size = self.groups.spans[J], self.groups.size
        for at in pieces(span.stop - span.start, size * self.tile, span.start):
            rows, sequence = self.groups.rows[at].flatten(), self.groups.sequence[at]
            q, W = (x.index_select(0, rows).view(len(sequence), size, -1)
                    for x in (self._q, self._W))  # fmt: skip
            k = self.k[:, J * self.tile : (J + 1) * self.tile].index_select(0, sequence)
            P = torch.bmm(q, k.mT).mul_(self.scale)
            P = P.sub_(self._lse[rows].view(-1, size, 1)).exp_()
            G.index_add_(0, sequence, torch.bmm(P.mT, W))
            dS = torch.bmm(W, Z.index_select(0, sequence).mT)
            dS.sub_(self._delta[rows].view(-1, size, 1)).mul_(P)
            dk.index_add_(0, sequence, torch.bmm(dS.mT, q), alpha=self.scale)
            self._dq.index_add_(0, rows, torch.bmm(dS, k).flatten(0, 1), alpha=self.scale)


def attend_chosen(
    q: Tensor, k: Tensor, Z: Tensor, scale: float, tile: int, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """Softmax of a few rows over all keys of their tiles, times Z, and its log-sum-exps.

    The same as `Far`, for a decoder: all tiles are solved, and each row gathers its own.

    Args:
        q: (B, r, d) queries.
        k: (B, n, d) keys.
        Z: (B, n, d_v) solved values.
        scale: multiplies q·k.
        tile: keys of a tile.
        chosen: (B, r, routes) tiles, or -1 for none.

    Returns:
        (B, r, d_v) outputs, zeros for no tile, and (B, r) log-sum-exps, -inf for no tile.
    """
    B, r, routes = chosen.shape
    offset = torch.arange(tile, device=q.device)
    at = (chosen.clamp(min=0).unsqueeze(-1) * tile + offset).view(B, r * routes * tile, 1)
    keys, values = (
        x.gather(1, at.expand(-1, -1, x.shape[2])).view(B, r, routes * tile, x.shape[2])
        for x in (k, Z)
    )
    S = (keys @ q.unsqueeze(-1)).squeeze(-1).mul_(scale)
    S.masked_fill_((chosen < 0).repeat_interleave(tile, -1), -torch.inf)
    none = (chosen < 0).all(-1)
    P, lse = softmax_lse(S.masked_fill(none.unsqueeze(-1), 0))
    out = (P.unsqueeze(-2) @ values).squeeze(-2)
    return out.masked_fill(none.unsqueeze(-1), 0), lse.masked_fill(none, -torch.inf)


def group_size(tile: int) -> int:
    """Rows of a group: half a tile, so that groups that are not full waste a quarter."""
    return min(64, max(8, tile // 2))


def with_nobody(x: Tensor) -> Tensor:
    """(B, n, d) -> (B · n + 1, d), the last row zeros: the row of places that are not taken."""
    return torch.cat([x.flatten(0, 1), x.new_zeros(1, x.shape[-1])])


def pieces(total: int, each: int, first: int = 0, size: int = PIECE) -> Iterator[slice]:
    """Runs of `total` things from `first` on, of `each` numbers each, about `size` numbers long."""
    step = max(1, size // max(1, each))
    for a in range(0, total, step):
        yield slice(first + a, first + min(total, a + step))
