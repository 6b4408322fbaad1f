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

from chacal.native import choice
from chacal.native import resolvent as library
from chacal.ops.attend import PIECE, attend, softmax_lse
from chacal.ops.tiled import TilesAdjoint
from chacal.ops.view import View

SCORES = ("mean", "bound", "keys")

CARD_PIECE = 1 << 26
"""Scores that a card makes at a time: it has no use for pieces that fit into a small cache."""

CHOICE_ROWS = 256
"""Rows that choose at a time, on a CPU: enough for a matrix product to run at full speed."""

CHOICE_TILES = 1024
"""Tiles among which they choose at a time, and more where there are fewer rows."""

ABOUT = 1e-3
"""The share by which distances may differ that count as equal: more than rounding makes of them."""

DEPTH = 16
"""Tiles of which the best is taken first, where a row chooses one of many."""


@dataclass(frozen=True)
class Routing:
    """How rows choose.

    Attributes:
        routes: tiles that a row chooses, per head, where there are so many.
        parts: a tile is scored by the best of so many parts of it.
        score: "mean" is q · (mean key of a part); "bound" the largest q·k that keys within the
            part's least and greatest value of each channel could have; "keys" the largest q·k of
            so many of the tile's own keys as there are parts, those that stand out.
    """

    routes: int
    parts: int = 1
    score: str = "mean"

    def summary(self, k: Tensor) -> Tensor:
        """(B, tiles, tile, d) keys -> (B, tiles, parts, d or 2d), to be multiplied with `query`."""
        if self.score == "keys":
            return outstanding(k, min(self.parts, k.shape[2]))
        # parts may differ in size by one key
        return torch.stack([self._summary(part) for part in self._split(k)], 2)

    def _split(self, k: Tensor) -> tuple[Tensor, ...]:
        return torch.tensor_split(k, min(self.parts, k.shape[2]), 2)

    def _summary(self, k: Tensor) -> Tensor:
        if self.score == "mean":
            return k.mean(2)
        return torch.cat([k.amax(2), k.amin(2)], -1)

    def width(self, d: int) -> int:
        """Numbers of a part's summary, for keys of d."""
        return 2 * d if self.score == "bound" else d

    def query(self, q: Tensor) -> Tensor:
        """(B, r, d) queries -> (B, r, d or 2d)."""
        if self.score != "bound":
            return q
        # a positive channel gains most from the greatest key, a negative one from the least
        return torch.cat([q.clamp(min=0), q.clamp(max=0)], -1)

    def choose(self, q: Tensor, summary: Tensor, view: View, first: int = 0) -> Tensor:
        """(B, r, routes) tiles chosen by the rows from position `first` on; -1 for none.

        Scores are made for some rows, sequences and tiles at a time, never for all.
        """
        B, r, _ = q.shape
        routes = min(self.routes, max(1, (first + r - 1) // view.tile))  # there are no more tiles
        if first == 0 and library.fits(q, summary):
            near, bound = view.near or 0, self.score == "bound"
            return choice.choose(q, summary, view.tile, near, routes, bound)
        chosen = torch.full((B, r, routes), -1, dtype=torch.long, device=q.device)
        near, size, rows = view.near or 0, PIECE, min(r, CHOICE_ROWS)
        if q.device.type != "cpu":
            size, rows = CARD_PIECE, max(rows, CARD_PIECE // (B * max(1, summary.shape[1])))
        step = max(CHOICE_TILES, size // rows)
        for at in pieces(r, 1, size=rows):
            most = (first + at.stop - 1) // view.tile - near
            if most < 1:
                continue
            # a few more, which no row sees yet, so that `largest` can fold them
            most = min(-(-most // DEPTH) * DEPTH, summary.shape[1])
            t = torch.arange(first + at.start, first + at.stop, device=q.device)
            far_tiles = t // view.tile - near
            all_see = max(0, (first + at.start) // view.tile - near)
            for heads in pieces(B, rows * min(step, most), size=size):
                q_at = self.query(q[heads, at].to(summary.dtype))
                best, tiles = q_at.new_empty(0), chosen[:0]
                for some in pieces(most, 1, size=step):
                    S = self._scores(q_at, summary[heads, some])
                    if some.stop > all_see:
                        late = slice(max(some.start, all_see), some.stop)
                        tile = torch.arange(late.start, late.stop, device=q.device)
                        unseen = tile >= far_tiles[:, None]
                        S[..., late.start - some.start :].masked_fill_(unseen, -torch.inf)
                    found, where = largest(S, routes)
                    where += some.start
                    if some.start:
                        found = torch.cat([best, found], -1)
                        found, order = found.topk(min(routes, found.shape[-1]), -1)
                        where = torch.cat([tiles, where], -1).gather(-1, order)
                    best, tiles = found, where
                chosen[heads, at, : tiles.shape[-1]] = torch.where(best > -torch.inf, tiles, -1)
        return chosen

    def _scores(self, q: Tensor, summary: Tensor) -> Tensor:
        """(B, r, tiles) the best part of each tile."""
        # part by part, so that the best is taken of whole matrices and not of every few numbers
        S = torch.bmm(q, summary[:, :, 0].mT)
        for part in range(1, summary.shape[2]):
            S = torch.maximum(S, torch.bmm(q, summary[:, :, part].mT))
        return S


def outstanding(k: Tensor, count: int) -> Tensor:
    """(B, tiles, tile, d) -> (B, tiles, count, d): of each tile, keys that stand out from the rest.

    Each time the one that is farthest from their mean and from all that are taken, of two that are
    about as far the earlier. So many keys that are much alike, as those of filling words, take no
    place from the few that differ.
    """
    B, tiles, tile, d = k.shape
    k = k.reshape(-1, tile, d)
    squares = torch.linalg.vecdot(k, k)
    earlier = 1 - ABOUT / tile * torch.arange(tile, dtype=k.dtype, device=k.device)
    gap = torch.full_like(squares, torch.inf)
    centre = k.mean(1, keepdim=True)
    taken = []
    for _ in range(count):
        # |k - c|², without a difference for every channel
        away = squares - 2 * torch.bmm(k, centre.mT)[..., 0] + centre.square().sum(-1)
        gap = torch.minimum(gap, away)
        centre = k.gather(1, (gap * earlier).argmax(1)[:, None, None].expand(-1, 1, d))
        taken.append(centre)
    return torch.cat(taken, 1).view(B, tiles, count, d)


def largest(S: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(..., count) largest of the last dimension, where there are so many, and their places."""
    width = S.shape[-1]
    if count == 1 and width >= 32 * DEPTH and width % DEPTH == 0:
        # the best of every DEPTH takes one fast pass; to tell where it is, which is slow, is for
        # what is left
        S = S.unflatten(-1, (DEPTH, width // DEPTH))
        column = S.amax(-2).max(-1, keepdim=True).indices
        found, row = S.gather(-1, column.unsqueeze(-2).expand(*S.shape[:-1], 1)).max(-2)
        return found, row * (width // DEPTH) + column
    if count == 1:
        return S.max(-1, keepdim=True)
    if 64 < width < 64 * count:
        # torch has a faster way for rows that are 64 times as long as what is asked for
        S = torch.nn.functional.pad(S, (0, 64 * count - width), value=-torch.inf)
    return S.topk(min(count, width), -1)


class Groups:
    """(row, tile) pairs in groups of up to `size` rows that share a tile, tile by tile.

    Attributes:
        rows: (groups, size) place of a row in (B · n). A group that is not full has its first row
            in all places that are left.
        left: (groups, size) whether a place is left.
        sequence: (groups,) the sequence (of B) whose tile a group sees.
        spans: the groups of each tile.
    """

    def __init__(self, chosen: Tensor, tile: int) -> None:
        """`chosen` (B, n, routes) holds tiles of `tile` keys, or -1."""
        B, n, routes = chosen.shape
        tiles, size = n // tile, group_size(tile)
        self.size = size
        # as many numbers as pairs are held a few times over, and no longer than needed
        row = (chosen.flatten() >= 0).nonzero()[:, 0]  # at first a pair's place in (B · n · routes)
        key = chosen.flatten()[row].mul_(B)
        row.div_(routes, rounding_mode="floor")
        # tiles in order, within a tile sequences in order, within those rows in order
        key, order = key.add_(row // n).sort(stable=True)
        row = row[order]
        del order
        counts = torch.bincount(key, minlength=tiles * B)
        groups = (counts + size - 1).div(size, rounding_mode="floor")
        begin = (groups.cumsum(0) - groups) * size
        place = torch.arange(len(key), device=key.device)
        place += (begin - counts.cumsum(0) + counts)[key]
        total = int(groups.sum())
        rows = torch.full((total * size,), -1, dtype=torch.long, device=key.device)
        rows[place] = row
        del key, place, row
        self.rows = rows.view(total, size)
        self.left = self.rows < 0
        self.rows += self.left * (self.rows[:, :1] + 1)
        which = torch.arange(tiles * B, device=chosen.device).repeat_interleave(groups)
        self.sequence = which % B
        ends = [0, *groups.view(tiles, B).sum(1).cumsum(0).tolist()]
        self.spans = [slice(a, b) for a, b in itertools.pairwise(ends)]

    def of(self, J: int, width: int) -> Iterator[slice]:
        """The groups of tile J, in pieces of about `PIECE` numbers, `width` to a row."""
        span = self.spans[J]
        return pieces(span.stop - span.start, self.size * width, span.start)


class Far:
    """What rows receive from the tiles they chose, as those tiles are solved.

    Attributes:
        lse: (B, n) log-sum-exp of a row's scores over the keys of its tiles that are solved; -inf
            for none.
        out: (B, n, d_v) softmax over those keys, times Z.
    """

    def __init__(
        self, q: Tensor, k: Tensor, d_v: int, scale: float, tile: int, chosen: Tensor
    ) -> None:
        B, n, _ = q.shape
        self.groups, self.routes = Groups(chosen, tile), chosen.shape[2]
        self.k, self.scale, self.tile, self._q = k, scale, tile, q.flatten(0, 1)
        self.lse, self.out = q.new_full((B, n), -torch.inf), q.new_zeros(B, n, d_v)
        self._lse, self._out = self.lse.view(-1), self.out.view(-1, d_v)

    def push(self, J: int, Z: Tensor) -> None:
        """Tile J is solved, with Z (B, tile, d_v): hand it to the rows that chose it."""
        k = self.k[:, J * self.tile : (J + 1) * self.tile]
        for at in self.groups.of(J, self.tile):
            rows, sequence = self.groups.rows[at].flatten(), self.groups.sequence[at]
            q = self._q.index_select(0, rows).view(len(sequence), self.groups.size, -1)
            keys, values = k.index_select(0, sequence), Z.index_select(0, sequence)
            out, lse = (x.flatten(0, 1) for x in attend(q, keys, values, self.scale))
            if self.routes > 1:
                # a row meets its tiles one by one; what it has so far counts by its own sum
                before = self._lse.index_select(0, rows)
                both = torch.logaddexp(before, lse)
                out *= (lse - both).exp_().unsqueeze(-1)
                share = (before - both).exp_().unsqueeze(-1)
                out.addcmul_(self._out.index_select(0, rows), share)
                lse = both
            # places that are left say what the row that stands there says
            self._out.index_copy_(0, rows, out)
            self._lse.index_copy_(0, rows, lse)


class FarAdjoint:
    """The transpose: what rows send back to the tiles they chose, last tiles first.

    Attributes:
        delta: (B, n) W·H of each row, to be filled before any tile that it chose is asked for.
    """

    def __init__(self, close: TilesAdjoint, groups: Groups) -> None:
        """Beside `close`, whose steps come first for every row; its dq gets this part's too."""
        B, n, _ = close.q.shape
        self.k, self.scale, self.tile = close.tiles.memory.k, close.scale, close.view.tile
        self.gamma = close.gamma
        self.groups = groups
        self.delta = close.lse.new_zeros(B, n)
        self._delta, self._lse = self.delta.view(-1), close.lse.flatten()
        self._q, self._dY = close.q.flatten(0, 1), close.dY.flatten(0, 1)
        # both are still written to, so these have to be views
        self._G, self._dq = (x.view(-1, x.shape[2]) for x in (close.G, close.dq))

    def pull(self, J: int, Z: Tensor, G: Tensor, dk: Tensor) -> None:
        """Add what tile J, with Z (B, tile, d_v), receives: to its G and dk, and to dq."""
        size, tile_k = self.groups.size, self.k[:, J * self.tile : (J + 1) * self.tile]
        for at in self.groups.of(J, self.tile):
            rows, sequence = self.groups.rows[at].flatten(), self.groups.sequence[at]
            gamma = self.gamma if len(self.gamma) == 1 else self.gamma.index_select(0, sequence)
            q, dY, G_rows = (x.index_select(0, rows).view(len(sequence), size, -1)
                             for x in (self._q, self._dY, self._G))  # fmt: skip
            W = dY.mul_(1 - gamma).addcmul_(G_rows, gamma)
            lse, delta = (x.index_select(0, rows).view(-1, size, 1)
                          for x in (self._lse, self._delta))  # fmt: skip
            lse.masked_fill_(self.groups.left[at].unsqueeze(-1), torch.inf)
            k = tile_k.index_select(0, sequence).mul_(self.scale)
            P = torch.bmm(q, k.mT).sub_(lse).exp_()
            G += over_groups(torch.bmm(P.mT, W), sequence, len(G))
            dS = torch.bmm(W, Z.index_select(0, sequence).mT).sub_(delta).mul_(P)
            dk.add_(over_groups(torch.bmm(dS.mT, q), sequence, len(dk)), alpha=self.scale)
            self._dq.index_add_(0, rows, torch.bmm(dS, k).flatten(0, 1))


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


def over_groups(x: Tensor, sequence: Tensor, B: int) -> Tensor:
    """(groups, ...) -> (B, ...): the sum over the groups of each sequence."""
    # not to the target itself: where that is a part of a tensor, index_add_ is ten times slower
    return x.new_zeros(B, *x.shape[1:]).index_add_(0, sequence, x)


def pieces(total: int, each: int, first: int = 0, size: int = PIECE) -> Iterator[slice]:
    """Runs of `total` things from `first` on, of `each` numbers each, about `size` numbers long."""
    step = max(1, size // max(1, each))
    for a in range(0, total, step):
        yield slice(first + a, first + min(total, a + step))
