"""The subquadratic, causal resolvent: near keys one by one, far ones as block means.

Pool keys and values, never queries: a row's softmax is its own, taken once over single near keys
and the mean keys of past blocks, so no row learns of a later one. Every block that is pooled is
whole and past.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from chacal.ops.inputs import Gamma, check_count, run
from chacal.ops.library import Operation
from chacal.ops.ragged import PLANS, ByLength
from chacal.ops.tiled import TILED


def pooled_resolvent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Gamma = 0.9,
    block_size: int | None = None,
    near: int = 1,
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = (1-γ) A (I-γA)⁻¹ V (Eq. 1) for A = L + W P.

    Row t of block i has one softmax over single keys (those <= t of its own block and of the
    `near` blocks before it: L) and the mean keys of earlier blocks (W), a mean of m keys
    counting m times; P takes block means. A is row-stochastic and causal, and local and
    cross-block hops compose. Time and memory O(n · (m + n/m) · d).

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        gamma: γ in [0, 1): a float, or a tensor that broadcasts over the leading dimensions.
        block_size: m; None picks about √n.
        near: whole blocks before a row's own that it sees key by key.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_pooled_options(block_size, near)

    plan = ByLength("pooled", [block_size or 0, near], [])
    return run(
        plan.core,
        q,
        k,
        v,
        gamma=gamma,
        scale=scale,
        mask=mask,
        cu_seqlens=cu_seqlens,
        by_length=plan if block_size is None else None,
    )


def _plan(n: int, sizes: Sequence[int], words: Sequence[str]) -> tuple[Operation, tuple[Any, ...]]:
    block_size, near = sizes
    return TILED, (min(n, block_size or default_block_size(n)), None, near, True, False)


PLANS["pooled"] = _plan


def check_pooled_options(block_size: int | None, near: int) -> None:
    """Whole numbers."""
    if block_size is not None:
        check_count("block_size", block_size)
    check_count("near", near, least=0)


def default_block_size(n: int) -> int:
    """About √n, which balances n·m and n·n/m, as the nearest power of two."""
    return 1 << max(0, round(math.log2(n) / 2))
