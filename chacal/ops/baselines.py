"""The baselines: ordinary attention, dense, in a local window, and BigBird's window with links."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chacal.ops.inputs import check_count, run


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = A V, causal: PyTorch's `scaled_dot_product_attention`.

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """

    def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=scale
        )[0]

    return run(core, q, k, v, scale=scale, mask=mask, cu_seqlens=cu_seqlens)


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int = 32,
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = A V where row t sees keys t-window < s <= t; O(n · window · d).

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        window: how many keys, its own among them, a row sees.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_local_options(window)

    def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        S, V = _windows(q, k, v, window, scale)
        return _unfold_back(torch.softmax(S, -1) @ V, q.shape[1])

    return run(core, q, k, v, scale=scale, mask=mask, cu_seqlens=cu_seqlens)


def bigbird_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int = 32,
    links: int = 3,
    seed: int = 0,
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = A V where row t sees a window and `links` random earlier keys, the same in every call.

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        window: how many keys, its own among them, a row sees around it.
        links: random keys before the window (fewer where there are not so many).
        seed: decides the links, with t; neither n nor the call does.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_bigbird_options(window, links, seed)

    def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        n = q.shape[1]
        S, V = _windows(q, k, v, window, scale)
        rows = S.flatten(1, 2)[:, :n]  # (B, n, 2·tile)
        index, real = random_links(n, window, links, seed)
        to, visible = torch.from_numpy(index).to(q.device), torch.from_numpy(real).to(q.device)
        linked = torch.einsum("bnd,bnld->bnl", q, k[:, to]) * scale
        linked = linked.masked_fill(~visible, -math.inf)
        P = torch.softmax(torch.cat([rows, linked], -1), -1)
        near, far = P[..., : rows.shape[-1]], P[..., rows.shape[-1] :]
        near = F.pad(near, (0, 0, 0, S.shape[1] * S.shape[2] - n)).unflatten(1, S.shape[1:3])
        return _unfold_back(near @ V, n) + torch.einsum("bnl,bnld->bnd", far, v[:, to])

    return run(core, q, k, v, scale=scale, mask=mask, cu_seqlens=cu_seqlens)


def random_links(n: int, window: int, links: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, links) positions before each row's window, and which of them count.

    A link is a hash of (seed, row, which), so a row's links do not depend on n. A repeated link,
    or one that has nowhere to point, does not count.
    """
    t = np.arange(n, dtype=np.uint64)[:, None]
    j = np.arange(links, dtype=np.uint64)[None]
    with np.errstate(over="ignore"):
        x = _scramble(_scramble(np.full((1, 1), seed, np.uint64)) + t * np.uint64(links) + j)
    choices = np.arange(n)[:, None] - window + 1
    index = (x % np.maximum(choices, 1).astype(np.uint64)).astype(np.int64)
    first_seen = np.ones(index.shape, dtype=bool)
    for later in range(1, links):
        first_seen[:, later] = (index[:, :later] != index[:, later : later + 1]).all(-1)
    return index, first_seen & (choices > 0)


# NumPy's unsigned numbers have no torch twin to trace. That is what torch.compiler's
# assume_constant_result says, but to name that loads the whole compiler, half of our import
random_links._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_local_options(window: int) -> None:
    """A window of at least the row itself."""
    check_count("window", window)


def check_bigbird_options(window: int, links: int, seed: int) -> None:
    """Whole numbers."""
    check_local_options(window)
    check_count("links", links, least=0)
    check_count("seed", seed, least=0, bits=63)


def _scramble(x: np.ndarray) -> np.ndarray:
    """splitmix64: a bijection that scrambles every bit, the same on every machine."""
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _windows(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float) -> tuple[Tensor, Tensor]:
    """Scores of tiles of rows against their own and the previous tile, and those tiles' values.

    Returns (B, tiles, tile, 2·tile) scores, -inf outside the window, and (B, tiles, 2·tile, d_v).
    """
    n = q.shape[1]
    tile = min(window, n)
    tiles = -(-n // tile)
    pad = tiles * tile - n
    if pad:  # to pad by nothing is to copy
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    q, k, v = (x.unflatten(1, (tiles, tile)) for x in (q, k, v))
    k, v = (
        torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :-1], x], 2) for x in (k, v)
    )  # the tile before, zeros for the first
    t = torch.arange(tile, 2 * tile, device=q.device)[:, None]
    s = torch.arange(2 * tile, device=q.device)
    visible = (s <= t) & (t - s < window)
    exists = torch.ones(tiles, 1, 2 * tile, dtype=torch.bool, device=q.device)
    exists[0, :, :tile] = False
    S = (q @ k.mT).mul_(scale)
    return S.masked_fill_(~(visible & exists), -math.inf), v


def _unfold_back(Y: Tensor, n: int) -> Tensor:
    """(B, tiles, tile, d) -> (B, n, d)."""
    return Y.flatten(1, 2)[:, :n]
