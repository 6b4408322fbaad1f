"""resolvent.c on tensors: streaming.py's forward and backward in one call each."""

from __future__ import annotations

import ctypes
import math
import os

import torch
from torch import Tensor

from chacal.native.build import library

LEAST = 24
"""Tokens from which on it is used: it always computes whole tiles of 64 rows."""

HEADS = 2
"""A head is one thread's: with more threads than this times the heads, plain PyTorch has more."""


UNIT = math.log(2)
"""Of the library's log-sum-exps, in natural logarithms: it counts in powers of two."""


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

    _fields_ = _call("q k v Y dY", "gamma lse dq dk dv dgamma")


def fits(q: Tensor, *others: Tensor) -> bool:
    """Whether these inputs, q (B, n, d) first, are for the compiled library, and there is one."""
    threads = torch.get_num_threads()
    return (
        q.shape[1] >= LEAST
        and q.shape[0] * HEADS >= threads
        and (threads == 1 or not _bound())
        and all(map(_plain, (q, *others)))
        and library() is not None
    )


def _bound() -> bool:
    """Whether OpenMP binds threads: all of ours would be on the core of the first of them."""
    asked = os.environ.get("OMP_PROC_BIND")
    if asked is None:
        return "OMP_PLACES" in os.environ or "GOMP_CPU_AFFINITY" in os.environ
    return asked.lower() != "false"


def _plain(x: Tensor) -> bool:
    # a subclass may have no memory of its own, and PyTorch's tensor of nothing but zeros has none
    return (
        type(x) is Tensor
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and not x._is_zerotensor()
    )


def in_powers(lse: Tensor, unit: Tensor) -> Tensor:
    """Log-sum-exps of a unit (1,) in the library's own; those that it kept as they are, which is
    exact."""
    share = float(unit / UNIT)
    return lse if share == 1 else lse * share


def forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool
) -> tuple[Tensor, Tensor]:
    """Y (B, n, d_v) and the rows' log-sum-exps (B, n), in powers of two."""
    call, results, _alive = forward_call(q, k, v, gamma, scale, drop)
    run("chacal_forward", call, q.shape[1])
    return results


def backward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool, Y: Tensor,
    lse: Tensor, dY: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and γ, in its shape; lse in powers of two."""
    call, results, _alive = backward_call(q, k, v, gamma, scale, drop, Y, lse, dY)
    run("chacal_backward", call, q.shape[1])
    dq, dk, dv, dgamma = results
    return dq, dk, dv, dgamma.sum_to_size(gamma.shape)


def forward_call(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool
) -> tuple[ForwardCall, tuple[Tensor, Tensor], list[Tensor]]:
    """A call, where its results will be, and what has to live until it is done."""
    B, n, _ = q.shape
    inputs = [*map(rows, (q, k, v)), whole(gamma.expand(B, 1, 1))]
    results = q.new_empty(B, n, v.shape[-1]), q.new_empty(B, n)
    places = map(Tensor.data_ptr, (inputs[3], *results))
    call = ForwardCall(*map(view, inputs[:3]), *places, *q.shape, v.shape[-1], scale, drop)
    return call, results, inputs


def backward_call(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool, Y: Tensor,
    lse: Tensor, dY: Tensor,
) -> tuple[BackwardCall, list[Tensor], list[Tensor]]:  # fmt: skip
    """A call, where its results will be (γ's for every head), and what has to live until then."""
    B, n, d = q.shape
    inputs = [*map(rows, (q, k, v, Y, dY)), whole(gamma.expand(B, 1, 1)), whole(lse)]
    shapes = (B, n, d), (B, n, d), (B, n, v.shape[-1]), (B, 1, 1)
    results = [q.new_empty(shape) for shape in shapes]
    places = map(Tensor.data_ptr, (*inputs[5:], *results))
    call = BackwardCall(*map(view, inputs[:5]), *places, *q.shape, v.shape[-1], scale, drop)
    return call, results, inputs


def rows(x: Tensor) -> Tensor:
    """x, if its rows lie together, or a copy of which they do."""
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()


def whole(x: Tensor) -> Tensor:
    """x, or a copy, as one run of numbers that are what they are: not to be negated on reading."""
    return x.resolve_neg().contiguous()


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
