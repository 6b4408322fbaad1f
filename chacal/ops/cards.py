"""Exact, windowed and routed ChaCAL on a GPU: the Triton kernels as operators of torch.library.

`run` in inputs.py comes here with what is on a card; nothing else knows of kernels. They take the
inputs as they are: half precision is not copied to float32, and packed sequences not to a batch
(but for the routed operator's).
Where Triton is missing, or a card or a width is none of the kernels', plain PyTorch computes the
same, and that is said once.

torch.ops.chacal.triton has q, k, v (batch, heads, n, d) and a γ that broadcasts over batch and
heads; its twin on a CPU is torch.ops.chacal.resolvent. torch.ops.chacal.decode is one token after a
past of keys and Z; it is asked for by the states in decoding/.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from chacal.ops.library import LIBRARY, Operation, no_dgamma

Tensors = tuple[Tensor, ...]

WIDEST = 256
"""Channels of a head that the kernels take."""


class Kernel(NamedTuple):
    """Which of the kernels an operator has.

    Attributes:
        drop: whether a token may not hop to itself on the way.
        window: how many keys, its own among them, a row sees; None for all.
        routed: the operator of rows that choose (routed.py), on q, k, v (1, heads, n, d), γ (1,
            heads) and the scale; None for others.
    """

    drop: bool = False
    window: int | None = None
    routed: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor] | None = None

    @property
    def packed(self) -> bool:
        """Whether it takes packed sequences as they are."""
        return self.routed is None


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether there is a kernel for these inputs, and Triton to run it."""
    if q.device.type != "cuda":
        return False
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        say_plain(f"inputs are {q.dtype}", "float32, float16 or bfloat16")
        return False
    width = max(q.shape[-1], v.shape[-1])
    if width > WIDEST:
        say_plain(f"d or d_v is {width}", f"at most {WIDEST}")
        return False
    return _has_triton()


@functools.cache
def say_plain(given: str, expected: str) -> None:
    """Tell, once, why a card computes without the kernels."""
    if not torch.compiler.is_compiling():
        warnings.warn(
            f"{given}, so chacal runs on the card as plain PyTorch, in many small launches; "
            f"expected, for its kernels, {expected}",
            stacklevel=2,
        )


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
    if kernel.routed is not None:
        Y = kernel.routed(q, k, v, gamma, scale)
    else:
        Y = TRITON(q, k, v, gamma, cu_seqlens, scale, kernel.drop, kernel.window)
    return Y.reshape(*leading, *Y.shape[-2:])


def solve_on_card(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Y and Z (batch, heads, n, d_v) of a first run of tokens; a decoder keeps Z.

    As `attend_on_card`, of (batch, heads, n, d), k and v with fewer heads perhaps, and no gradient.
    """
    Y, Z, _ = TRITON.op(q, k, v, gamma, None, scale, kernel.drop, kernel.window)
    if not kernel.drop:
        # the kernel counts values from the first: rows of A sum to 1, so c gives c / (1-γ)
        first = v[:, :, :1].repeat_interleave(q.shape[1] // v.shape[1], 1)
        Z = Z + first / (1 - gamma[..., None, None])
    return Y, Z


def decode_on_card(
    kernel: Kernel,
    q: Tensor,
    v: Tensor,
    gamma: Tensor,
    keys: Tensor,
    Z: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """Y (batch, heads, 1, d_v) of one token; its Z goes to its slot.

    Args:
        kernel: which.
        q: (batch, heads, 1, d) queries.
        v: (batch, key heads, 1, d_v) values.
        gamma: γ, of a shape that broadcasts to (batch, heads).
        keys: (batch, key heads, slots, d), the token's own among them.
        Z: (batch, heads, slots, d_v), written to.
        lengths: (batch,) tokens before; token t is at slot t mod slots.
        scale: multiplies q·k.
    """
    where = (keys, Z, lengths.to(torch.int32))
    return torch.ops.chacal.decode(q, v, gamma, *where, scale, kernel.drop, kernel.window)


@functools.cache
def _has_triton() -> bool:
    if importlib.util.find_spec("triton") is not None:
        return True
    say_plain("Triton is not installed", "the extra 'gpu' (pip install triton)")
    return False


def _forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, cu_seqlens: Tensor | None, scale: float,
    drop: bool, window: int | None,
) -> Tensors:  # fmt: skip
    from chacal.kernels.resolvent import Call, forward

    return forward(q, k, v, gamma, Call(scale, drop, window), cu_seqlens)


def _backward(
    dY: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, Y: Tensor, Z: Tensor, lse: Tensor,
    cu_seqlens: Tensor | None, scale: float, drop: bool, window: int | None, gamma_needed: bool,
) -> Tensors:  # fmt: skip
    from chacal.kernels.resolvent import Call, backward

    call = Call(scale, drop, window)
    dq, dk, dv, dgamma = backward(dY, q, k, v, gamma, Y, Z, lse, call, cu_seqlens)
    return dq, dk, dv, dgamma if gamma_needed else no_dgamma(gamma)


def _kept(q: Tensor, k: Tensor, v: Tensor, *options: object) -> Tensors:
    Z = q.new_empty(*q.shape[:-1], v.shape[-1])
    return Z, q.new_empty(q.shape[:-1], dtype=torch.float32)


TRITON = Operation(
    "triton",
    "Tensor? cu_seqlens, float scale, bool drop, SymInt? window",
    _forward,
    _backward,
    _kept,
    num_kept=2,
)
"""The kernels: q (batch, heads, n, d), k and v with as many heads or a divisor of that."""


def _decode(
    q: Tensor, v: Tensor, gamma: Tensor, keys: Tensor, Z: Tensor, lengths: Tensor, scale: float,
    drop: bool, window: int | None,
) -> Tensor:  # fmt: skip
    from chacal.kernels.decode import decode

    return decode(q, v, gamma, keys, Z, lengths, scale=scale, drop=drop, window=window)


LIBRARY.define(
    "decode(Tensor q, Tensor v, Tensor gamma, Tensor keys, Tensor(a!) Z, Tensor lengths, "
    "float scale, bool drop, SymInt? window) -> Tensor"
)
LIBRARY.impl("decode", _decode, "CompositeExplicitAutograd")
torch.library.register_fake(
    "chacal::decode",
    lambda q, v, *rest: q.new_empty(*q.shape[:-1], v.shape[-1]),
    lib=LIBRARY,
)
