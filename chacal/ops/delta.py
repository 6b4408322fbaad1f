"""DeltaFormer: attention over values from which each token first took what was there already.

    u_t = v_t - β_t Σ_{s<t} A'_ts u_s,    Y = A u

A' is a softmax over the keys *before* a token, and A is ordinary causal attention. It is the
delta rule of linear attention, with a softmax in its place (Zhong et al., Understanding Transformer
from the Perspective of Associative Memory, arXiv 2505.19488), and what one would pick instead of a
resolvent: I + βA' is a triangular system too. With exact ChaCAL's letters, u is Z with -β_t for γ,
so the recursion of `streaming.py` serves, at the price of a second attention for A.

Which words search the past for what is to be taken away is a choice (`read`). The formula leaves it
open; flash-linear-attention's function takes any, and its layer gives it the keys. With "queries"
A' is A without its diagonal, each row made to sum to 1, and a token can follow a pointer; with
"keys" a token only finds tokens of its own kind.

β is one more number that every token has, so it travels as one more column of v: padding, packed
sequences, bad tokens and decoders then need no second way.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chacal.ops.diagonal import solve_tile
from chacal.ops.inputs import check_choice, check_qkv, may_read, over_heads, run
from chacal.ops.library import Operation, no_dgamma
from chacal.ops.streaming import RESOLVENT, Adjoint, Rows, row_sums

READS = ("queries", "keys")

Beta = float | Tensor


def delta_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Beta | None = None,
    read: str = "queries",
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = A u with u_t = v_t - β_t Σ_{s<t} A'_ts u_s (DeltaFormer); exact, nothing n x n is held.

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys; their heads may be a divisor of q's, as in grouped-query attention.
        v: (..., n, d_v) values, with as many heads as k.
        beta: β in [-1, 1]: a number, or (..., n), or what broadcasts to it. None is 1; 0 is
            ordinary attention.
        read: which words look for what is taken away: "queries" or "keys".
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_read(read)
    check_qkv(q, k, v, grouped=mask is None or q.ndim > 3)
    if k.shape != q.shape:  # β is each head's own, so u is too
        k, v = (over_heads(x, q.shape[-3]) for x in (k, v))

    def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        v, beta = apart(v)
        u = DELTA(q if read == "queries" else k, k, v, beta, scale)
        if q.shape[-1] != u.shape[-1] and q.device.type == "cpu":
            return RESOLVENT(q, k, u, gamma, scale, False)  # PyTorch's own would form A
        return F.scaled_dot_product_attention(
            q[None], k[None], u[None], is_causal=True, scale=scale
        )[0]

    return run(core, q, k, with_beta(v, beta), scale=scale, mask=mask, cu_seqlens=cu_seqlens)


def with_beta(v: Tensor, beta: Beta | None) -> Tensor:
    """(..., n, d_v) and β, checked -> (..., n, d_v + 1)."""
    if beta is None:
        beta = 1.0
    if not isinstance(beta, Tensor):
        check_beta(beta)
        return F.pad(v, (0, 1), value=float(beta))
    if not beta.is_floating_point():
        raise ValueError(f"beta has dtype {beta.dtype}; expected a floating-point dtype")
    if beta.device != v.device:
        raise ValueError(f"beta is on device {beta.device}; expected q's, {v.device}")
    # NaN is let through: at padding it means nothing, and elsewhere it is one bad token
    if may_read(beta) and bool((beta.abs() > 1).any()):
        raise ValueError(
            f"beta reaches from {float(beta.min()):.4g} to {float(beta.max()):.4g}; expected "
            f"every value in [-1, 1]"
        )
    try:
        each = beta.expand(v.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"beta has shape {tuple(beta.shape)}; expected one that broadcasts to "
            f"{tuple(v.shape[:-1])}, a number for every token"
        ) from None
    return torch.cat([v, each.to(v.dtype).unsqueeze(-1)], -1)


def apart(v: Tensor) -> tuple[Tensor, Tensor]:
    """(B, n, d_v + 1) -> values (B, n, d_v) and β (B, n, 1)."""
    return v[..., :-1].contiguous(), v[..., -1:].contiguous()


def check_beta(beta: object) -> None:
    """β as a number, in [-1, 1]: beyond, u could double with every token."""
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not -1 <= beta <= 1:
        raise ValueError(f"beta is {beta!r}; expected a number in [-1, 1] or a tensor of them")


def check_read(read: str) -> None:
    """Known words."""
    check_choice("read", read, READS)


def check_delta_options(beta: float | None, read: str) -> None:
    """A β that is a number or left to the layer, and known words."""
    if beta is not None:
        check_beta(beta)
    check_read(read)


class DeltaRows(Rows):
    """u in the place of Z, and H = A' u, of rows that see only what is before them."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        scale: float,
        Z: Tensor | None = None,
        alone: bool = False,
    ) -> None:
        """As `Rows`; `beta` (B, r, 1) is of the new rows."""
        super().__init__(q, k, v, -beta, scale, Z=Z, alone=alone)
        self.bias = strict_bias(self.bias)

    def _leaf(self, a: int, b: int, T: Tensor, lse: Tensor) -> None:
        """A diagonal tile, whose own softmax is T, by forward substitution."""
        own = slice(self.past + a, self.past + b)
        H, before, gamma = self.H[:, a:b], self.lse[:, a:b], self.gamma[:, a:b]
        share = torch.sigmoid(lse - before).unsqueeze(-1)
        share[:, 0] = 0  # nothing of the tile is before its first row
        lse[:, 0] = -torch.inf
        T.mul_(share)
        H.addcmul_(H, share, value=-1)
        torch.logaddexp(before, lse, out=before)
        Z = solve_tile(T, torch.addcmul(self.v[:, a:b], H, gamma), gamma, self.I)
        self.Z[:, own] = Z
        H.baddbmm_(T, Z)


class DeltaAdjoint(Adjoint):
    """G = du + A'ᵀ W with W = -β G: the transposed system, last rows first."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        scale: float,
        H: Tensor,
        lse: Tensor,
        du: Tensor,
    ) -> None:
        super().__init__(q, k, v, -beta, scale, False, H, lse, du)
        self.bias = strict_bias(self.bias)

    def _leaf(self, a: int, b: int, T: Tensor) -> None:
        """A diagonal tile, whose weights are T, by backward substitution."""
        q, k, Z, H, du, gamma = (
            x[:, a:b] for x in (self.q, self.k, self.Z, self.H, self.dY, self.gamma)
        )
        T[:, 0] = 0
        G = solve_tile(T, self.G[:, a:b] + du, gamma, self.I, True)
        W = gamma * G
        self.G[:, a:b], self.W[:, a:b] = G, W
        dS = torch.bmm(W, Z.mT).sub_((W * H).sum(-1, keepdim=True)).mul_(T)
        self.dq[:, a:b].baddbmm_(dS, k, alpha=self.scale)
        self.dk[:, a:b].baddbmm_(dS.mT, q, alpha=self.scale)

    def dbeta(self, needed: bool) -> Tensor:
        """dβ_t = -G_t·H_t, where it is needed."""
        return -(self.G * self.H).sum(-1, keepdim=True) if needed else no_dgamma(self.gamma)


def strict_bias(bias: Tensor) -> Tensor:
    """A causal bias that hides the diagonal too; the first row keeps its own key.

    A softmax over nothing would be NaN: who uses the tile takes its first row out again.
    """
    bias = bias.clone()
    bias.diagonal()[1:] = -torch.inf
    return bias


def forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """u (B, n, d_v), the rows' log-sum-exps, and H = A' u."""
    rows = DeltaRows(q, k, v, beta, scale, alone=True)
    rows.solve(0, q.shape[1])
    return rows.Z, rows.lse, rows.H


def backward(
    du: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    lse: Tensor,
    H: Tensor,
    scale: float,
    beta_needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and β."""
    adjoint = DeltaAdjoint(q, k, v, beta, scale, H, lse, du)
    adjoint.solve(0, q.shape[1])
    return adjoint.dq, adjoint.dk, adjoint.G, adjoint.dbeta(beta_needed)


def kept(q: Tensor, k: Tensor, v: Tensor, *options: object) -> tuple[Tensor, Tensor]:
    """Room for a log-sum-exp of every row, and for H."""
    return *row_sums(q, k, v), v.new_empty(v.shape)


DELTA = Operation("delta", "float scale", forward, backward, kept, num_kept=2, output_needed=False)
"""u of (B, n, d), with β (B, n, 1) where others have γ."""
