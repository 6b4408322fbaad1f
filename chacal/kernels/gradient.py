"""The second launch of Eq. 1's gradients: dk and dq, given W and δ of the first (backward.py).

This is flash attention's backward, with W as the gradient, Z as the values and H as the output, but
for G, which is there already: four products for each square of A. Nothing waits. dq is added up in
memory.

Both launches in one walk would take five products instead of six, as flash attention does, but then
all that both hold did not fit into registers (tiles of 64, sm_80 and sm_90).

Plain twins: those of backward.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from chacal.kernels.lists import find_blocks
from chacal.kernels.tile import dot, find_sequence, scores

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def gradient_kernel(
    q, k, Z, W, G, lse, delta, gamma, dq, dk, cu, rows, begins,
    q_b, q_h, q_n, k_b, k_h, k_n, gamma_b, gamma_h,
    n, tiles, seqs, heads, group, window, block, near, scale,
    d: tl.constexpr, d_v: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, TILE: tl.constexpr,
    SEQS: tl.constexpr, DROP: tl.constexpr, WINDOW: tl.constexpr, ROUTES: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dk of one tile of keys of one head, and all that it adds to dq.

    dk (b, h, n, d) is written; dq (b, h, n, d) is float32 zeros, to be added to. G is read for
    `drop`.
    """
    at = tl.program_id(0)
    pairs = heads * (1 if SEQS else seqs)
    i, pair = at // pairs, at % pairs
    h = pair % heads
    b64, h64 = tl.cast(pair // heads, tl.int64), tl.cast(h, tl.int64)
    first, length = 0, n
    if SEQS:
        seq, first, length, first_tile = find_sequence(cu, i, seqs, TILE, SEQS)
        i -= first_tile
        if seq >= seqs:
            return
    row64 = tl.cast(first, tl.int64)
    q += b64 * q_b + h64 * q_h + row64 * q_n
    k += b64 * k_b + (h64 // group) * k_h + row64 * k_n
    row64 += (b64 * heads + h64) * n
    lse += row64
    delta += row64
    W += row64 * d_v
    dq += row64 * d

    r = tl.arange(0, TILE)
    c, c_v = tl.arange(0, D), tl.arange(0, D_V)
    in_d, in_dv = c < d, c_v < d_v
    start = tl.cast(i, tl.int64) * TILE
    s = i * TILE + r
    key = s < length
    here = (row64 + start) * d_v + r[:, None] * d_v + c_v[None, :]
    wide, deep = key[:, None] & in_dv[None, :], key[:, None] & in_d[None, :]
    k_i = tl.load(k + start * k_n + r[:, None] * k_n + c[None, :], deep, 0.0)
    Z_i = tl.load(Z + here, wide, 0.0)
    k_r, Z_r = k + (start + r) * k_n, Z + (row64 + start + r) * d_v
    hop = tl.zeros([TILE], tl.float32)
    if DROP:
        g = tl.load(gamma + b64 * gamma_b + h64 * gamma_h).to(tl.float32)
        G_i = tl.load(G + here, wide, 0.0).to(tl.float32)
        hop = g * tl.sum(G_i * Z_i.to(tl.float32), 1)
    q_at = q + r[:, None] * q_n + c[None, :]
    W_at = W + r[:, None] * d_v + c_v[None, :]
    dq_at = dq + r[:, None] * d + c[None, :]

    dk_i = tl.zeros([TILE, D], tl.float32)
    end = (length + TILE - 1) // TILE
    if WINDOW:
        end = tl.minimum(end, (i * TILE + TILE + window - 2) // TILE + 1)
    if ROUTES:
        rows += row64 * ROUTES
        begins += row64 // n * ((n + block - 1) // block + 1)
        first_block, last_block = find_blocks(i, n, block, TILE)
        end = tl.minimum(end, ((last_block + near + 1) * block - 1) // TILE + 1)
        for J in range(first_block, last_block + 1):
            f = tl.load(begins + J + 1)
            for at in tl.range(tl.load(begins + J), f, TILE, num_stages=STAGES):
                row = at + r < f
                t = tl.cast(tl.load(rows + at + r, row, 0), tl.int64)
                dk_i = exchange(
                    dk_i, k_i, k_r, Z_i, Z_r, key, q + t[:, None] * q_n + c[None, :], q + t * q_n,
                    row[:, None] & in_d[None, :], W + t[:, None] * d_v + c_v[None, :], W + t * d_v,
                    row[:, None] & in_dv[None, :], lse + t, delta + t, row,
                    (s // block == J)[:, None], row[None, :], hop,
                    dq + t[:, None] * d + c[None, :], scale,
                    d, d_v, D, D_V, DEPTH, False, UPCAST, PRECISION,
                )  # fmt: skip
    for j in tl.range(i, end, num_stages=STAGES):
        there = tl.cast(j, tl.int64) * TILE
        t = j * TILE + r
        row = t < length
        seen = t[None, :] >= s[:, None]
        if WINDOW:
            seen = seen & (t[None, :] - s[:, None] < window)
        if ROUTES:
            seen = seen & ((t // block)[None, :] <= (s // block + near)[:, None])
        dk_i = exchange(
            dk_i, k_i, k_r, Z_i, Z_r, key, q_at + there * q_n, q + (there + r) * q_n,
            row[:, None] & in_d[None, :], W_at + there * d_v, W + (there + r) * d_v,
            row[:, None] & in_dv[None, :], lse + t, delta + t, row, seen, t[None, :] == s[:, None],
            hop, dq_at + there * d, scale, d, d_v, D, D_V, DEPTH, DROP, UPCAST, PRECISION,
        )  # fmt: skip
    out = (row64 + start) * d + r[:, None] * d + c[None, :]
    tl.store(dk + out, (dk_i * scale).to(dk.dtype.element_ty), deep)


@triton.jit
def exchange(
    dk_i, k_i, k_r, Z_i, Z_r, key, q_at, q_r, deep, W_at, W_r, wide, lse_at, delta_at, row, seen,
    same, hop, dq_at, scale, d: tl.constexpr, d_v: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr,
    DEPTH: tl.constexpr, DROP: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk, over `scale`, with what a tile of rows adds; what its keys add to dq is added there.

    `k_r`, `Z_r`, `q_r` and `W_r` point to first channels: products of many channels go by pieces.
    """
    q_j = tl.load(q_at, deep, 0.0)
    if D_V <= DEPTH:
        W_j = tl.load(W_at, wide, 0.0)
    lse_j = tl.load(lse_at, row, float("inf")) * LOG2E
    delta_j = tl.load(delta_at, row, 0.0)
    if D <= DEPTH:
        S = dot(k_i, tl.trans(q_j), UPCAST, PRECISION)
    else:
        S = row_products(k_r, key, q_r, row, d, D, DEPTH, UPCAST, PRECISION)
    P = tl.exp2(S * (scale * LOG2E) - lse_j[None, :])
    if D_V <= DEPTH:
        dA = dot(Z_i, tl.trans(W_j), UPCAST, PRECISION)
    else:
        dA = row_products(Z_r, key, W_r, row, d_v, D_V, DEPTH, UPCAST, PRECISION)
    if DROP:
        dA = tl.where(same, dA - hop[:, None], dA)
    dS = tl.where(seen, P * (dA - delta_j[None, :]), 0.0).to(q_j.dtype)
    dk_i += dot(dS, q_j, UPCAST, PRECISION)
    dq_j = dot(tl.trans(dS), k_i, UPCAST, PRECISION) * scale
    tl.atomic_add(dq_at, dq_j, deep, sem="relaxed")
    return dk_i


@triton.jit
def row_products(
    a_r, a_row, b_r, b_row, d,
    D: tl.constexpr, DEPTH: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`scores` by pieces, from where rows begin."""
    c = tl.arange(0, DEPTH)
    a_at, b_at = a_r[:, None] + c[None, :], b_r[None, :] + c[:, None]
    a_row, b_row = a_row[:, None], b_row[None, :]
    return scores(a_r, a_at, a_row, b_at, b_row, c, d, D, DEPTH, UPCAST, PRECISION)
