"""q, k -> A: the attention matrix itself, for reading, for pruning and for small n.

The fast operators never hold A. These functions do, and read like the paper.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chacal.ops.inputs import check_count, check_qkv, check_scale


def causal_bias(rows: int, columns: int, like: Tensor) -> Tensor:
    """(rows, columns) of 0 and -inf: the last row sees every column, each row above one less."""
    bias = torch.full((rows, columns), -math.inf, dtype=like.dtype, device=like.device)
    return bias.triu(columns - rows + 1)


def attention_weights(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """A = softmax(q kᵀ · scale + M), M the causal mask.

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        scale: multiplies q·k; None is 1/√d.

    Returns:
        (..., n, n), lower triangular, rows summing to 1.
    """
    check_qkv(q, k, k)
    scale = check_scale(scale, q.shape[-1])
    compute = torch.promote_types(q.dtype, torch.float32)
    S = (q.to(compute) @ k.to(compute).mT) * scale
    return torch.softmax(S + causal_bias(S.shape[-2], S.shape[-1], S), -1).to(q.dtype)


def top_k(A: Tensor, top_k: int) -> Tensor:
    """Â: each row's `top_k` largest entries, renormalised to sum to 1; the rest 0.

    Of equal entries the most recent is kept. A row with fewer positive entries keeps them all,
    so the result stays causal.

    Args:
        A: (..., n, n) non-negative.
        top_k: how many entries of a row survive.

    Returns:
        (..., n, n).
    """
    check_count("top_k", top_k)
    n = A.shape[-1]
    if top_k >= n:
        kept = A
    else:
        # sorting the reversed row, stably, puts the most recent of equals first
        order = A.flip(-1).argsort(dim=-1, descending=True, stable=True)[..., :top_k]
        kept = torch.zeros_like(A).scatter(-1, n - 1 - order, 1) * A
    total = kept.sum(-1, keepdim=True)
    return kept / torch.where(total > 0, total, 1)
