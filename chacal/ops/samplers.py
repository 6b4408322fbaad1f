"""P and U: which rows stand for a block, how a block is lifted back, and which choices are causal.

The paper takes "average, strided pick; any fixed rule" for P. The rule decides causality. A block's
reduced row of A is handed to *every* token of that block, so it may only use the block's first
row: a mean, or the last row, hands early tokens the attention of later ones (docs/paper.md).
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = ("first", "mean", "last")
COLUMNS = ("sum", "mean")
CAUSAL_ROWS = ("first",)


def num_blocks(n: int, block_size: int) -> int:
    """How many blocks cover n tokens; the last may be short."""
    return -(-n // block_size)


def block_index(n: int, block_size: int, device: torch.device | None = None) -> Tensor:
    """(n,) the block of every token."""
    return torch.arange(n, device=device) // block_size


def down(n: int, block_size: int, rows: str, like: Tensor) -> Tensor:
    """P (num_blocks, n): picks or averages the rows of each block."""
    block = block_index(n, block_size, like.device)
    member = block == torch.arange(num_blocks(n, block_size), device=like.device)[:, None]
    if rows == "mean":
        return member.to(like.dtype) / member.sum(-1, keepdim=True)
    edge = torch.ones_like(block, dtype=torch.bool)
    if rows == "first":
        edge[1:] = block[1:] != block[:-1]
    else:
        edge[:-1] = block[1:] != block[:-1]
    return (member & edge).to(like.dtype)


def gather_columns(n: int, block_size: int, columns: str, like: Tensor) -> Tensor:
    """C (num_blocks, n): sums or averages the columns of each block; the right factor's Pᵀ is Cᵀ.

    The paper's Pᵀ with a mean makes the rows of P A Pᵀ sum to 1/m at most. A sum keeps the mass.
    """
    mean = down(n, block_size, "mean", like)
    return mean if columns == "mean" else (mean > 0).to(like.dtype)


def up(Y: Tensor, n: int, block_size: int) -> Tensor:
    """U: (..., num_blocks, d) -> (..., n, d), each block's row repeated."""
    return (
        Y.unsqueeze(-2).expand(*Y.shape[:-1], block_size, Y.shape[-1]).flatten(-3, -2)[..., :n, :]
    )


def pick_rows(V: Tensor, block_size: int, rows: str) -> Tensor:
    """P V without P: (..., n, d) -> (..., num_blocks, d)."""
    n = V.shape[-2]
    if rows == "first":
        return V[..., ::block_size, :]
    if rows == "last":
        ends = torch.arange(block_size - 1, n + block_size - 1, block_size, device=V.device)
        return V[..., ends.clamp(max=n - 1), :]
    whole = n - n % block_size
    parts = [V[..., :whole, :].unflatten(-2, (-1, block_size)).mean(-2)]
    if whole < n:
        parts.append(V[..., whole:, :].mean(-2, keepdim=True))
    return torch.cat(parts, -2)


def add_up(Y: Tensor, Y_blocks: Tensor, block_size: int) -> None:
    """Y += U Y_blocks, in place."""
    whole = Y.shape[-2] // block_size
    cut = whole * block_size
    Y[..., :cut, :].unflatten(-2, (whole, block_size)).add_(Y_blocks[..., :whole, None, :])
    Y[..., cut:, :].add_(Y_blocks[..., whole:, :])


def sum_blocks(dY: Tensor, block_size: int) -> Tensor:
    """Uᵀ dY: (..., n, d) -> (..., num_blocks, d), the gradient of what `add_up` added."""
    n = dY.shape[-2]
    whole = n // block_size
    sums = dY[..., : whole * block_size, :].unflatten(-2, (whole, block_size)).sum(-2)
    if n == whole * block_size:
        return sums
    return torch.cat([sums, dY[..., whole * block_size :, :].sum(-2, keepdim=True)], -2)


def add_down(dV: Tensor, dV_rows: Tensor, block_size: int, rows: str) -> None:
    """dV += Pᵀ dV_rows, in place: the gradient of `pick_rows`."""
    n = dV.shape[-2]
    if rows == "first":
        dV[..., ::block_size, :].add_(dV_rows)
    elif rows == "last":
        whole = n // block_size
        dV[..., block_size - 1 :: block_size, :].add_(dV_rows[..., :whole, :])
        if n % block_size:
            dV[..., -1, :].add_(dV_rows[..., -1, :])
    else:
        short = n % block_size
        shares = dV_rows / block_size
        if short:
            shares[..., -1, :].mul_(block_size / short)
        add_up(dV, shares, block_size)
