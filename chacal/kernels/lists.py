"""Which keys and rows a tile of the routed operator walks, beside its neighbours: lists of them.

Each row chose a few earlier blocks of keys (ops/routing.py; blocks are the operator's tiles, `m`
keys each, and have nothing to do with the kernel's). Row t sees key s <= t of block s // m if

    s // m >= t // m - near   (near), or   s // m is one of its own   (chosen, and never near).

**Forward** a tile of rows walks the near keys as a window's, and then a list: the blocks that any
of its rows chose, each once, in order. Rows that did not choose a block are masked out of it, so
the work is that of the union: at most that of exact ChaCAL, the less the more rows agree.

**Backward** a tile of keys walks the near rows, and then for each of its blocks the rows that chose
it, gathered, last rows first: no work is lost but in the last, short piece.

The lists are made by PyTorch from the choice, by sorting, with nothing read back from the card, and
take as much room as the choice itself: n · routes numbers for a head.

Plain twins: `Groups`, `Far` and `FarAdjoint` in ops/routing.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def chosen_blocks(chosen: Tensor, tile: int, block: int) -> Tensor:
    """The blocks that rows of a tile chose, each once, in order.

    Args:
        chosen: (batch, heads, n, routes) int32 blocks, or -1 for none.
        tile: rows of a tile.
        block: keys of a block.

    Returns:
        (batch, heads, tiles, 1 + tile · routes) int32: how many there are, and then these. Those
        that begin in the tile before or in the tile itself are left out: it sees their keys anyway.
    """
    n = chosen.shape[2]
    x = torch.nn.functional.pad(chosen, (0, 0, 0, -n % tile), value=-1)
    x = x.unflatten(2, (-1, tile)).flatten(3).sort(-1).values
    again = torch.zeros_like(x, dtype=torch.bool)
    again[..., 1:] = x[..., 1:] == x[..., :-1]
    tail = (torch.arange(x.shape[2], device=x.device) - 1) * tile
    kept = (x >= 0) & (x * block < tail[:, None]) & ~again
    x = x.masked_fill(~kept, n).sort(-1).values
    return torch.cat([kept.sum(-1, keepdim=True, dtype=torch.int32), x], -1)


def rows_of_blocks(chosen: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The rows that chose each block, last rows first.

    Returns:
        (batch, heads, n · routes) int32 rows, block by block, and (batch, heads, blocks + 1) int32
        where a block's begin, and the last one's end.
    """
    n, routes = chosen.shape[2:]
    blocks = -(-n // block)
    # no block: behind all others
    which = torch.where(chosen < 0, blocks, chosen).flip(2).flatten(2)
    which, order = which.sort(dim=-1, stable=True)
    each = torch.arange(blocks + 1, dtype=torch.int32, device=chosen.device)
    begin = torch.searchsorted(which, each.expand(*which.shape[:2], -1).contiguous())
    return (n - 1 - order // routes).to(torch.int32), begin.to(torch.int32)


@triton.jit
def chose(chosen_at, row, block, ROUTES: tl.constexpr):
    """Whether rows chose blocks; `chosen_at` points to a row's first choice."""
    hit = tl.load(chosen_at, row, -1) == block
    for r in tl.static_range(1, ROUTES):
        hit = hit | (tl.load(chosen_at + r, row, -1) == block)
    return hit


@triton.jit
def find_unsolved_block(blocks, low, high, have, block, tail, TILE: tl.constexpr):
    """The first place from `low` on, in a rising list, of a block that `have` tiles do not hold."""
    while low < high:
        at = (low + high) // 2
        solved = tiles_before(tl.load(blocks + at), block, tail, TILE) <= have
        low = tl.where(solved, at + 1, low)
        high = tl.where(solved, high, at)
    return low


@triton.jit
def tiles_before(J, block, tail, TILE: tl.constexpr):
    """How many tiles, from the first on, hold all keys of block J that lie before `tail`."""
    return (tl.minimum((J + 1) * block, tail) + TILE - 1) // TILE


@triton.jit
def find_row_below(rows, low, high, least):
    """The first place from `low` on of a falling list whose row is less than `least`."""
    while low < high:
        at = (low + high) // 2
        more = tl.load(rows + at) >= least
        low = tl.where(more, at + 1, low)
        high = tl.where(more, high, at)
    return low


@triton.jit
def find_blocks(i, n, block, TILE: tl.constexpr):
    """The first and the last block with keys in tile i."""
    return i * TILE // block, (tl.minimum(i * TILE + TILE, n) - 1) // block
