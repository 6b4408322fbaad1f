"""resolvent.c on tensors: streaming.py's forward and backward in one call each."""

from __future__ import annotations

import ctypes
import os

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


def fits(q: Tensor, *others: Tensor) -> bool:
    """Whether these inputs, q (B, n, d) first, are for the compiled library, and there is one."""
    threads = torch.get_num_threads()
    return (
        q.shape[1] >= LEAST
        and q.shape[0] * HEADS >= threads
        # threads of ours would all be bound to the core that the first of OpenMP's is bound to
        and (threads == 1 or os.environ.get("OMP_PROC_BIND", "false").lower() == "false")
        and all(map(_plain, (q, *others)))
        and library() is not None
    )


def _plain(x: Tensor) -> bool:
    # a subclass may have no memory of its own
    return type(x) is Tensor and x.dtype == torch.float32 and x.device.type == "cpu"


def forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool
) -> tuple[Tensor, Tensor]:
    """Y (B, n, d_v) and the rows' log-sum-exps (B, n), in powers of two."""
    B, n, _ = q.shape
    q, k, v = map(rows, (q, k, v))
    gamma = gamma.expand(B, 1, 1).contiguous()
    Y, lse = q.new_empty(B, n, v.shape[-1]), q.new_empty(B, n)
    run("chacal_forward", forward_call(q, k, v, gamma, Y, lse, scale, drop), n)
    return Y, lse


def forward_call(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, Y: Tensor, lse: Tensor, scale: float, drop: bool
) -> ForwardCall:
    """With tensors that have to live as long as it."""
    places = map(Tensor.data_ptr, (gamma, Y, lse))
    return ForwardCall(*map(view, (q, k, v)), *places, *q.shape, v.shape[-1], scale, drop)


def backward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool, H: Tensor,
    lse: Tensor, dY: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and G, the gradient of v; H (B, n, d_v) is A Z, and lse in powers of two."""
    B, n, d = q.shape
    q, k, v, H, dY = map(rows, (q, k, v, H, dY))
    gamma, lse = gamma.expand(B, 1, 1).contiguous(), lse.contiguous()
    dq, dk, dv = q.new_empty(B, n, d), q.new_empty(B, n, d), q.new_empty(B, n, v.shape[-1])
    call = BackwardCall(
        *map(view, (q, k, v, H, dY)), *map(Tensor.data_ptr, (gamma, lse, dq, dk, dv)), B, n, d,
        v.shape[-1], scale, drop,
    )  # fmt: skip
    run("chacal_backward", call, n)
    return dq, dk, dv


def rows(x: Tensor) -> Tensor:
    """x, if its rows lie together, or a copy of which they do."""
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()


def view(x: Tensor) -> View:
    """Where a (B, n, d) tensor is."""
    return View(x.data_ptr(), x.stride(0), x.stride(1))


def run(name: str, call: ctypes.Structure, n: int) -> None:
    """Call a function of the library for inputs of n tokens, with torch's number of threads."""
    if getattr(library(), name)(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(
            f"no memory for {n} tokens in {name}; expected room for the keys and values of a head "
            "in every thread, several times over in a backward pass: take fewer threads"
        )
