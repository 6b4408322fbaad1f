"""Eq. 1 on a given A, short enough to read beside the paper, and the operators of its Section 3.4.

Everything here forms n x n matrices. `streaming.py` has the same operator from q, k, v without.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chacal.ops.inputs import Gamma, check_choice, check_count, may_read
from chacal.ops.weights import top_k as prune_rows

DIAGONALS = ("keep", "drop")
PRUNINGS = ("both", "outside", "inside")


def resolvent(A: Tensor, V: Tensor, gamma: Gamma, diagonal: str = "keep") -> Tensor:
    """Y = (1-γ) A (I-γA)⁻¹ V (Eq. 1): a path of t hops weighs (1-γ)γ^(t-1).

    Args:
        A: (..., n, n) lower triangular, row sums at most 1.
        V: (..., n, d) values.
        gamma: γ in [0, 1), or a tensor of them that broadcasts against A.
        diagonal: "keep" is Eq. 1; "drop" is ChaCAL's own variant (1-γ) A (I-γA_strict)⁻¹ V, in
            which a token does not hop to itself on the way.

    Returns:
        (..., n, d).
    """
    check_matrix(A, V)
    check_resolvent_options(diagonal)
    check_range(gamma)
    if diagonal == "drop":
        return (1 - gamma) * (A @ neumann(A.tril(-1), V, gamma))
    # A commutes with (I-γA)⁻¹, so one solve against AV stands for the inverse
    return (1 - gamma) * neumann(A, A @ V, gamma)


def neumann(A: Tensor, V: Tensor, gamma: Gamma) -> Tensor:
    """(I-γA)⁻¹ V = Σ_{t>=0} γ^t A^t V, by forward substitution."""
    compute = torch.promote_types(A.dtype, torch.float32)
    I = torch.eye(A.shape[-1], dtype=compute, device=A.device)
    # a solve has no half precision
    Z = torch.linalg.solve_triangular(I - gamma * A.to(compute), V.to(compute), upper=False)
    return Z.to(V.dtype)


def t_raw(A: Tensor, V: Tensor, top_k: int | None = None) -> Tensor:
    """T_raw = Â V (Section 3.4): ordinary attention, each row pruned to its `top_k` largest.

    Args:
        A: (..., n, n) lower triangular.
        V: (..., n, d) values.
        top_k: entries kept in a row; None keeps all.

    Returns:
        (..., n, d).
    """
    check_matrix(A, V)
    return _pruned(A, top_k) @ V


def t_post(
    A: Tensor, V: Tensor, top_k: int | None = None, prune: str = "both", gamma: Gamma = 1.0
) -> Tensor:
    """T_post = A (I-A)⁻¹ V (Section 3.4), with top-k pruning in a named place.

    I-A is singular (A₀₀ = 1), so the inverse takes A without its diagonal, ChaCAL's own variant.
    The paper does not say which A it prunes; `prune` names the readings:

    - "both":    Â (I-Â_strict)⁻¹ V
    - "outside": Â (I-A_strict)⁻¹ V
    - "inside":  A (I-Â_strict)⁻¹ V

    Args:
        A: (..., n, n) lower triangular.
        V: (..., n, d) values.
        top_k: entries kept in a row; None keeps all.
        prune: which factor is pruned.
        gamma: the factor on A inside the inverse; the paper writes 1.

    Returns:
        (..., n, d).
    """
    check_matrix(A, V)
    outer, inner = _factors(A, top_k, prune)
    return outer @ neumann(inner.tril(-1), V, gamma)


def t_pre(
    A: Tensor, V: Tensor, top_k: int | None = None, prune: str = "both", gamma: Gamma = 1.0
) -> Tensor:
    """T_pre = (I-A)⁻¹ A V (Section 3.4), with top-k pruning in a named place.

    As written T_pre equals T_post, because A commutes with its resolvent. With the diagonal
    dropped inside the inverse (see `t_post`) the two differ:

    - "both":    (I-Â_strict)⁻¹ Â V
    - "outside": (I-A_strict)⁻¹ Â V
    - "inside":  (I-Â_strict)⁻¹ A V

    Args and Returns as in `t_post`.
    """
    check_matrix(A, V)
    outer, inner = _factors(A, top_k, prune)
    return neumann(inner.tril(-1), outer @ V, gamma)


def _pruned(A: Tensor, top_k: int | None) -> Tensor:
    return A if top_k is None else prune_rows(A, top_k)


def _factors(A: Tensor, top_k: int | None, prune: str) -> tuple[Tensor, Tensor]:
    """The factor outside the inverse and the one inside it."""
    check_prune_options(top_k, prune)
    A_hat = _pruned(A, top_k)
    return (A if prune == "inside" else A_hat), (A if prune == "outside" else A_hat)


def check_resolvent_options(diagonal: str, top_k: int | None = None) -> None:
    """A known diagonal, and how many entries of a row are kept, if not all."""
    check_choice("diagonal", diagonal, DIAGONALS)
    check_top_k(top_k)


def check_prune_options(top_k: int | None, prune: str) -> None:
    """How many entries of a row are kept, if not all, and in a known place."""
    check_top_k(top_k)
    check_choice("prune", prune, PRUNINGS)


def check_top_k(top_k: int | None) -> None:
    """How many entries of a row are kept; None is all."""
    if top_k is not None:
        check_count("top_k", top_k)


def check_matrix(A: Tensor, V: Tensor) -> None:
    """A is (..., n, n) and V is (..., n, d) with the same n, dtype and device."""
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A has shape {tuple(A.shape)}; expected (..., n, n)")
    if V.ndim < 2 or V.shape[-2] != A.shape[-1]:
        raise ValueError(
            f"V has shape {tuple(V.shape)}; expected (..., {A.shape[-1]}, d) to go with A"
        )
    if A.dtype != V.dtype or A.device != V.device:
        raise ValueError(
            f"V is {V.dtype} on {V.device}; expected A's dtype and device, {A.dtype} on {A.device}"
        )


def check_range(gamma: Gamma) -> None:
    """γ, or every value of it, lies in [0, 1)."""
    if isinstance(gamma, bool) or not isinstance(gamma, (int, float, Tensor)):
        raise ValueError(f"gamma is {gamma!r}; expected a number in [0, 1) or a tensor of them")
    if isinstance(gamma, Tensor):
        right = not may_read(gamma) or bool(((gamma >= 0) & (gamma < 1)).all())
    else:
        right = 0 <= gamma < 1
    if not right:
        raise ValueError(f"gamma is {gamma!r}; expected [0, 1)")
