"""Algorithm 1: the resolvent exactly on diagonal blocks, the rest through a reduced system.

`blockwise` is the algorithm on a given A, line by line. `block_resolvent_attention` is the same
operator from q, k, v, one row tile at a time. Neither is subquadratic: a row's softmax needs all
of its scores, n²d in sum. A local hop and a cross-block hop never compose here, so a chain is cut
at every block border it crosses (docs/paper.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chacal.ops.attend import row_lse, score_pieces, score_room
from chacal.ops.diagonal import leaf_size
from chacal.ops.inputs import Gamma, check_choice, check_count, run
from chacal.ops.library import Operation
from chacal.ops.ragged import PLANS, ByLength
from chacal.ops.resolvent import check_matrix, check_range, neumann, resolvent
from chacal.ops.samplers import (
    CAUSAL_ROWS,
    COLUMNS,
    ROWS,
    add_down,
    add_up,
    block_index,
    down,
    gather_columns,
    num_blocks,
    pick_rows,
    sum_blocks,
    up,
)
from chacal.ops.streaming import Adjoint, Rows, from_first, row_sums

BRANCHES = ("both", "local", "residual")
VALUES = ("rows", "mean")

LEAF, LEAF_STEP = 96, 16
"""Rows of a diagonal tile, about, and what they are a multiple of: the fastest in short blocks."""


def blockwise(
    A: Tensor,
    V: Tensor,
    gamma: Gamma,
    block_size: int,
    rows: str = "first",
    columns: str = "sum",
    branches: str = "both",
    values: str = "mean",
) -> Tensor:
    """Y = Y_blk + Y_res (Algorithm 1, Eqs. 3 to 7).

    Args:
        A: (..., n, n) lower triangular.
        V: (..., n, d) values.
        gamma: γ in [0, 1).
        block_size: m; the last block may be short.
        rows: the rows of P: "first" is causal, "mean" and "last" leak the future.
        columns: "sum" keeps the mass of A_res; "mean" is the paper's Pᵀ.
        branches: "both", "local" or "residual".
        values: Ṽ: "mean" is the mean of each block's values, "rows" is P V (Eq. 6 to the letter).

    Returns:
        (..., n, d).
    """
    check_matrix(A, V)
    check_range(gamma)
    check_count("block_size", block_size)
    check_block_options(block_size, None, rows, columns, branches, values)
    n = A.shape[-1]
    block = block_index(n, block_size, A.device)
    same = block[:, None] == block
    A_blk = torch.where(same, A, 0)
    A_res = torch.where(same, 0, A)
    # the resolvent of a block-diagonal matrix is that of each of its blocks
    Y = resolvent(A_blk, V, gamma) if branches != "residual" else torch.zeros_like(A @ V)
    if branches != "local":
        P = down(n, block_size, rows, A)
        C = gather_columns(n, block_size, columns, A)
        V_blocks = pick_rows(V, block_size, value_rows(rows, values))
        Y = Y + up(resolvent(P @ A_res @ C.mT, V_blocks, gamma), n, block_size)
    return Y


def block_resolvent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Gamma = 0.9,
    block_size: int | None = None,
    divisor: int | None = None,
    rows: str = "first",
    columns: str = "sum",
    branches: str = "both",
    values: str = "mean",
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Block-ChaCAL (Algorithm 1) from q, k, v, with A = softmax(q kᵀ · scale), causal.

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        gamma: γ in [0, 1): a float, or a tensor that broadcasts over the leading dimensions.
        block_size: m; the last block may be short.
        divisor: blocks of n // divisor instead (at least 1). Exactly one of the two is given.
        rows: "first" is causal; "mean" and "last" leak the future through q and k.
        columns: "sum" keeps the mass of the off-block attention; "mean" is the paper's Pᵀ.
        branches: "both", "local" or "residual".
        values: Ṽ: "mean" is the mean of a block's values, which is causal, since only later blocks
            read it; "rows" is P V (Eq. 6 to the letter), with rows="first" the value of a block's
            first token alone.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens. With a divisor, n counts those.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_block_options(block_size, divisor, rows, columns, branches, values)
    words = [rows, columns, branches, value_rows(rows, values)]
    plan = ByLength("block", [block_size or 0, divisor or 1], words)
    return run(
        plan.core, q, k, v, gamma=gamma, scale=scale, mask=mask, cu_seqlens=cu_seqlens,
        by_length=plan if divisor is not None or rows != "first" else None,
        causal=rows in CAUSAL_ROWS or branches == "local",
    )  # fmt: skip


def _plan(n: int, sizes: Sequence[int], words: Sequence[str]) -> tuple[Operation, tuple[Any, ...]]:
    block_size, divisor = sizes
    return BLOCK, (min(n, block_size or max(1, n // divisor)), *words)


PLANS["block"] = _plan


def reduced(A_res: Tensor, V: Tensor, gamma: Tensor, columns: str, block_size: int) -> Tensor:
    """Ỹ_res = S_γ(Ã_res) Ṽ (Eq. 7) from column sums of A_res."""
    A = A_res / column_size(columns, block_size)
    return (1 - gamma) * neumann(A, A @ V, gamma)


def reduced_backward(
    dY: Tensor, A_res: Tensor, V: Tensor, gamma: Tensor, columns: str, block_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of A_res, Ṽ and γ, for X = (I-γÃ)⁻¹ÃṼ and Ỹ_res = (1-γ) X.

    With U = (I-γÃ)⁻ᵀ (1-γ) dY:  dÃ = U (Ṽ + γX)ᵀ,  dṼ = ÃᵀU,  dγ = <U, ÃX> - <dY, X>.
    """
    size = column_size(columns, block_size)
    A = A_res / size
    X = neumann(A, A @ V, gamma)
    I = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    U = torch.linalg.solve_triangular((I - gamma * A).mT, (1 - gamma) * dY, upper=True)
    dgamma = (U * (A @ X) - dY * X).sum_to_size(gamma.shape)
    return U @ (V + gamma * X).mT / size, A.mT @ U, dgamma


def column_size(columns: str, block_size: int) -> int:
    """By how much a column sum is divided: it is of a past block, and so of a whole one."""
    return block_size if columns == "mean" else 1


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    scale: float,
    block_size: int,
    rows: str,
    columns: str,
    branches: str,
    v_rows: str,
) -> tuple[Tensor, ...]:
    """Y (B, n, d_v), and H = A Z within blocks, log-sum-exps of whole rows, of their past, A_res.

    Row r of block I has one softmax over everything up to r. Its mass on its own block drives the
    recursion of `streaming.py`, restarted at each block and told of the mass that lies before
    it; its mass on earlier blocks, if r is one of the rows that stand for I, adds to Ã_res.
    """
    B, n, _ = q.shape
    local = Rows(q, k, v, gamma, scale, leaf=leaf_size(block_size, LEAF, LEAF_STEP))
    lse_past = q.new_full((B, n), -torch.inf)
    blocks = num_blocks(n, block_size)
    A_res = q.new_zeros(B, blocks, blocks)
    room = score_room(q, B * block_size * n)
    for I in range(blocks):
        a, b = I * block_size, min(n, (I + 1) * block_size)
        chosen = standing(rows, a, b)
        mass = q.new_empty(B, b - a, I) if branches != "local" else None
        for heads, piece, S, spare in score_pieces(q[:, a:b], k[:, :a], scale, room):
            lse_past[heads, a:b][:, piece] = row_lse(S, spare)
            if mass is None:
                continue
            # the rows that stand for the block, if any are in this piece
            first, last = (min(max(t - a, piece.start), piece.stop)
                           for t in (chosen.start, chosen.stop))  # fmt: skip
            if first < last:
                # `spare` holds the logarithms of P
                log_P = spare[:, first - piece.start : last - piece.start]
                mass[heads, first:last] = log_P.exp().unflatten(-1, (I, -1)).sum(-1)
        local.lse[:, a:b] = lse_past[:, a:b]
        local.solve(a, b)
        if mass is not None:
            share = (lse_past[:, chosen] - local.lse[:, chosen]).exp_()
            mass = mass[:, chosen.start - a : chosen.stop - a]
            A_res[:, I, :I] = (mass * share.unsqueeze(-1)).mean(1)
    Y = torch.zeros_like(v) if branches == "residual" else local.H * (1 - gamma)
    if branches != "local":
        add_up(Y, reduced(A_res, pick_rows(v, block_size, v_rows), gamma, columns, block_size),
               block_size)  # fmt: skip
    return Y, local.H, local.lse, lse_past, A_res


def backward(
    dY: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    H: Tensor,
    lse: Tensor,
    lse_past: Tensor,
    A_res: Tensor,
    scale: float,
    m: int,
    rows: str,
    columns: str,
    branches: str,
    v_rows: str,
    gamma_needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and γ; A is computed again."""
    n = q.shape[1]
    residual = branches != "local"
    if residual:
        dA_res, dV_rows, dgamma_res = reduced_backward(
            sum_blocks(dY, m), A_res, pick_rows(v, m, v_rows), gamma, columns, m
        )
    if branches == "residual":
        dY = torch.zeros_like(dY)
    # what a row's softmax loses to the gradient of its masses on earlier blocks
    shift = torch.zeros_like(lse).unsqueeze(-1)
    share = (lse_past - lse).exp_().unsqueeze(-1)
    first_only = rows == "first" or not residual
    # the first block is the only one whose rows see nothing but their block
    v_local, H = v.clone(), H.clone()
    v_local[:, :m], H[:, :m] = from_first(v[:, :m], (1 - gamma) * H[:, :m], gamma)
    local = Adjoint(
        q, k, v_local, gamma, scale, False, H, lse, dY,
        shift=None if first_only else shift, leaf=leaf_size(m, LEAF, LEAF_STEP),
    )  # fmt: skip
    dq, dk, room = local.dq, local.dk, score_room(q, q.shape[0] * m * n)
    spans = [(I, I * m, min(n, (I + 1) * m)) for I in range(num_blocks(n, m))]
    for I, a, b in spans[1:] if residual else []:
        chosen = standing(rows, a, b)
        weight = 1 / (chosen.stop - chosen.start)
        for heads, piece, S, spare in score_pieces(q[:, chosen], k[:, :a], scale, room):
            at = slice(chosen.start + piece.start, chosen.start + piece.stop)
            P = torch.softmax(S, -1, out=spare)
            per_block = P.mul_(share[heads, at] * weight).unflatten(-1, (I, m))
            dA = dA_res[heads, None, I, :I]
            lost = (per_block.sum(-1) * dA).sum(-1, keepdim=True)
            shift[heads, at] = -lost
            # subtracted here, before the keys come in: dA and what a row loses nearly cancel
            dS = per_block.mul_((dA - lost / weight).unsqueeze(-1)).flatten(-2)
            dq[heads, at] += torch.bmm(dS, k[heads, :a]).mul_(scale)
            dk[heads, :a].baddbmm_(dS.mT, q[heads, at], alpha=scale)
    for _, a, b in spans:
        local.solve(a, b)
    if first_only:
        # a block's first row sees nothing of its block but itself: one entry to correct, and
        # the rest of the block keeps the fast kernel
        for _, a, _ in spans:
            own = (q[:, a] * k[:, a]).sum(-1, keepdim=True).mul_(scale) - lse[:, a, None]
            dS = own.exp_() * shift[:, a] * scale
            dq[:, a] += dS * k[:, a]
            dk[:, a] += dS * q[:, a]
    slope = share * -(local.W * H).sum(-1, keepdim=True)
    for _, a, b in spans[1:]:
        for heads, piece, S, spare in score_pieces(q[:, a:b], k[:, :a], scale, room):
            at = slice(a + piece.start, a + piece.stop)
            P = torch.softmax(S, -1, out=spare)
            steep = slope[heads, at]
            dq[heads, at].addcmul_(torch.bmm(P, k[heads, :a]), steep, value=scale)
            dk[heads, :a].baddbmm_(P.mT, q[heads, at] * steep, alpha=scale)
    dgamma = local.dgamma(gamma_needed)
    if residual:
        add_down(local.G, dV_rows, m, v_rows)
        if gamma_needed:
            dgamma += dgamma_res
    return dq, dk, local.G, dgamma


def kept(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, block_size: int,
    *options: object,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Room for H, two log-sum-exps of every row, and A_res."""
    blocks = num_blocks(q.shape[1], block_size)
    return (
        v.new_empty(v.shape),
        *row_sums(q, k, v),
        *row_sums(q, k, v),
        q.new_empty(q.shape[0], blocks, blocks),
    )


BLOCK = Operation(
    "block",
    "float scale, SymInt block_size, str rows, str columns, str branches, str v_rows",
    forward,
    backward,
    kept,
    num_kept=4,
    output_needed=False,
)
"""Algorithm 1 on (B, n, d)."""


def standing(rows: str, a: int, b: int) -> slice:
    """Which rows of the block a to b stand for it."""
    return {"first": slice(a, a + 1), "mean": slice(a, b), "last": slice(b - 1, b)}[rows]


def value_rows(rows: str, values: str) -> str:
    """By which rule of `samplers.pick_rows` a block's values become its one of Ṽ."""
    return rows if values == "rows" else "mean"


def check_block_options(
    block_size: int | None,
    divisor: int | None,
    rows: str,
    columns: str,
    branches: str,
    values: str,
) -> None:
    """Exactly one size, and known names."""
    if (block_size is None) == (divisor is None):
        raise ValueError(
            f"block_size is {block_size!r} and divisor is {divisor!r}; expected exactly one of "
            f"them, as in 'block@64' or 'block/3'"
        )
    if block_size is not None:
        check_count("block_size", block_size)
    if divisor is not None:
        check_count("divisor", divisor)
    check_choice("rows", rows, ROWS)
    check_choice("columns", columns, COLUMNS)
    check_choice("branches", branches, BRANCHES)
    check_choice("values", values, VALUES)
