"""Tiles on the diagonal of A: how large they are, what they weigh, and their triangular systems.

Their scores need no Z, so the weights of many are made in one call. What an operator does with
them, and with all that is off the diagonal, is its own: streaming.py, and those who build on it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chacal.ops.attend import softmax_lse

LEAF = 64
"""Rows of a diagonal tile, about; 64 to 128 were the fastest on CPUs."""


class Diagonal:
    """The softmax of diagonal tiles over their own keys, which needs no Z: of many in one call."""

    def __init__(self, q: Tensor, k: Tensor, scale: float, bias: Tensor, first: int) -> None:
        """Tiles, of the size of `bias`, of rows q (B, r, d) and keys k from row `first` on."""
        B, r, d = q.shape
        self.first, self.leaf = first, min(r, bias.shape[0])
        if ragged := -r % self.leaf:
            q, k = (torch.nn.functional.pad(x, (0, 0, 0, ragged)) for x in (q, k))
        tiles = q.shape[1] // self.leaf
        q, k = (x.reshape(B * tiles, self.leaf, d) for x in (q, k))
        T, lse = softmax_lse(tile_scores(q, k, scale, bias))
        self.T = T.view(B, tiles, self.leaf, self.leaf)
        self.lse = lse.view(B, tiles * self.leaf)

    def tile(self, a: int, b: int) -> tuple[Tensor, Tensor]:
        """T (B, b - a, b - a) of rows a to b, a tile, and their log-sum-exps."""
        at, r = a - self.first, b - a
        return self.T[:, at // self.leaf, :r, :r], self.lse[:, at : at + r]

    def of_whole_rows(self, lse: Tensor) -> None:
        """T as a part of the softmax of whole rows, of which `lse` (B, r) are log-sum-exps."""
        r = lse.shape[1]
        share = (self.lse[:, :r] - lse).exp_().unsqueeze(-1)
        self.T.flatten(1, 2)[:, :r].mul_(share)


def leaf_size(length: int, about: int = LEAF, step: int = 8) -> int:
    """Rows of a tile: near `about`, no last tile much smaller than others, a multiple of step."""
    even = -(-length // max(1, round(length / about)))
    return -(-even // step) * step


def halve(a: int, b: int, leaf: int) -> int:
    """The largest leaf · 2^i below the length, so that squares are large and tiles whole."""
    tiles = -(-(b - a) // leaf)
    return a + (leaf << ((tiles - 1).bit_length() - 1))


def tile_scores(q: Tensor, k: Tensor, scale: float, bias: Tensor) -> Tensor:
    """(B, r, r) scores of a diagonal tile, -inf above the diagonal."""
    r = q.shape[1]
    return torch.baddbmm(bias[:r, :r], q, k.mT, alpha=scale)


def solve_tile(
    T: Tensor, rhs: Tensor, gamma: Tensor, I: Tensor, transposed: bool = False
) -> Tensor:
    """(I-γT)⁻¹ rhs, or (I-γT)⁻ᵀ rhs, for a lower triangular tile; written to rhs."""
    r = T.shape[-1]
    M = torch.addcmul(I[:r, :r], T, gamma, value=-1)
    # LAPACK counts along columns: as the system of the transposes, nothing is copied for it
    if not transposed:
        M = M.mT
    upper = not transposed
    return torch.linalg.solve_triangular(M, rhs.mT, upper=upper, left=False, out=rhs.mT).mT
