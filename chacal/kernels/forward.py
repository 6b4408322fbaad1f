"""Eq. 1 from q, k, v in one launch: a flash attention whose values are solved on the way.

With H = A Z, ChaCAL is Z = V + γ H and Y = (1-γ) H. A program has one tile of rows of one head. It
walks the keys before the tile with an online softmax, as ordinary attention would, multiplying with
Z instead of V. For the tile i itself, with T its own square of A and u = Σ_{s before} A_ts Z_s,

    Z_i = (I - γT)⁻¹ (V_i + γ u),   H_i = u + T Z_i.

Scores need no Z. So all that can be done without the tile before it, the inverse above all, is done
before the program waits for it: between Z_{i-1} and Z_i stand two products and no more.

Where rows of A sum to 1 (all but `drop`), values are counted from the sequence's first, v_0: that
changes Z by v_0 / (1-γ) and nothing else, and near γ = 1 it keeps what distinguishes rows from
being rounded away (`from_first` in ops/streaming.py). Z is stored so, in the dtype of the inputs;
scores, softmax and solve are float32.

With ROUTES, rows see near blocks of keys and those that they chose (lists.py): the walk is then the
list of the tile, and its neighbours. A block waits for the tiles that hold it, all earlier.

Plain twins: `Rows` in ops/streaming.py, `Tiles` in ops/tiled.py for a window, and ops/routed.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from chacal.kernels.lists import chose, find_unsolved_block, tiles_before
from chacal.kernels.tile import (
    announce,
    dot,
    find_sequence,
    scores,
    take_ticket,
    tile_inverse,
    times_columns,
    wait,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def forward_kernel(
    q, k, v, Z, Y, lse, gamma, cu, ticket, done, chosen, blocks,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, gamma_b, gamma_h,
    n, tiles, seqs, heads, group, chunk, window, block, near, scale_log2,
    d: tl.constexpr, d_v: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, TILE: tl.constexpr,
    SEQS: tl.constexpr, DROP: tl.constexpr, WINDOW: tl.constexpr, ROUTES: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr, SOLVE: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head.

    q, k and v have strides (b, h, n) and end in contiguous channels; Z and Y (b, h, n, d_v) and lse
    (b, h, n) are contiguous; γ has strides (b, h). `group` query heads share a key head. With SEQS
    (packed sequences) b is 1, `cu` says where sequences begin, and n is the length of all. With
    ROUTES, `chosen` (b, h, n, ROUTES) and `blocks` are those of lists.py.
    """
    if SEQS:
        at, h = take_ticket(ticket, tiles, heads, chunk)
        seq, first, length, first_tile = find_sequence(cu, at, seqs, TILE, SEQS)
        i = at - first_tile
        if seq >= seqs:
            return
        b = 0
        done += seq * heads + h
    else:
        i, pair = take_ticket(ticket, tiles, heads * seqs, chunk)
        b = pair // heads
        h = pair % heads
        first, length = 0, n
        done += pair
    b64, h64, row64 = tl.cast(b, tl.int64), tl.cast(h, tl.int64), tl.cast(first, tl.int64)
    q += b64 * q_b + h64 * q_h + row64 * q_n
    k += b64 * k_b + (h64 // group) * k_h + row64 * k_n
    v += b64 * v_b + (h64 // group) * v_h + row64 * v_n
    row64 += (b64 * heads + h64) * n
    Z += row64 * d_v
    Y += row64 * d_v
    lse += row64
    g = tl.load(gamma + b64 * gamma_b + h64 * gamma_h).to(tl.float32)

    r = tl.arange(0, TILE)
    c, c_v = tl.arange(0, min(D, DEPTH)), tl.arange(0, D_V)
    t = i * TILE + r
    row = t < length
    start = tl.cast(i, tl.int64) * TILE
    tail = tl.maximum(start - TILE, 0)  # the tile before, where there is one
    q_at = q + start * q_n + r[:, None] * q_n + c[None, :]
    k_at = k + r[None, :] * k_n + c[:, None]
    Z_at = Z + r[:, None] * d_v + c_v[None, :]
    in_dv = c_v < d_v
    q_row = row[:, None]
    q_i = tl.load(q_at, q_row & (c < d)[None, :], 0.0)

    m = tl.full([TILE], float("-inf"), tl.float32)
    l = tl.zeros([TILE], tl.float32)
    u = tl.zeros([TILE, D_V], tl.float32)
    j = 0
    if WINDOW:
        j = tl.maximum(0, i * TILE - window + 1) // TILE
    if ROUTES:
        chosen_at = chosen + (row64 + start + r) * ROUTES
        j = tl.maximum(0, i * TILE // block - near) * block // TILE
        blocks += (row64 // n * tiles + i) * (TILE * ROUTES + 1)
        e, listed = 0, tl.load(blocks)
        blocks += 1
        # a block in pieces of the kernel's tiles
        pieces = (block + TILE - 1) // TILE
        while e < listed:
            have = wait(done, tiles_before(tl.load(blocks + e), block, tail, TILE))
            solved = find_unsolved_block(blocks, e + 1, listed, have, block, tail, TILE)
            for at in tl.range(e * pieces, solved * pieces, num_stages=STAGES):
                J = tl.load(blocks + at // pieces)
                piece = J * block + at % pieces * TILE
                there = tl.cast(piece, tl.int64)
                key = piece + r < tl.minimum((J + 1) * block, tail)
                S = scores(
                    q_i, q_at, q_row, k_at + there * k_n, key[None, :], c, d, D, DEPTH, UPCAST,
                    PRECISION,
                ) * scale_log2  # fmt: skip
                hit = chose(chosen_at, row, J, ROUTES)
                S = tl.where(hit[:, None] & key[None, :], S, float("-inf"))
                Z_mask = key[:, None] & in_dv[None, :]
                m, l, u = absorb(m, l, u, S, Z_at + there * d_v, Z_mask, True, UPCAST, PRECISION)
            e = solved
    while j < i - 1:
        solved = tl.minimum(wait(done, j + 1), i - 1)
        for at in tl.range(j, solved, num_stages=STAGES):
            there = tl.cast(at, tl.int64) * TILE
            S = scores(
                q_i, q_at, q_row, k_at + there * k_n, True, c, d, D, DEPTH, UPCAST, PRECISION
            ) * scale_log2  # fmt: skip
            if WINDOW:
                S = tl.where(t[:, None] - (at * TILE + r)[None, :] < window, S, float("-inf"))
            if ROUTES:
                is_near = (t // block)[:, None] <= ((at * TILE + r) // block + near)[None, :]
                S = tl.where(is_near, S, float("-inf"))
            m, l, u = absorb(
                m, l, u, S, Z_at + there * d_v, in_dv[None, :], WINDOW or ROUTES > 0, UPCAST,
                PRECISION,
            )  # fmt: skip
        j = solved

    # the tile before and the tile itself: first the rest of the softmax, which needs no Z
    s = tail + r
    earlier = s < start
    k_tail = k_at + tail * k_n
    k_own = k_at + start * k_n
    before = earlier[None, :]
    # only rows past the end see keys past the end, and they are not stored
    own = r[:, None] >= r[None, :]
    if WINDOW:
        before = before & (t[:, None] - s[None, :] < window)
        own = own & (r[:, None] - r[None, :] < window)
    if ROUTES:
        before = before & routed(chosen_at, row, t, s // block, block, near, ROUTES)
        own = own & routed(chosen_at, row, t, t // block, block, near, ROUTES)
    T = scores(q_i, q_at, q_row, k_own, row[None, :], c, d, D, DEPTH, UPCAST, PRECISION)
    T = tl.where(own, T * scale_log2, float("-inf"))
    top = tl.maximum(m, tl.max(T, 1))
    l = l * tl.exp2(m - top) + tl.sum(tl.exp2(T - top[:, None]), 1)
    S = scores(q_i, q_at, q_row, k_tail, earlier[None, :], c, d, D, DEPTH, UPCAST, PRECISION)
    S = tl.where(before, S * scale_log2, float("-inf"))
    most = tl.maximum(top, tl.max(S, 1))
    l = l * tl.exp2(top - most) + tl.sum(tl.exp2(S - most[:, None]), 1)
    lse_2 = most + tl.log2(l)
    tl.store(lse + t, lse_2 * LN2, row)
    u *= tl.exp2(m - lse_2)[:, None]
    T = tl.exp2(T - lse_2[:, None])
    inverse = tile_inverse(T, g, TILE, DROP, SOLVE)

    # scores of these two tiles are made anew when they are wanted: registers are dearer. The
    # barrier keeps the compiler from joining both
    tl.debug_barrier()
    S = scores(q_i, q_at, q_row, k_tail, earlier[None, :], c, d, D, DEPTH, UPCAST, PRECISION)
    S = tl.where(before, tl.exp2(S * scale_log2 - lse_2[:, None]), 0.0).to(Z.dtype.element_ty)
    v_at = v + start * v_n + r[:, None] * v_n + c_v[None, :]
    v_i = tl.load(v_at, row[:, None] & in_dv[None, :], 0.0)

    wait(done, i)
    Z_j = tl.load(Z_at + tail * d_v, earlier[:, None] & in_dv[None, :], 0.0, cache_modifier=".cg")
    u += dot(S, Z_j, UPCAST, PRECISION)
    x = v_i.to(tl.float32) + g * u
    if not DROP:
        x -= tl.load(v + c_v, in_dv, 0.0).to(tl.float32)[None, :]
    Z_i = times_columns(inverse, x, TILE, D_V, COLUMNS, SOLVE).to(Z.dtype.element_ty)
    out = start * d_v + r[:, None] * d_v + c_v[None, :]
    tl.store(Z + out, Z_i, row[:, None] & in_dv[None, :])
    announce(done)

    T = scores(q_i, q_at, q_row, k_own, row[None, :], c, d, D, DEPTH, UPCAST, PRECISION)
    T = tl.where(own, tl.exp2(T * scale_log2 - lse_2[:, None]), 0.0).to(Z.dtype.element_ty)
    H = (1.0 - g) * (u + dot(T, Z_i, UPCAST, PRECISION))
    if not DROP:
        H += tl.load(v + c_v, in_dv, 0.0).to(tl.float32)[None, :]
    tl.store(Y + out, H.to(Y.dtype.element_ty), row[:, None] & in_dv[None, :])


@triton.jit
def absorb(
    m, l, u, S, Z_at, seen, SOME: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """A step of the online softmax: greatest score, sum and weighted Z with those of S added.

    SOME says that a row may see nothing of a tile that others see, nor anything so far.
    """
    top = tl.maximum(m, tl.max(S, 1))
    finite = top
    if SOME:
        finite = tl.where(top == float("-inf"), 0.0, top)
    P = tl.exp2(S - finite[:, None])
    shrink = tl.exp2(m - finite)
    l = l * shrink + tl.sum(P, 1)
    Z_j = tl.load(Z_at, seen, 0.0, cache_modifier=".cg")
    u = u * shrink[:, None] + dot(P.to(Z_j.dtype), Z_j, UPCAST, PRECISION)
    return top, l, u


@triton.jit
def routed(chosen_at, row, t, key_block, block, near, ROUTES: tl.constexpr):
    """Which keys, by their blocks, are near or chosen."""
    is_near = (t // block)[:, None] <= (key_block + near)[None, :]
    return is_near | chose(chosen_at[:, None], row[:, None], key_block[None, :], ROUTES)
