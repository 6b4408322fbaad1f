"""The gradients of Eq. 1 in one launch: the transposed system, last rows first.

With G = dL/dV, W = (1-γ) dY + γ G and H = A Z (see ops/streaming.py),

    G = Aᵀ W,   dA = W Zᵀ,   dS = A ∘ (dA - δ),   δ = W·H,   dγ = <G, H> - <dY, H>.

A program has one tile of keys of one head. It walks the rows after the tile, from the last: given
their W and δ this is an ordinary flash backward with W as the gradient, Z as the values and H as
the output, which makes the tile's share of G, dk and, added up in memory, dq. For the tile i
itself, with T its own square of A and g = Σ_{t after} A_tsᵀ W_t,

    W_i = (I - γT)⁻ᵀ ((1-γ) dY_i + γ g),   G_i = g + Tᵀ W_i.

So the system is solved and the gradients are taken in one walk: five products for each square of A,
as many as flash attention's backward needs. As in the forward kernel, between W_{i+1} and W_i stand
two products; what else tile i + 1 sends comes after W_i is announced.

With `drop`, T has no diagonal in the system, and that of dA is (1-γ) dY·Z.

Plain twins: `Adjoint` in ops/streaming.py, and `TilesAdjoint` in ops/tiled.py for a window.
"""

from __future__ import annotations

import triton
import triton.language as tl

from chacal.kernels.tile import (
    announce,
    diagonal,
    dot,
    find_sequence,
    solve_transposed,
    take_ticket,
    tile_inverse,
    wait,
)

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def send(
    P, Z_i, k_i, q_j, W_j, delta_j, dk_i, dq_at, row, in_d, scale,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What the scores of keys i and rows j add to dk_i, returned, and to dq, added in memory.

    P (keys, rows) are the weights.
    """
    dS = P * (dot(Z_i, tl.trans(W_j), UPCAST, PRECISION) - delta_j[None, :])
    return send_scores(dS, k_i, q_j, dk_i, dq_at, row, in_d, scale, UPCAST, PRECISION)


@triton.jit
def send_scores(
    dS, k_i, q_j, dk_i, dq_at, row, in_d, scale, UPCAST: tl.constexpr, PRECISION: tl.constexpr
):
    """dk_i + dS q_j; dSᵀ k_i is added to dq."""
    dS = dS.to(q_j.dtype)
    dq = dot(tl.trans(dS), k_i, UPCAST, PRECISION) * scale
    tl.atomic_add(dq_at, dq, row[:, None] & in_d[None, :], sem="relaxed")
    return dk_i + dot(dS, q_j, UPCAST, PRECISION)


@triton.jit
def backward_kernel(
    q, k, v, Z, Y, dY, lse, gamma, W, G, delta, dq, dk, dgamma, cu, ticket, done,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, dY_b, dY_h, dY_n, gamma_b, gamma_h,
    n, tiles, seqs, heads, group, chunk, window, scale,
    d: tl.constexpr, d_v: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, TILE: tl.constexpr,
    SEQS: tl.constexpr, DROP: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of keys of one head; arguments as in the forward kernel.

    W and G (b, h, n, d_v), dk (b, h, n, d), delta (b, h, n) and dgamma, one number for each tile, are
    written; dq (b, h, n, d) is float32 zeros, to be added to.
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
    dq += row64 * d
    g = tl.load(gamma + b64 * gamma_b + h64 * gamma_h).to(tl.float32)
    scale_log2 = scale * LOG2E

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
    q_at = q + r[:, None] * q_n + c[None, :]
    W_at = W + r[:, None] * d_v + c_v[None, :]
    dq_at = dq + r[:, None] * d + c[None, :]

    received = tl.zeros([TILE, D_V], tl.float32)
    dk_i = tl.zeros([TILE, D], tl.float32)
    # tiles are counted from the last: tile `last - e` is solved when `done` is more than e
    e = 0
    if WINDOW:
        e = tl.maximum(0, last - (i * TILE + TILE + window - 2) // TILE)
    while e < last - i - 1:
        solved = tl.minimum(wait(done, e + 1), last - i - 1)
        for at in tl.range(e, solved, num_stages=STAGES):
            j = last - at
            there = tl.cast(j, tl.int64) * TILE
            t = j * TILE + r
            row = t < length
            q_j = tl.load(q_at + there * q_n, row[:, None] & in_d[None, :], 0.0)
            lse_j = tl.load(lse + t, row, float("inf")) * LOG2E
            P = tl.exp2(dot(k_i, tl.trans(q_j), UPCAST, PRECISION) * scale_log2 - lse_j[None, :])
            if WINDOW:
                P = tl.where(t[None, :] - s[:, None] < window, P, 0.0)
            W_j = tl.load(
                W_at + there * d_v, row[:, None] & in_dv[None, :], 0.0, cache_modifier=".cg"
            )
            delta_j = tl.load(delta + t, row, 0.0, cache_modifier=".cg")
            received += dot(P.to(W_j.dtype), W_j, UPCAST, PRECISION)
            dk_i = send(
                P, Z_i, k_i, q_j, W_j, delta_j, dk_i, dq_at + there * d, row, in_d, scale,
                UPCAST, PRECISION,
            )  # fmt: skip
        e = solved

    # all that the tile needs no W for
    q_own = q_at + start * q_n
    q_i = tl.load(q_own, deep, 0.0)
    lse_i = tl.load(lse + s, key, float("inf")) * LOG2E
    T = tl.exp2(dot(q_i, tl.trans(k_i), UPCAST, PRECISION) * scale_log2 - lse_i[:, None])
    own = r[:, None] >= r[None, :]
    if WINDOW:
        own = own & (r[:, None] - r[None, :] < window)
    T = tl.where(own, T, 0.0)
    A_tt = diagonal(T, TILE)
    inv_a, inv_c, inv_b = tile_inverse(T, g, TILE, DROP, SOLVE)

    # what later tiles send to be solved with; the rest of it, below, is made anew: registers are
    # dearer, and the barrier keeps the compiler from joining both
    tl.debug_barrier()
    there = start + TILE
    t = there + r
    row = t < length
    lse_j = tl.load(lse + t, row, float("inf")) * LOG2E
    q_next, W_next = q_at + there * q_n, W_at + there * d_v
    late, wide_late = row[:, None] & in_d[None, :], row[:, None] & in_dv[None, :]
    q_j = tl.load(q_next, late, 0.0)
    P = tl.exp2(dot(k_i, tl.trans(q_j), UPCAST, PRECISION) * scale_log2 - lse_j[None, :])
    if WINDOW:
        P = tl.where(t[None, :] - s[:, None] < window, P, 0.0)
    P = P.to(Z_i.dtype)
    wait(done, last - i)
    W_j = tl.load(W_next, wide_late, 0.0, cache_modifier=".cg")
    received += dot(P, W_j, UPCAST, PRECISION)
    dY_at = dY + start * dY_n + r[:, None] * dY_n + c_v[None, :]
    x = (1.0 - g) * tl.load(dY_at, wide, 0.0).to(tl.float32)
    if DROP:
        x += (g * A_tt)[:, None] * x
    x += g * received
    W_i = solve_transposed(inv_a, inv_c, inv_b, x, TILE, D_V, SOLVE).to(Z.dtype.element_ty)
    tl.store(W_at + start * d_v, W_i, wide)

    H = tl.load(Y + here, wide, 0.0).to(tl.float32)
    if not DROP:
        H -= tl.load(v + c_v, in_dv, 0.0).to(tl.float32)[None, :]
    H = tl.where(wide, H / (1.0 - g), 0.0)
    delta_i = tl.sum(W_i.to(tl.float32) * H, 1)
    if not DROP:
        tl.store(delta + s, delta_i, key)
        announce(done)

    # keys by rows, as P
    T = tl.exp2(dot(k_i, tl.trans(q_i), UPCAST, PRECISION) * scale_log2 - lse_i[None, :])
    seen = r[:, None] <= r[None, :]
    if WINDOW:
        seen = seen & (r[None, :] - r[:, None] < window)
    T = tl.where(seen, T, 0.0)
    dH = tl.load(dY_at, wide, 0.0).to(tl.float32)
    if DROP:
        inner = tl.where(r[:, None] == r[None, :], 0.0, T).to(W_i.dtype)
        received += A_tt[:, None] * ((1.0 - g) * dH) + dot(inner, W_i, UPCAST, PRECISION)
        hop = g * tl.sum(received * Z_i.to(tl.float32), 1)
        delta_i -= hop * A_tt
        tl.store(delta + s, delta_i, key)
        announce(done)
        hops = H - A_tt[:, None] * Z_i.to(tl.float32)
        tl.store(dgamma, tl.sum(received * hops - dH * H))
    else:
        received += dot(T.to(W_i.dtype), W_i, UPCAST, PRECISION)
        tl.store(dgamma, tl.sum((received - dH) * H))
    tl.store(G + here, received.to(G.dtype.element_ty), wide)
    dA = dot(Z_i, tl.trans(W_i), UPCAST, PRECISION)
    if DROP:
        dA = tl.where(r[:, None] == r[None, :], dA - hop[:, None], dA)
    dk_i = send_scores(
        T * (dA - delta_i[None, :]), k_i, q_i, dk_i, dq_at + start * d, key, in_d, scale,
        UPCAST, PRECISION,
    )  # fmt: skip
    tl.debug_barrier()
    q_j = tl.load(q_next, late, 0.0)
    P = tl.exp2(dot(k_i, tl.trans(q_j), UPCAST, PRECISION) * scale_log2 - lse_j[None, :])
    if WINDOW:
        P = tl.where(t[None, :] - s[:, None] < window, P, 0.0)
    W_j = tl.load(W_next, wide_late, 0.0, cache_modifier=".cg")
    delta_j = tl.load(delta + t, row, 0.0, cache_modifier=".cg")
    dk_i = send(
        P, Z_i, k_i, q_j, W_j, delta_j, dk_i, dq_at + there * d, row, in_d, scale,
        UPCAST, PRECISION,
    )  # fmt: skip
    out = (row64 + start) * d + r[:, None] * d + c[None, :]
    tl.store(dk + out, (dk_i * scale).to(dk.dtype.element_ty), deep)
