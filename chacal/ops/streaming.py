"""Eq. 1 from q, k, v, exactly, at about the price of ordinary attention.

With H = A Z, ChaCAL is Z = V + γ H and Y = (1-γ) H: attention over values that are computed on
the way, each needing only those before it. That is a triangular system, and this file solves it
by halving:

    solve the first half;  let the second half attend to it;  solve the second half.

The middle step is a square of ordinary attention, where almost all the work is, and goes to the
fastest kernel there is (`attend.py`). What remains are small tiles on the diagonal, solved by
forward substitution; their scores need no Z and are made many tiles at once. The parts of a row's
softmax that come from different squares are joined by their log-sum-exps. Nothing n x n is held.
On a CPU with a C compiler the same is computed in float32 by a library of ours, in a third to
five sixths of the time (`native/`).

The backward pass is the transposed system, solved in the opposite order. With
G = dL/dV and W = (1-γ) dY + γ G:

    G = Aᵀ W,   dA = W Zᵀ,   dS = A ∘ (dA - W·H),   dγ = <G, H> - <dY, H>

so a square's share of it is, again, ordinary attention's backward, with W as the gradient, Z as
the values and H as the output. It saves q, k, v, Y and the log-sum-exps; A is recomputed.

`diagonal="drop"` keeps a token from hopping to itself on the way: Z = V + γ A_strict Z, and dA's
diagonal is (1-γ) dY·Z there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chacal.native import resolvent as native
from chacal.ops.attend import attend, attend_backward
from chacal.ops.cards import Kernel
from chacal.ops.diagonal import Diagonal, halve, leaf_size, solve_tile
from chacal.ops.inputs import Gamma, may_read, run
from chacal.ops.library import Operation, no_dgamma
from chacal.ops.resolvent import check_resolvent_options
from chacal.ops.weights import causal_bias

SPAN = 1 << 17
"""Weights of diagonal tiles that are made at once: fewer calls, while a core's cache takes them."""

LARGE = 0.25
"""γ from which H is read off Z, as (Z - V) / γ: that multiplies Z's rounding by 1/γ."""


def resolvent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Gamma = 0.9,
    diagonal: str = "keep",
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = (1-γ) A (I-γA)⁻¹ V (Eq. 1) with A = softmax(q kᵀ · scale), causal; exact.

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        gamma: γ in [0, 1); 0 is ordinary attention. A float, or a tensor that broadcasts over
            the leading dimensions (one γ per head, say) and receives a gradient.
        diagonal: "keep" is Eq. 1; "drop" is ChaCAL's own (1-γ) A (I-γA_strict)⁻¹ V.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_resolvent_options(diagonal)
    drop = diagonal == "drop"

    def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        return RESOLVENT(q, k, v, gamma, scale, drop)

    return run(
        core, q, k, v, gamma=gamma, scale=scale, mask=mask, cu_seqlens=cu_seqlens,
        kernel=Kernel(drop),
    )  # fmt: skip


def forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Y (B, n, d_v), the rows' log-sum-exps, and the unit (1,) of these in natural logarithms.

    The compiled library counts in powers of two, and what it kept is exact to itself only in them.
    """
    if native.fits(q, k, v, gamma):
        return *native.forward(q, k, v, gamma, scale, drop), q.new_full((1,), native.UNIT)
    only_Z = not drop and may_read(gamma) and bool((gamma >= LARGE).all())
    rows = Rows(q, k, v, gamma, scale, drop, alone=True, only_Z=only_Z)
    rows.solve(0, q.shape[1])
    natural = q.new_ones(1)
    if only_Z:
        return rows.Z.sub_(v).mul_((1 - gamma) / gamma), rows.lse, natural
    return rows.H.mul_(1 - gamma), rows.lse, natural


def backward(
    dY: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    Y: Tensor,
    lse: Tensor,
    unit: Tensor,
    scale: float,
    drop: bool,
    gamma_needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and γ."""
    if native.fits(q, k, v, gamma, Y, lse, dY):
        powers = native.in_powers(lse, unit)
        return native.backward(q, k, v, gamma, scale, drop, Y, powers, dY)
    v, H = (v, Y / (1 - gamma)) if drop else from_first(v, Y, gamma)
    adjoint = Adjoint(q, k, v, gamma, scale, drop, H, lse * unit, dY)
    adjoint.solve(0, q.shape[1])
    return adjoint.dq, adjoint.dk, adjoint.G, adjoint.dgamma(gamma_needed)


def from_first(v: Tensor, Y: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """v and H = Y / (1-γ), as they would be if the first value were subtracted from all values.

    Where rows of A sum to 1 this changes no gradient but the rounding: near γ = 1 all rows of H
    are close to v_0 / (1-γ), which dA - W·H has to cancel, for the first rows against a W just as
    large.
    """
    first = v[:, :1]
    return v - first, (Y - first).div_(1 - gamma)


class Rows:
    """The forward recursion over rows of q, after any number of rows already solved.

    Attributes:
        Z: (B, n, d_v) solved values: what a row passes on, its own value and all hops into it.
        H: (B, r, d_v) = A Z of the new rows, unless only Z is asked for.
        lse: (B, r) log-sum-exp of the new rows.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gamma: Tensor,
        scale: float,
        drop: bool = False,
        Z: Tensor | None = None,
        leaf: int | None = None,
        alone: bool = False,
        only_Z: bool = False,
    ) -> None:
        """Rows q (B, r, d) and v (B, r, d_v) are the last r of the keys k (B, n, d).

        `Z` (B, n, d_v) holds the solved values of the n - r rows before them. `leaf` is the size
        of diagonal tiles, if not what suits all rows. `alone` says that rows see these keys only,
        the first of them first: what they see of it is then written, not joined to nothing.
        `only_Z` spares the last product of every tile, after which H is not complete and Z is.
        """
        self.q, self.k, self.v = q, k, v
        self.gamma, self.scale, self.drop = gamma, scale, drop
        self.past = k.shape[1] - q.shape[1]
        self.Z = torch.empty_like(v) if Z is None else Z
        self.H, self.lse, self.alone = torch.empty_like(v), q.new_empty(q.shape[:2]), alone
        if not alone:
            self._forget(0, q.shape[1])
        self.only_Z = only_Z
        self.leaf = leaf or leaf_size(q.shape[1])
        self.span = max(self.leaf, SPAN // (self.leaf * max(1, q.shape[0])))
        self.bias = causal_bias(self.leaf, self.leaf, q)
        self.I = torch.eye(self.leaf, dtype=q.dtype, device=q.device)

    def _forget(self, a: int, b: int) -> None:
        """Rows a to b have seen nothing."""
        self.H[:, a:b] = 0
        self.lse[:, a:b] = -torch.inf

    def solve(self, a: int, b: int, diagonal: Diagonal | None = None) -> None:
        """Rows a to b, of which all keys before row a are already in H and lse."""
        if diagonal is None and b - a <= self.span:
            k = self.k[:, self.past + a : self.past + b]
            diagonal = Diagonal(self.q[:, a:b], k, self.scale, self.bias, a)
        if diagonal is not None and b - a <= self.leaf:
            if self.alone and self.past + a == 0:
                self._forget(a, b)
            self._leaf(a, b, *diagonal.tile(a, b))
            return
        middle = halve(a, b, self.leaf)
        self.solve(a, middle, diagonal)
        self.see(middle, b, self.past + a, self.past + middle)
        self.solve(middle, b, diagonal)

    def see(self, a: int, b: int, first: int, last: int) -> None:
        """Rows a to b attend to keys first to last, all solved."""
        k, Z = self.k[:, first:last], self.Z[:, first:last]
        out, lse = attend(self.q[:, a:b], k, Z, self.scale)
        if self.alone and first == 0:
            self.H[:, a:b], self.lse[:, a:b] = out, lse
        else:
            self.join(a, b, out, lse)

    def join(self, a: int, b: int, out: Tensor, lse: Tensor) -> None:
        """What rows a to b have of other keys: softmax over those alone, times Z, and its
        log-sum-exps."""
        before = self.lse[:, a:b]
        # the shares of two parts of a softmax: e^lse / (e^lse + e^before), and the rest
        self.H[:, a:b].lerp_(out, torch.sigmoid(lse - before).unsqueeze(-1))
        torch.logaddexp(before, lse, out=before)

    def _leaf(self, a: int, b: int, T: Tensor, lse: Tensor) -> None:
        """A diagonal tile, whose own softmax is T, by forward substitution."""
        v, H, before = self.v[:, a:b], self.H[:, a:b], self.lse[:, a:b]
        share = torch.sigmoid(lse - before).unsqueeze(-1)
        T.mul_(share)
        H.addcmul_(H, share, value=-1)
        torch.logaddexp(before, lse, out=before)
        inner = T.tril(-1) if self.drop else T
        Z = solve_tile(inner, torch.addcmul(v, H, self.gamma), self.gamma, self.I)
        self.Z[:, self.past + a : self.past + b] = Z
        if not self.only_Z:
            H.baddbmm_(T, Z)


class Adjoint:
    """The backward recursion: the transposed system, last rows first.

    Attributes:
        G: (B, n, d_v) gradient of v. Until a tile is solved, its rows hold what later rows
            sent: their share of AᵀW.
        dq, dk: (B, n, d).
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gamma: Tensor,
        scale: float,
        drop: bool,
        H: Tensor,
        lse: Tensor,
        dY: Tensor,
        shift: Tensor | None = None,
        leaf: int | None = None,
    ) -> None:
        """`H` (B, n, d_v) is A Z and `lse` (B, n) the log-sum-exps, both of whole rows; `shift`
        (B, n, 1) is what dS = A ∘ (dA - W·H + shift) has beyond Eq. 1, if anything."""
        self.q, self.k = q, k
        self.gamma, self.scale, self.drop = gamma, scale, drop
        self.H, self.lse, self.dY, self.shift = H, lse, dY, shift
        if drop:
            self.A_tt, self.Z = without_own(q, k, v, gamma, scale, H, lse)
            self.shift = torch.zeros_like(self.A_tt)
        else:
            self.Z = torch.addcmul(v, H, gamma)
        self.G, self.W = torch.zeros_like(v), torch.empty_like(v)
        self.dq, self.dk = torch.zeros_like(q), torch.zeros_like(k)
        self.leaf = leaf or leaf_size(q.shape[1])
        self.span = max(self.leaf, SPAN // (self.leaf * max(1, q.shape[0])))
        self.bias = causal_bias(self.leaf, self.leaf, q)
        self.I = torch.eye(self.leaf, dtype=q.dtype, device=q.device)

    def solve(self, a: int, b: int, diagonal: Diagonal | None = None) -> None:
        """Rows a to b, to which all rows after b have sent their share."""
        if diagonal is None and b - a <= self.span:
            diagonal = Diagonal(self.q[:, a:b], self.k[:, a:b], self.scale, self.bias, a)
            diagonal.of_whole_rows(self.lse[:, a:b])
        if diagonal is not None and b - a <= self.leaf:
            self._leaf(a, b, diagonal.tile(a, b)[0])
            return
        middle = halve(a, b, self.leaf)
        self.solve(middle, b, diagonal)
        self.send(middle, b, a, middle)
        self.solve(a, middle, diagonal)

    def send(self, a: int, b: int, first: int, last: int) -> None:
        """Rows a to b, solved, send their gradients to rows first to last."""
        dq, dk, sent = attend_backward(
            self.W[:, a:b],
            self.q[:, a:b],
            self.k[:, first:last],
            self.Z[:, first:last],
            self.H[:, a:b],
            self.lse[:, a:b],
            self.scale,
            None if self.shift is None else self.shift[:, a:b],
        )
        self.dq[:, a:b] += dq
        self.dk[:, first:last] += dk
        self.G[:, first:last] += sent

    def _leaf(self, a: int, b: int, T: Tensor) -> None:
        """A diagonal tile, whose weights are T, by backward substitution."""
        q, k, Z, H, dY = (x[:, a:b] for x in (self.q, self.k, self.Z, self.H, self.dY))
        inner = T.tril(-1) if self.drop else T
        dH = (1 - self.gamma) * dY
        G = solve_tile(inner, self.G[:, a:b] + torch.bmm(T.mT, dH), self.gamma, self.I, True)
        W = torch.addcmul(dH, G, self.gamma)
        self.G[:, a:b], self.W[:, a:b] = G, W
        dA = torch.bmm(W, Z.mT)
        delta = (W * H).sum(-1, keepdim=True)
        if self.shift is not None:
            if self.drop:
                own = self.gamma * (G * Z).sum(-1, keepdim=True)
                dA.diagonal(dim1=1, dim2=2).sub_(own[..., 0])
                self.shift[:, a:b] = own * self.A_tt[:, a:b]
            delta -= self.shift[:, a:b]
        dS = dA.sub_(delta).mul_(T)
        self.dq[:, a:b].baddbmm_(dS, k, alpha=self.scale)
        self.dk[:, a:b].baddbmm_(dS.mT, q, alpha=self.scale)

    def dgamma(self, needed: bool) -> Tensor:
        """As `gamma_gradient` has it, where it is needed."""
        if not needed:
            return no_dgamma(self.gamma)
        hops = self.H - self.A_tt * self.Z if self.drop else self.H
        return gamma_gradient(self.G, hops, self.dY, self.H, self.gamma)


def without_own(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, H: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor]:
    """A's diagonal (B, n, 1) and Z (B, n, d_v), where Z drops the diagonal.

    H counts the hop to oneself and Z does not: Z = V + γ (H - A_tt Z).
    """
    A_tt = ((q * k).sum(-1).mul_(scale) - lse).exp_().unsqueeze(-1)
    return A_tt, torch.addcmul(v, H, gamma).div_(1 + gamma * A_tt)


def gamma_gradient(G: Tensor, hops: Tensor, dY: Tensor, H: Tensor, gamma: Tensor) -> Tensor:
    """dγ = <G, the hops in Z> - <dY, H>, summed to γ's shape."""
    return (G * hops - dY * H).sum_to_size(gamma.shape)


def row_sums(q: Tensor, k: Tensor, v: Tensor, *options: object) -> tuple[Tensor]:
    """Room for a log-sum-exp of every row."""
    return (q.new_empty(q.shape[:2]),)


def kept(q: Tensor, k: Tensor, v: Tensor, *options: object) -> tuple[Tensor, Tensor]:
    """Room for a log-sum-exp of every row, and their unit."""
    return *row_sums(q, k, v), q.new_empty(1)


RESOLVENT = Operation("resolvent", "float scale, bool drop", forward, backward, kept, num_kept=2)
"""The exact resolvent on (B, n, d)."""
