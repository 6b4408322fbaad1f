"""What every operator asks of its arguments, checked once, and padding, handled once.

An operator is written for `(B, n, d)` in float32 or float64 with no padding. `run` is the way
in: it checks the arguments, moves padding out of the way, flattens the leading dimensions,
lifts half precision to float32, and undoes all of it on the way out.

Padding needs no mask inside a causal operator. Real tokens are moved to the front (their order
kept); a causal row never sees what comes after it, so the padding behind them is out of reach.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from chacal.ops.cards import Kernel, attend_on_card, fits
from chacal.ops.guard import Core, guarded, no_autocast
from chacal.ops.packed import attend_packed
from chacal.ops.ragged import RAGGED, ByLength

Gamma = float | Tensor


def run(
    core: Core,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Gamma = 0.0,
    scale: float | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None = None,
    by_length: ByLength | None = None,
    causal: bool = True,
    kernel: Kernel | None = None,
) -> Tensor:
    """Call `core` on checked, unpadded, flattened inputs.

    Args:
        core: the operator on (B, n, d).
        q: (..., n, d) queries.
        k: (..., n, d) keys; of (..., heads, n, d), heads may be a divisor of q's, as in
            grouped-query attention, and each is for as many query heads that follow each other.
        v: (..., n, d_v) values, with as many heads as k.
        gamma: γ in [0, 1): a float, or a tensor that broadcasts over the leading dimensions.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n (packed.py).
        by_length: where a row's output depends on n itself (blocks of n//3, say) or on later
            tokens; such an operator runs once per distinct length instead of once (ragged.py).
        causal: whether no row depends on a later token; then a bad one (NaN, infinity, a number
            too large) cannot reach earlier rows (guard.py).
        kernel: what computes the same on a GPU (cards.py).

    Returns:
        (..., n, d_v) in q's dtype, zeros at padding.
    """
    # of (batch, n, d) with a mask, the last leading dimension is no head
    check_qkv(q, k, v, grouped=mask is None or q.ndim > 3)
    scale = check_scale(scale, q.shape[-1])
    gammas = check_gamma(gamma, q)
    if k.shape != q.shape and not (kernel is not None and fits(q, v)):
        k, v = (over_heads(x, q.shape[-3]) for x in (k, v))  # kernels read them in place
    if cu_seqlens is not None:
        if mask is not None:
            raise ValueError(
                "mask and cu_seqlens were both given; expected one of them: packed sequences have "
                "no padding"
            )

        if kernel is not None and kernel.packed and fits(q, v):
            return attend_on_card(kernel, q, k, v, gammas, scale, cu_seqlens)

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            return run(
                core, q, k, v, gamma=gammas, scale=scale, mask=mask,
                by_length=by_length, causal=causal, kernel=kernel,
            )  # fmt: skip

        return attend_packed(attend, q, k, v, cu_seqlens)
    if mask is None:
        return _flat(core, q, k, v, gammas, scale, causal, kernel)
    mask = check_mask(mask, q)
    if q.ndim == 2:
        return run(
            core, q[None], k[None], v[None], gamma=gamma, scale=scale, mask=mask[None],
            by_length=by_length, causal=causal, kernel=kernel,
        )[0]  # fmt: skip
    order, counts = front_order(mask)
    q, k, v = (take_rows(x, order) for x in (q, k, v))
    # what stands at padding may be anything, NaN too: it must not reach a product
    real = _over_rows(torch.arange(mask.shape[1], device=q.device) < counts[:, None], q.ndim)
    q, k, v = (torch.where(real, x, 0) for x in (q, k, v))
    if by_length is not None and torch.compiler.is_compiling():
        gammas = gammas.expand(q.shape[:-2]).to(torch.promote_types(q.dtype, torch.float32))
        k, v = (over_heads(x, q.shape[-3]) for x in (k, v))
        with no_autocast(q.device):
            Y = RAGGED(q, k, v, gammas, counts, scale, *by_length)
    elif by_length is not None:
        Y = v.new_zeros(*q.shape[:-1], v.shape[-1])
        gammas = gammas.expand(q.shape[:-2])
        # without a real token, once all the same, for no row: gradients are zero, not missing
        for count in counts[counts > 0].unique().tolist() or [mask.shape[1]]:
            rows = (counts == count).nonzero()[:, 0]
            q_some, k_some, v_some = (x[rows][..., :count, :] for x in (q, k, v))
            part = _flat(core, q_some, k_some, v_some, gammas[rows], scale, causal, kernel)
            padded = torch.nn.functional.pad(part, (0, 0, 0, mask.shape[1] - count))
            Y = Y.index_copy(0, rows, padded)
    else:
        Y = _flat(core, q, k, v, gammas, scale, causal, kernel)
    Y = take_rows(Y, order.argsort(-1))
    return torch.where(_over_rows(mask, Y.ndim), Y, 0)


def _flat(
    core: Core,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    scale: float,
    causal: bool,
    kernel: Kernel | None = None,
) -> Tensor:
    """Leading dimensions flattened; without a kernel, half precision computed in float32."""
    if kernel is not None and fits(q, v):
        with no_autocast(q.device):
            return attend_on_card(kernel, q, k, v, gamma, scale)
    leading, dtype = q.shape[:-2], q.dtype
    compute = torch.promote_types(dtype, torch.float32)
    if gamma.numel() == 1:
        gamma = gamma.reshape(1, 1, 1)
    else:
        gamma = gamma.expand(leading).reshape(-1, 1, 1)
    q, k, v = (x.to(compute).reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    try:
        with no_autocast(q.device):
            inputs = q, k, v, gamma.to(compute)
            guard = causal and all(map(may_read, inputs))
            Y = guarded(core, *inputs, scale) if guard else core(*inputs, scale)
    except RuntimeError as error:
        if "functorch transforms" not in str(error):
            raise
        raise NotImplementedError(
            "torch.func (vmap, grad, jvp, ...) was used on a resolvent, whose backward is written "
            "by hand; expected torch.autograd.grad or backward, and leading dimensions of q, k "
            "and v instead of vmap"
        ) from None
    return Y.reshape(*leading, *Y.shape[-2:]).to(dtype)


def front_order(mask: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, n) positions with real tokens first, in order, and (batch,) how many are real."""
    return (~mask).to(torch.uint8).argsort(dim=-1, stable=True), mask.sum(-1)


def take_rows(x: Tensor, order: Tensor) -> Tensor:
    """Reorder (batch, ..., n, d) along n by (batch, n)."""
    index = order.reshape(order.shape[0], *[1] * (x.ndim - 3), order.shape[1], 1)
    return x.gather(-2, index.expand(*x.shape[:-2], order.shape[1], x.shape[-1]))


def _over_rows(flags: Tensor, ndim: int) -> Tensor:
    """(batch, n) -> (batch, 1, ..., n, 1)."""
    return flags.reshape(flags.shape[0], *[1] * (ndim - 3), flags.shape[1], 1)


def check_qkv(q: Tensor, k: Tensor, v: Tensor, grouped: bool = False) -> None:
    """Same leading shape and length, n >= 1, one float dtype, one device.

    Where `grouped`, k and v may have fewer heads (the last leading dimension), each for a group of
    q's that follow each other.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} is {type(x).__name__}; expected a torch.Tensor")
        if x.ndim < 2 or 0 in x.shape[-2:]:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; expected (..., n, d) with n >= 1 and d >= 1"
            )
        if not x.is_floating_point():
            raise ValueError(f"{name} has dtype {x.dtype}; expected a floating-point dtype")
        if x.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {x.dtype} and q has {q.dtype}; expected one dtype")
        if x.device != q.device:
            raise ValueError(
                f"{name} is on device {x.device} and q on {q.device}; expected one device"
            )
    if k.shape != q.shape:
        if grouped and v.shape[:-1] == k.shape[:-1] and _are_grouped(q, k):
            return
        also = ", or v's heads and a divisor of q's" if grouped else ""
        raise ValueError(f"k has shape {tuple(k.shape)}; expected q's, {tuple(q.shape)}{also}")
    if v.shape[:-1] != q.shape[:-1]:
        raise ValueError(
            f"v has shape {tuple(v.shape)}; expected {tuple(q.shape[:-1])} and any width"
        )


def _are_grouped(q: Tensor, k: Tensor) -> bool:
    """Whether k (..., key heads, n, d) has fewer heads than q, each for as many of these."""
    if q.ndim < 3 or (*k.shape[:-3], *k.shape[-2:]) != (*q.shape[:-3], *q.shape[-2:]):
        return False
    return 0 < k.shape[-3] < q.shape[-3] and q.shape[-3] % k.shape[-3] == 0


def over_heads(x: Tensor, heads: int) -> Tensor:
    """(..., key heads, n, d) -> (..., heads, n, d): what a group shares, for each of its heads."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], -3)


def check_scale(scale: float | None, d: int) -> float:
    """The factor on q·k, 1/√d unless given."""
    if scale is None:
        return 1 / math.sqrt(d)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise ValueError(f"scale is {scale!r}; expected a finite number or None (1/√d)")
    return float(scale)


def checking() -> bool:
    """Whether values are to be watched, at the price of some time: CHACAL_CHECK=1."""
    return os.environ.get("CHACAL_CHECK") == "1"


def may_read(x: Tensor) -> bool:
    """Whether a check may look at the values of x.

    On an accelerator a look waits for all that was asked of it before, in every call, and in a
    compiled graph it breaks the graph. So values are looked at on the CPU only; with CHACAL_CHECK=1
    in the environment, to find where a bad one comes from, on every device.
    """
    # the tensors of torch.func stand for many values at once
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return x.device.type == "cpu" or checking()


def check_gamma(gamma: Gamma, q: Tensor) -> Tensor:
    """γ as a tensor on q's device whose shape broadcasts to q's leading dimensions.

    The values of a tensor are checked where `may_read` lets them be.
    """
    compute = torch.promote_types(q.dtype, torch.float32)
    if not isinstance(gamma, Tensor):
        number = isinstance(gamma, (int, float)) and not isinstance(gamma, bool)
        # 1 - 1e-9 is below 1, but float32 rounds it, and all from 1 - ε/4 on, to 1
        if not number or not 0 <= gamma < 1 - torch.finfo(compute).eps / 4:
            raise ValueError(f"gamma is {gamma!r}; expected a number in [0, 1) or a tensor of them")
        return torch.full((), gamma, dtype=compute, device=q.device)
    if not gamma.is_floating_point():
        raise ValueError(f"gamma has dtype {gamma.dtype}; expected a floating-point dtype")
    if gamma.device != q.device:
        raise ValueError(f"gamma is on device {gamma.device}; expected q's, {q.device}")
    if may_read(gamma) and not bool(((gamma >= 0) & (gamma.to(compute) < 1)).all()):
        values = gamma.detach().flatten().tolist()
        shown = ", ".join(f"{x:.4g}" for x in values[:8]) + (", ..." if len(values) > 8 else "")
        raise ValueError(f"gamma holds {shown}; expected every value in [0, 1)")
    shape = gamma.shape
    # (h, 1, 1), as one would write it to broadcast against (batch, h, n, d)
    if gamma.ndim >= 3 and shape[-2:] == (1, 1):
        gamma = gamma[..., 0, 0]
    if gamma.numel() == 1:
        return gamma.reshape(())
    leading = q.shape[:-2]
    try:
        fits = torch.broadcast_shapes(gamma.shape, leading) == leading
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"gamma has shape {tuple(shape)}; expected one that broadcasts over the leading "
            f"dimensions {tuple(leading)} of q"
        )
    return gamma


def check_mask(mask: Tensor, q: Tensor) -> Tensor:
    """(batch, n) boolean on q's device; (n,) where q has no batch."""
    expected = (q.shape[-2],) if q.ndim == 2 else (q.shape[0], q.shape[-2])
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask is {given}; expected a boolean tensor, True for real tokens")
    if tuple(mask.shape) != expected:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; expected {expected}")
    if mask.device != q.device:
        raise ValueError(f"mask is on device {mask.device}; expected q's, {q.device}")
    return mask


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """A named option is one of its choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def check_count(name: str, value: object, least: int = 1, bits: int = 48) -> None:
    """A whole number, at least `least`; of a size, its product with another fits into 63 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; expected a whole number of at least {least}")
    if value >= 2**bits:
        raise ValueError(f"{name} is {value}; expected a whole number below 2**{bits}")
