"""Exact and windowed ChaCAL on a GPU: the Triton kernels as operators of torch.library.

`run` in inputs.py comes here with what is on a card; nothing else knows of kernels. They take the
inputs as they are: half precision is not copied to float32, and packed sequences not to a batch.
Where Triton is missing, or a card or a width is none of the kernels', plain PyTorch computes the
same, and that is said once.

torch.ops.chacal.triton has q, k, v (batch, heads, n, d) and γ (batch, heads), and returns
Y, Z and the log-sum-exps; its twin on a CPU is torch.ops.chacal.resolvent.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chacal.ops.library import LIBRARY, exact_backward

Tensors = tuple[Tensor, ...]

OPTIONS = "Tensor? cu_seqlens, float scale, bool drop, SymInt? window"


class Kernel(NamedTuple):
    """Which of the kernels an operator has.

    Attributes:
        drop: whether a token may not hop to itself on the way.
        window: how many keys, its own among them, a row sees; None for all.
    """

    drop: bool = False
    window: int | None = None


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether there is a kernel for these inputs, and Triton to run it."""
    if q.device.type != "cuda" or q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return False
    widest = 128 if q.dtype == torch.float32 else 256
    return max(q.shape[-1], v.shape[-1]) <= widest and _has_triton()


def attend_on_card(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    scale: float,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y (..., n, d_v) in q's dtype; γ broadcasts over the leading dimensions."""
    leading = q.shape[:-2]
    gamma = gamma.expand(leading).reshape(1, -1)
    q, k, v = (x.reshape(1, -1, *x.shape[-2:]) for x in (q, k, v))
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.to(torch.int32)
    Y: Tensor = torch.ops.chacal.triton(
        q, k, v, gamma, cu_seqlens, scale, kernel.drop, kernel.window
    )[0]
    return Y.reshape(*leading, *Y.shape[-2:])


@functools.cache
def _has_triton() -> bool:
    if importlib.util.find_spec("triton") is not None:
        return True
    warnings.warn(
        "Triton is not installed, so chacal runs on the card as plain PyTorch, in many small "
        "launches; expected the extra 'gpu' (pip install triton)",
        stacklevel=2,
    )
    return False


def _forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, cu_seqlens: Tensor | None, scale: float,
    drop: bool, window: int | None,
) -> Tensors:  # fmt: skip
    from chacal.kernels.resolvent import Call, forward

    return forward(q, k, v, gamma, Call(scale, drop, window), cu_seqlens)


def _backward(
    dY: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, Y: Tensor, Z: Tensor, lse: Tensor,
    cu_seqlens: Tensor | None, scale: float, drop: bool, window: int | None,
) -> Tensors:  # fmt: skip
    from chacal.kernels.resolvent import Call, backward

    return backward(dY, q, k, v, gamma, Y, Z, lse, Call(scale, drop, window), cu_seqlens)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensors:
    Y = q.new_empty(*q.shape[:3], v.shape[3])
    return Y, torch.empty_like(Y), q.new_empty(q.shape[:3], dtype=torch.float32)


def _fake_backward(
    dY: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, *rest: Any
) -> Tensors:
    return tuple(x.new_empty(x.shape) for x in (q, k, v, gamma))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    q, k, v, gamma, cu_seqlens, *options = inputs
    ctx.save_for_backward(q, k, v, gamma, *output, cu_seqlens)
    ctx.mark_non_differentiable(*output[1:])
    ctx.options = options


@exact_backward
def _gradients(ctx: Any, dY: Tensor, *kept: Any) -> tuple[Tensor | None, ...]:
    dq, dk, dv, dgamma = torch.ops.chacal.triton_backward(dY, *ctx.saved_tensors, *ctx.options)
    return dq, dk, dv, dgamma, None, None, None, None


LIBRARY.define(f"triton(Tensor q, Tensor k, Tensor v, Tensor gamma, {OPTIONS}) -> "
               "(Tensor, Tensor, Tensor)")  # fmt: skip
LIBRARY.define("triton_backward(Tensor dY, Tensor q, Tensor k, Tensor v, Tensor gamma, Tensor Y, "
               f"Tensor Z, Tensor lse, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)")  # fmt: skip
LIBRARY.impl("triton", _forward, "CompositeExplicitAutograd")
LIBRARY.impl("triton_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("chacal::triton", _fake_forward, lib=LIBRARY)
torch.library.register_fake("chacal::triton_backward", _fake_backward, lib=LIBRARY)
torch.library.register_autograd(
    "chacal::triton", _gradients, setup_context=_setup_context, lib=LIBRARY
)
