"""Slow float64 twins of the operators, with loops, in the paper's letters.

Nothing here comes from `chacal`. Every function works on one sequence, `(n, d)`; `each` carries
it over leading dimensions. No solver is used: a triangular inverse is forward substitution.
"""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

Visible = Callable[[int, int], bool]


def each(function: Callable[..., Tensor], *tensors: Tensor, gamma: Tensor | None = None) -> Tensor:
    """`function` on every (n, d) of tensors (..., n, d), in float64.

    With `gamma` (...,), each call also receives its own γ, as a float.
    """
    leading = tensors[0].shape[:-2]
    flat = [x.double().reshape(-1, *x.shape[-2:]) for x in tensors]
    if gamma is None:
        rows = [function(*xs) for xs in zip(*flat, strict=True)]
    else:
        gammas = gamma.double().expand(leading).reshape(-1).tolist()
        rows = [function(*xs, g) for *xs, g in zip(*flat, gammas, strict=True)]
    return torch.stack(rows).reshape(*leading, *rows[0].shape)


def causal(t: int, s: int) -> bool:
    return s <= t


def within(window: int) -> Visible:
    """Row t sees the last `window` keys, its own among them."""
    return lambda t, s: s <= t and t - s < window


def at_offsets(offsets: str | tuple[int, ...]) -> Visible:
    """Row t sees itself and t - 2^j ("powers"), t - (j²+1) ("squares"), or given offsets back."""

    def visible(t: int, s: int) -> bool:
        if offsets == "powers":
            return s == t or any(t - s == 2**j for j in range(64))
        if offsets == "squares":
            return s == t or any(t - s == j**2 + 1 for j in range(t + 1))
        return s == t or t - s in offsets

    return visible


def attention(
    q: Tensor, k: Tensor, visible: Visible = causal, scale: float | None = None
) -> Tensor:
    """A (n, n): the softmax of each row over the keys it sees."""
    n, d = q.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    A = torch.zeros(n, n, dtype=torch.float64)
    for t in range(n):
        seen = [s for s in range(n) if visible(t, s)]
        scores = (k[seen] * q[t]).sum(-1) * scale
        weights = (scores - scores.max()).exp()
        A[t, seen] = weights / weights.sum()
    return A


def strict(A: Tensor) -> Tensor:
    """A without its diagonal."""
    A = A.clone()
    for t in range(len(A)):
        A[t, t] = 0
    return A


def inverse(M: Tensor) -> Tensor:
    """M⁻¹ of a lower triangular M, row by row."""
    n = len(M)
    X = torch.zeros_like(M)
    for i in range(n):
        row = torch.zeros(n, dtype=M.dtype)
        row[i] = 1
        X[i] = (row - M[i, :i] @ X[:i]) / M[i, i]
    return X


def identity(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def resolvent(A: Tensor, V: Tensor, gamma: float, diagonal: str = "keep") -> Tensor:
    """(1-γ) A (I-γA)⁻¹ V, the inverse written out."""
    inner = strict(A) if diagonal == "drop" else A
    return (1 - gamma) * (A @ (inverse(identity(len(A)) - gamma * inner) @ V))


def neumann_sum(
    A: Tensor, V: Tensor, gamma: float, diagonal: str = "keep", terms: int = 400
) -> Tensor:
    """(1-γ) A Σ_{t < terms} γ^t A^t V, hop by hop."""
    inner = strict(A) if diagonal == "drop" else A
    reached, total = V, torch.zeros_like(V)
    for _ in range(terms):
        total = total + reached
        reached = gamma * (inner @ reached)
    return (1 - gamma) * (A @ total)


def blocks_of(n: int, m: int) -> list[list[int]]:
    """The tokens of every block; the last may be short."""
    return [list(range(a, min(a + m, n))) for a in range(0, n, m)]


def algorithm_1(
    A: Tensor,
    V: Tensor,
    gamma: float,
    m: int,
    rows: str = "first",
    columns: str = "sum",
    branches: str = "both",
    values: str = "mean",
) -> Tensor:
    """Algorithm 1 with P, the column factor and U as matrices."""
    n = len(A)
    blocks = blocks_of(n, m)
    P = torch.zeros(len(blocks), n, dtype=torch.float64)
    C = torch.zeros(len(blocks), n, dtype=torch.float64)
    U = torch.zeros(n, len(blocks), dtype=torch.float64)
    A_blk, A_res = torch.zeros_like(A), A.clone()
    for I, block in enumerate(blocks):
        for t in block:
            P[I, t] = {
                "first": float(t == block[0]),
                "mean": 1 / len(block),
                "last": float(t == block[-1]),
            }[rows]
            C[I, t] = {"sum": 1.0, "mean": 1 / len(block)}[columns]
            U[t, I] = 1
            A_blk[t, block] = A[t, block]
            A_res[t, block] = 0
    Y = torch.zeros(n, V.shape[-1], dtype=torch.float64)
    if branches in ("both", "local"):
        for block in blocks:
            own = A_blk[block][:, block]
            Y[block] += resolvent(own, V[block], gamma)
    if branches in ("both", "residual"):
        means = torch.stack([V[block].mean(0) for block in blocks])
        V_blocks = {"rows": P @ V, "mean": means}[values]
        Y = Y + U @ resolvent(P @ A_res @ C.T, V_blocks, gamma)
    return Y


def pooled_matrix(q: Tensor, k: Tensor, m: int, near: int, scale: float | None = None) -> Tensor:
    """A = L + W P (n, n): single keys of the own and `near` blocks before, means of the rest."""
    n, d = q.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    blocks = blocks_of(n, m)
    L = torch.zeros(n, n, dtype=torch.float64)
    W = torch.zeros(n, len(blocks), dtype=torch.float64)
    P = torch.zeros(len(blocks), n, dtype=torch.float64)
    for J, block in enumerate(blocks):
        P[J, block] = 1 / len(block)
    mean_k = P @ k
    for t in range(n):
        own = t // m
        far = list(range(max(0, own - near)))
        single = [s for s in range(t + 1) if s // m >= own - near]
        scores = torch.cat([(k[single] * q[t]).sum(-1), (mean_k[far] * q[t]).sum(-1)]) * scale
        weights = (scores - scores.max()).exp()
        weights[len(single) :] *= m  # a mean stands for m keys
        weights = weights / weights.sum()
        L[t, single] = weights[: len(single)]
        W[t, far] = weights[len(single) :]
    return L + W @ P


def standing_out(keys: Tensor, count: int) -> list[Tensor]:
    """Keys of a tile, each time the one farthest from their mean and from those already taken.

    A distance counts the less the later the key is, by a thousandth at most: two keys are equally
    far from their mean.
    """
    centres = [keys.mean(0)]
    for _ in range(min(count, len(keys))):
        gaps = [min(float(((key - c) ** 2).sum()) for c in centres) for key in keys]
        gaps = [gap * (1 - 1e-3 * s / len(keys)) for s, gap in enumerate(gaps)]
        centres.append(keys[gaps.index(max(gaps))])
    return centres[1:]


def tile_score(query: Tensor, keys: Tensor, parts: int, score: str) -> float:
    """How a tile's keys (m, d) look to a query (d,): the best of its parts."""
    if score == "keys":
        return max(float(query @ key) for key in standing_out(keys, parts))
    parts = min(parts, len(keys))
    if parts > 1:
        # the first parts are one key longer where the keys cannot be shared out evenly
        size, longer = divmod(len(keys), parts)
        cuts = [i * size + min(i, longer) for i in range(parts + 1)]
        return max(tile_score(query, keys[a:b], 1, score) for a, b in itertools.pairwise(cuts))
    if score == "mean":
        return float(sum(float(query @ key) for key in keys)) / len(keys)
    channels = zip(query.tolist(), keys.T.tolist(), strict=True)
    return sum(max(x * y for y in column) for x, column in channels)


def routed_matrix(
    q: Tensor,
    k: Tensor,
    m: int,
    near: int,
    routes: int,
    parts: int = 1,
    score: str = "mean",
    scale: float | None = None,
) -> Tensor:
    """A (n, n): own and near tiles, and per row the `routes` earlier tiles of highest score."""
    n = len(q)
    tiles = blocks_of(n, m)
    seen = []
    for t in range(n):
        own = t // m
        far = range(max(0, own - near))
        ranked = sorted(far, key=lambda J: -tile_score(q[t], k[tiles[J]], parts, score))
        seen.append({*range(max(0, own - near), own + 1), *ranked[:routes]})
    return attention(q, k, lambda t, s: s <= t and s // m in seen[t], scale)


def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, read: str = "queries") -> Tensor:
    """DeltaFormer, token by token: u_t = v_t - β_t Σ_{s<t} softmax_s u_s, then attention over u."""
    n, d = q.shape
    asks = {"queries": q, "keys": k}[read]
    u = [v[0]]
    for t in range(1, n):
        scores = (k[:t] * asks[t]).sum(-1) / math.sqrt(d)
        weights = (scores - scores.max()).exp()
        held = sum(w * x for w, x in zip(weights / weights.sum(), u, strict=True))
        u.append(v[t] - beta[t, 0] * held)
    return attention(q, k) @ torch.stack(u)


def top_k(A: Tensor, count: int) -> Tensor:
    """Each row's `count` largest entries, of equals the most recent, renormalised."""
    kept = torch.zeros_like(A)
    for t, row in enumerate(A.tolist()):
        best = sorted(range(len(row)), key=lambda s: (-row[s], -s))[:count]
        total = sum(row[s] for s in best)
        for s in best:
            kept[t, s] = row[s] / total if total else 0
    return kept


def t_raw(A: Tensor, V: Tensor, count: int | None) -> Tensor:
    return (A if count is None else top_k(A, count)) @ V


def _factors(A: Tensor, count: int | None, prune: str) -> tuple[Tensor, Tensor]:
    A_hat = A if count is None else top_k(A, count)
    return {"both": (A_hat, A_hat), "outside": (A_hat, A), "inside": (A, A_hat)}[prune]


def t_post(
    A: Tensor, V: Tensor, count: int | None, prune: str = "both", gamma: float = 1.0
) -> Tensor:
    """outer (I-γ inner_strict)⁻¹ V."""
    outer, inner = _factors(A, count, prune)
    return outer @ (inverse(identity(len(A)) - gamma * strict(inner)) @ V)


def t_pre(
    A: Tensor, V: Tensor, count: int | None, prune: str = "both", gamma: float = 1.0
) -> Tensor:
    """(I-γ inner_strict)⁻¹ outer V."""
    outer, inner = _factors(A, count, prune)
    return inverse(identity(len(A)) - gamma * strict(inner)) @ (outer @ V)
