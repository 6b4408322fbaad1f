"""The first launch of Eq. 1's gradients: the transposed system, and with it dV and dγ.

With G = dL/dV, W = (1-γ) dY + γ G and H = A Z (see ops/streaming.py),

    G = Aᵀ W,   dA = W Zᵀ,   dS = A ∘ (dA - δ),   δ = W·H,   dγ = <G, H> - <dY, H>.

W and G are made here, last rows first. A program has one tile of keys of one head and walks the
rows after it, from the last: two products for each square of A. For the tile i itself, with T its
own square of A and g = Σ_{t after} A_tsᵀ W_t,

    W_i = (I - γT)⁻ᵀ ((1-γ) dY_i + γ g),   G_i = g + Tᵀ W_i.

As in the forward kernel the inverse is made before the program waits: between W_{i+1} and W_i stand
two products. The second launch, dk and dq, is in gradient.py.

With `drop`, T has no diagonal in the system, and that of dA is (1-γ) dY·Z.

With ROUTES, a tile of keys walks the rows that chose its blocks, gathered, and then its neighbours
(lists.py).

Plain twins: `Adjoint` in ops/streaming.py, `TilesAdjoint` in ops/tiled.py for a window, and
ops/routed.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from chacal.kernels.lists import chose, find_blocks, find_row_below
from chacal.kernels.tile import (
    announce,
    diagonal,
    dot,
    find_sequence,
    scores,
    take_ticket,
    tile_inverse,
    times_columns,
    wait,
)

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def adjoint_kernel(
    q, k, v, Z, Y, dY, lse, gamma, W, G, delta, dgamma, cu, ticket, done, chosen, rows, begins,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, dY_b, dY_h, dY_n, gamma_b, gamma_h,
    n, tiles, seqs, heads, group, chunk, window, block, near, scale_log2,
    d: tl.constexpr, d_v: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, TILE: tl.constexpr,
    SEQS: tl.constexpr, DROP: tl.constexpr, WINDOW: tl.constexpr, ROUTES: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr, SOLVE: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """W, G, δ and a share of dγ of one tile of one head; arguments as in the forward kernel.

    W and G (b, h, n, d_v), delta (b, h, n) and dgamma, one number for each tile, are written. With
    ROUTES, `rows` and `begins` are those of lists.py.
    """
    if SEQS:
        at, h = take_ticket(ticket, tiles, heads, chunk)
        at = tiles - 1 - at
        seq, first, length, first_tile = find_sequence(cu, at, seqs, TILE, SEQS)
        i = at - first_tile
        if seq >= seqs:
            return
        b = 0
        done += seq * heads + h
        dgamma += h * tiles + at
        last = (length + TILE - 1) // TILE - 1
    else:
        at, pair = take_ticket(ticket, tiles, heads * seqs, chunk)
        i = tiles - 1 - at
        b = pair // heads
        h = pair % heads
        first, length = 0, n
        done += pair
        dgamma += pair * tiles + i
        last = tiles - 1
    b64, h64, row64 = tl.cast(b, tl.int64), tl.cast(h, tl.int64), tl.cast(first, tl.int64)
    q += b64 * q_b + h64 * q_h + row64 * q_n
    k += b64 * k_b + (h64 // group) * k_h + row64 * k_n
    v += b64 * v_b + (h64 // group) * v_h + row64 * v_n
    dY += b64 * dY_b + h64 * dY_h + row64 * dY_n
    row64 += (b64 * heads + h64) * n
    lse += row64
    delta += row64
    W += row64 * d_v
    g = tl.load(gamma + b64 * gamma_b + h64 * gamma_h).to(tl.float32)

    r = tl.arange(0, TILE)
    c, c_v = tl.arange(0, min(D, DEPTH)), tl.arange(0, D_V)
    in_dv = c_v < d_v
    start = tl.cast(i, tl.int64) * TILE
    s = i * TILE + r
    key = s < length
    here = (row64 + start) * d_v + r[:, None] * d_v + c_v[None, :]
    wide, k_row = key[:, None] & in_dv[None, :], key[:, None]
    k_at = k + start * k_n + r[:, None] * k_n + c[None, :]
    k_i = tl.load(k_at, k_row & (c < d)[None, :], 0.0)
    # rows lie along columns here: P is (keys, rows)
    q_at = q + r[None, :] * q_n + c[:, None]
    W_at = W + r[:, None] * d_v + c_v[None, :]

    received = tl.zeros([TILE, D_V], tl.float32)
    # tiles are counted from the last: tile `last - e` is solved when `done` is more than e
    e = 0
    if WINDOW:
        e = tl.maximum(0, last - (i * TILE + TILE + window - 2) // TILE)
    if ROUTES:
        chosen += row64 * ROUTES
        rows += row64 * ROUTES
        begins += row64 // n * ((n + block - 1) // block + 1)
        first_block, last_block = find_blocks(i, n, block, TILE)
        e = tl.maximum(0, last - ((last_block + near + 1) * block - 1) // TILE)
        for J in range(first_block, last_block + 1):
            f = tl.load(begins + J)
            # those of this tile and the next come below
            end = find_row_below(rows, f, tl.load(begins + J + 1), (i + 2) * TILE)
            while f < end:
                # a whole piece at least
                piece = tl.minimum(f + TILE, end)
                have = wait(done, last - tl.load(rows + piece - 1) // TILE + 1)
                solved = find_row_below(rows, piece, end, (last - have + 1) * TILE)
                if solved < end:
                    solved = f + (solved - f) // TILE * TILE
                for at in tl.range(f, solved, TILE, num_stages=STAGES):
                    row = at + r < solved
                    t = tl.cast(tl.load(rows + at + r, row, 0), tl.int64)
                    received += sent(
                        k_i, k_at, k_row, q + t[None, :] * q_n + c[:, None], lse + t, row,
                        W + t[:, None] * d_v + c_v[None, :], in_dv, (s // block == J)[:, None], c,
                        d, scale_log2, D, DEPTH, True, UPCAST, PRECISION,
                    )  # fmt: skip
                f = solved
    while e < last - i - 1:
        solved = tl.minimum(wait(done, e + 1), last - i - 1)
        for at in tl.range(e, solved, num_stages=STAGES):
            j = last - at
            there = tl.cast(j, tl.int64) * TILE
            t = j * TILE + r
            row = t < length
            seen = row[None, :]
            if WINDOW:
                seen = t[None, :] - s[:, None] < window
            if ROUTES:
                seen = (t // block)[None, :] <= (s // block + near)[:, None]
            received += sent(
                k_i, k_at, k_row, q_at + there * q_n, lse + t, row, W_at + there * d_v, in_dv,
                seen, c, d, scale_log2, D, DEPTH, WINDOW or ROUTES > 0, UPCAST, PRECISION,
            )  # fmt: skip
        e = solved

    # all that the tile needs no W for; keys by rows, so this is T transposed
    q_start = q_at + start * q_n
    S = scores(k_i, k_at, k_row, q_start, key[None, :], c, d, D, DEPTH, UPCAST, PRECISION)
    lse_i = tl.load(lse + s, key, float("inf")) * LOG2E
    own = r[:, None] <= r[None, :]
    if WINDOW:
        own = own & (r[None, :] - r[:, None] < window)
    if ROUTES:
        own = own & routed(chosen, s, key, s, block, near, ROUTES)
    T = tl.exp2(S * scale_log2 - lse_i[None, :])
    T = tl.where(own, T, 0.0)
    if DROP:
        A_tt = diagonal(T, TILE)
    inverse = tl.trans(tile_inverse(tl.trans(T), g, TILE, DROP, SOLVE))

    # the barrier keeps the compiler from keeping T: registers are dearer than one product
    tl.debug_barrier()
    there = start + TILE
    t = there + r
    row = t < length
    lse_j = tl.load(lse + t, row, float("inf")) * LOG2E
    q_there = q_at + there * q_n
    S = scores(k_i, k_at, k_row, q_there, row[None, :], c, d, D, DEPTH, UPCAST, PRECISION)
    P = tl.exp2(S * scale_log2 - lse_j[None, :])
    if WINDOW:
        P = tl.where(t[None, :] - s[:, None] < window, P, 0.0)
    if ROUTES:
        P = tl.where(routed(chosen, t, row, s, block, near, ROUTES), P, 0.0)
    P = P.to(W.dtype.element_ty)
    dY_at = dY + start * dY_n + r[:, None] * dY_n + c_v[None, :]
    dY_i = tl.load(dY_at, wide, 0.0)
    wait(done, last - i)
    seen = row[:, None] & in_dv[None, :]
    W_j = tl.load(W_at + there * d_v, seen, 0.0, cache_modifier=".cg")
    received += dot(P, W_j, UPCAST, PRECISION)
    x = (1.0 - g) * dY_i.to(tl.float32)
    if DROP:
        x += (g * A_tt)[:, None] * x
    x += g * received
    W_i = times_columns(inverse, x, TILE, D_V, COLUMNS, SOLVE).to(W.dtype.element_ty)
    tl.store(W_at + start * d_v, W_i, wide)
    announce(done)

    H = offset_H(Y + here, v, c_v, in_dv, wide, g, DROP)
    delta_i = tl.sum(W_i.to(tl.float32) * H, 1)
    share = -tl.sum(tl.load(dY_at, wide, 0.0).to(tl.float32) * H, 1)
    q_start = q_at + start * q_n
    S = scores(k_i, k_at, k_row, q_start, key[None, :], c, d, D, DEPTH, UPCAST, PRECISION)
    T = tl.exp2(S * scale_log2 - lse_i[None, :])
    if DROP:
        own = own & (r[:, None] != r[None, :])
    T = tl.where(own, T, 0.0).to(W_i.dtype)
    received += dot(T, W_i, UPCAST, PRECISION)
    if DROP:
        dH = (1.0 - g) * tl.load(dY_at, wide, 0.0).to(tl.float32)
        received += A_tt[:, None] * dH
    tl.store(G + here, received.to(G.dtype.element_ty), wide)
    tl.debug_barrier()
    share += tl.sum(received * offset_H(Y + here, v, c_v, in_dv, wide, g, DROP), 1)
    if DROP:
        hop = A_tt * tl.sum(received * tl.load(Z + here, wide, 0.0).to(tl.float32), 1)
        delta_i -= g * hop
        share -= hop
    tl.store(delta + s, delta_i, key)
    tl.store(dgamma, tl.sum(share, 0))


@triton.jit
def sent(
    k_i, k_at, k_row, q_at, lse_at, row, W_at, in_dv, seen, c, d, scale_log2,
    D: tl.constexpr, DEPTH: tl.constexpr, SOME: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What keys receive from a tile of rows whose W is known; SOME: from those that see them."""
    S = scores(k_i, k_at, k_row, q_at, row[None, :], c, d, D, DEPTH, UPCAST, PRECISION)
    lse_j = tl.load(lse_at, row, float("inf")) * LOG2E
    P = tl.exp2(S * scale_log2 - lse_j[None, :])
    if SOME:
        P = tl.where(seen, P, 0.0)
    W_j = tl.load(W_at, row[:, None] & in_dv[None, :], 0.0, cache_modifier=".cg")
    return dot(P.to(W_j.dtype), W_j, UPCAST, PRECISION)


@triton.jit
def routed(chosen, t, row, s, block, near, ROUTES: tl.constexpr):
    """Which rows, along columns, see which keys: near, or chosen."""
    is_near = (t // block)[None, :] <= (s // block + near)[:, None]
    chosen_at = chosen + t[None, :] * ROUTES
    return is_near | chose(chosen_at, row[None, :], (s // block)[:, None], ROUTES)


@triton.jit
def offset_H(Y_at, v, c_v, in_dv, wide, g, DROP: tl.constexpr):
    """H of a tile, from Y; of values counted from the sequence's first, unless DROP."""
    H = tl.load(Y_at, wide, 0.0).to(tl.float32)
    if not DROP:
        H -= tl.load(v + c_v, in_dv, 0.0).to(tl.float32)[None, :]
    return tl.where(wide, H / (1.0 - g), 0.0)
