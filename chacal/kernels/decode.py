"""One token after a past of keys and Z: the step of generation, in one launch.

    u = Σ_{s<t} A_ts Z_s,   Z_t = (V_t + γ u) / (1 - γ A_tt),   Y_t = (1-γ) (u + A_tt Z_t)

It reads the past once and that is all its time. So the past of one head is cut into pieces, each a
program of its own; the last of a head to finish joins their softmaxes, solves and writes. Which one
that is, a counter tells. Where the past begins and ends is read on the card, so that a cache of
fixed size, and a captured graph, work with it; a softmax does not care for order, so the past of a
window may lie in a ring.

Plain twin: `_one_row` of `ExactState` in decoding/states.py; for a window `TiledState`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chacal.kernels.configs import Config, find_config, find_target
from chacal.kernels.resolvent import INTERPRETING, padded, with_channels

PIECES = 16
"""Programs that share the past of one head, at most."""


@triton.jit
def decode_kernel(
    q, k, v, Z, Y, gamma, lengths, parts, finished,
    q_b, q_h, k_b, k_h, k_n, v_b, v_h, Z_b, Z_h, Z_n, gamma_b, gamma_h,
    capacity, heads, group, pieces, window, scale_log2,
    d: tl.constexpr, d_v: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, TILE: tl.constexpr,
    PIECES: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """A piece of the past of one head.

    The token at place t = lengths[b] has its key in the cache already, at slot t mod `capacity`;
    its Z is written there. `parts` (b, h, pieces, D_V + 2) float32 is room for the pieces' sums.
    """
    at = tl.program_id(0)
    piece, pair = at % pieces, at // pieces
    b64, h64 = tl.cast(pair // heads, tl.int64), tl.cast(pair % heads, tl.int64)
    q += b64 * q_b + h64 * q_h
    k += b64 * k_b + (h64 // group) * k_h
    v += b64 * v_b + (h64 // group) * v_h
    Z += b64 * Z_b + h64 * Z_h
    parts += tl.cast(pair, tl.int64) * pieces * (D_V + 2)
    length = tl.load(lengths + b64)
    c, c_v = tl.arange(0, D), tl.arange(0, D_V)
    in_d, in_dv = c < d, c_v < d_v
    q_t = tl.load(q + c, in_d, 0.0).to(tl.float32) * scale_log2

    first = tl.maximum(0, length - window + 1)
    each = (length - first + pieces - 1) // pieces
    begin = first + piece * each
    end = tl.minimum(begin + each, length)
    r = tl.arange(0, TILE)
    m = tl.full([TILE], float("-inf"), tl.float32)
    l = tl.zeros([TILE], tl.float32)
    u = tl.zeros([TILE, D_V], tl.float32)
    # a softmax for each of TILE lanes; they are joined at the end
    for s in range(begin, end, TILE):
        there = s + r < end
        slot = tl.cast((s + r) % capacity, tl.int64)
        k_s = tl.load(k + slot[:, None] * k_n + c[None, :], there[:, None] & in_d[None, :], 0.0).to(
            tl.float32
        )
        S = tl.where(there, tl.sum(k_s * q_t[None, :], 1), float("-inf"))
        top = tl.maximum(m, S)
        safe = tl.where(top == float("-inf"), 0.0, top)
        P = tl.exp2(S - safe)
        shrink = tl.exp2(m - safe)
        Z_s = tl.load(
            Z + slot[:, None] * Z_n + c_v[None, :], there[:, None] & in_dv[None, :], 0.0
        ).to(tl.float32)
        l = l * shrink + P
        u = u * shrink[:, None] + P[:, None] * Z_s
        m = top
    most = tl.max(m, 0)
    shrink = tl.exp2(m - tl.where(most == float("-inf"), 0.0, most))
    mine = parts + piece * (D_V + 2)
    tl.store(mine + c_v, tl.sum(u * shrink[:, None], 0))
    tl.store(mine + D_V, most)
    tl.store(mine + D_V + 1, tl.sum(l * shrink, 0))
    tl.debug_barrier()
    if tl.atomic_add(finished + pair, 1, sem="acq_rel") == pieces - 1:
        p = tl.arange(0, PIECES)
        is_piece = p < pieces
        p_at = parts + p * (D_V + 2)
        m_p = tl.load(p_at + D_V, is_piece, float("-inf"), cache_modifier=".cg")
        l_p = tl.load(p_at + D_V + 1, is_piece, 0.0, cache_modifier=".cg")
        u_p = tl.load(p_at[:, None] + c_v[None, :], is_piece[:, None], 0.0, cache_modifier=".cg")
        slot = tl.cast(length % capacity, tl.int64)
        S = tl.sum(tl.load(k + slot * k_n + c, in_d, 0.0).to(tl.float32) * q_t, 0)
        top = tl.maximum(tl.max(m_p, 0), S)
        P = tl.exp2(m_p - top)
        own = tl.exp2(S - top)
        total = tl.sum(P * l_p, 0) + own
        A_tt = own / total
        u_t = tl.sum(u_p * P[:, None], 0) / total
        g = tl.load(gamma + b64 * gamma_b + h64 * gamma_h).to(tl.float32)
        Z_t = tl.load(v + c_v, in_dv, 0.0).to(tl.float32) + g * u_t
        if not DROP:
            Z_t = Z_t / (1.0 - g * A_tt)
        tl.store(Z + slot * Z_n + c_v, Z_t.to(Z.dtype.element_ty), in_dv)
        H = u_t + A_tt * Z_t
        out = Y + tl.cast(pair, tl.int64) * d_v + c_v
        tl.store(out, ((1.0 - g) * H).to(Y.dtype.element_ty), in_dv)


def decode(
    q: Tensor,
    v: Tensor,
    gamma: Tensor,
    keys: Tensor,
    Z: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    drop: bool = False,
    window: int | None = None,
    config: Config | None = None,
) -> Tensor:
    """Y of one new token of each sequence; its Z goes to the cache.

    Args:
        q: (batch, heads, 1, d) the token's queries.
        v: (batch, key heads, 1, d_v) its values.
        gamma: γ in [0, 1), of a shape that broadcasts to (batch, heads).
        keys: (batch, key heads, capacity, d), the token's own among them.
        Z: (batch, heads, capacity, d_v) solved values of the tokens before; written to.
        lengths: (batch,) int32, how many tokens were before; token t is at slot t mod capacity.
        scale: multiplies q·k.
        drop: whether a token may not hop to itself on the way.
        window: how many keys, its own among them, a row sees; None for all. A ring of that many
            slots is enough for it.
        config: tile and warps, if not those of the table.

    Returns:
        (batch, heads, 1, d_v) in q's dtype.
    """
    B, h, _, d = q.shape
    d_v, capacity = v.shape[-1], keys.shape[2]
    target = find_target(q.device, INTERPRETING)
    config = config or find_config("decode", target, q.dtype, max(d, d_v))
    q, v, keys = map(with_channels, (q, v, keys))
    sees = capacity if window is None else min(window, capacity)
    pieces = max(1, min(PIECES, sees // (4 * config.tile)))
    gammas = gamma.float().expand(B, h)
    Y = q.new_empty(B, h, 1, d_v)
    parts = q.new_empty(B, h, pieces, padded(d_v) + 2, dtype=torch.float32)
    finished = torch.zeros(B * h, dtype=torch.int32, device=q.device)
    kernel: Any = decode_kernel
    kernel[(B * h * pieces,)](
        q, keys, v, Z, Y, gammas, lengths, parts, finished,
        *q.stride()[:2], *keys.stride()[:3], *v.stride()[:2], *Z.stride()[:3], *gammas.stride(),
        capacity, h, h // keys.shape[1], pieces, sees if window is not None else 2**30,
        scale * 1.4426950408889634,
        d=d, d_v=d_v, D=padded(d), D_V=padded(d_v), TILE=config.tile, PIECES=PIECES, DROP=drop,
        num_warps=config.warps, num_stages=config.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return Y
