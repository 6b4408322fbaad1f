"""What resolvent.c computes, on tensors: streaming.py's forward and backward in one call each."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from chacal.native.build import library

LEAST = 24
"""Tokens from which on it is used: it always computes whole tiles of 64 rows."""

HEADS = 2
"""A head is one thread's: with more threads than this times the heads, plain PyTorch has more."""


class View(ctypes.Structure):
    """Where a (B, n, d) tensor is; its rows lie together."""

    _fields_ = (("data", ctypes.c_void_p), ("head", ctypes.c_long), ("row", ctypes.c_long))


def _call(views: str, places: str) -> tuple[tuple[str, type], ...]:
    return (
        *((name, View) for name in views.split()),
        *((name, ctypes.c_void_p) for name in places.split()),
        *((name, ctypes.c_long) for name in ("heads", "n", "d", "d_v")),
        ("scale", ctypes.c_float),
        ("drop", ctypes.c_int),
    )


class ForwardCall(ctypes.Structure):
    """`struct forward_call`."""

    _fields_ = _call("q k v", "gamma Y lse")


class BackwardCall(ctypes.Structure):
    """`struct backward_call`."""

    _fields_ = _call("q k v H dY", "gamma lse dq dk dv")


def fits(q: Tensor) -> bool:
    """Whether these inputs (B, n, d) are for the compiled library, and there is one."""
    return (
        type(q) is Tensor  # a subclass may have no memory of its own
        and q.device.type == "cpu"
        and q.dtype == torch.float32
        and q.shape[1] >= LEAST
        and q.shape[0] * HEADS >= torch.get_num_threads()
        and library() is not None
    )


def forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool
) -> tuple[Tensor, Tensor]:
    """Y (B, n, d_v) and the rows' log-sum-exps (B, n)."""
    B, n, d = q.shape
    q, k, v = map(_rows, (q, k, v))
    gamma = gamma.expand(B, 1, 1).contiguous()
    Y, lse = q.new_empty(B, n, v.shape[-1]), q.new_empty(B, n)
    call = ForwardCall(
        *map(_view, (q, k, v)), *map(Tensor.data_ptr, (gamma, Y, lse)), B, n, d, v.shape[-1],
        scale, drop,
    )  # fmt: skip
    _run("chacal_forward", call)
    return Y, lse


def backward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool, H: Tensor,
    lse: Tensor, dY: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and G, the gradient of v; H (B, n, d_v) is A Z."""
    B, n, d = q.shape
    q, k, v, H, dY = map(_rows, (q, k, v, H, dY))
    gamma, lse = gamma.expand(B, 1, 1).contiguous(), lse.contiguous()
    dq, dk, dv = q.new_empty(B, n, d), q.new_empty(B, n, d), q.new_empty(B, n, v.shape[-1])
    call = BackwardCall(
        *map(_view, (q, k, v, H, dY)), *map(Tensor.data_ptr, (gamma, lse, dq, dk, dv)), B, n, d,
        v.shape[-1], scale, drop,
    )  # fmt: skip
    _run("chacal_backward", call)
    return dq, dk, dv


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _view(x: Tensor) -> View:
    return View(x.data_ptr(), x.stride(0), x.stride(1))


def _run(name: str, call: ctypes.Structure) -> None:
    if getattr(library(), name)(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(
            f"no memory for {call.n} tokens; expected room for about "
            f"{8 * call.n * (call.d + call.d_v) * 4 >> 20} MiB a thread"
        )
