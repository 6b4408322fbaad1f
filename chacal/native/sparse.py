"""sparse.c on tensors: the resolvent of a window, or of near tiles and chosen ones."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from torch import Tensor

from chacal.native.resolvent import (
    BackwardCall,
    ForwardCall,
    backward_call,
    forward_call,
    run,
)


class SeenKeys(ctypes.Structure):
    """`struct seen`."""

    _fields_ = (
        ("chosen", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("tile", "near", "routes", "window")),
    )


class SparseForwardCall(ctypes.Structure):
    """`struct sparse_forward_call`."""

    _fields_ = (("rows", ForwardCall), ("seen", SeenKeys))


class SparseBackwardCall(ctypes.Structure):
    """`struct sparse_backward_call`."""

    _fields_ = (("rows", BackwardCall), ("seen", SeenKeys))


@dataclass(frozen=True)
class Seen:
    """What rows see: `window` keys, or their own tile, `near` tiles before it and `chosen` ones.

    Attributes:
        window: keys, a row's own among them.
        tile: keys of a tile.
        near: tiles before a row's own.
        chosen: (B, n, routes) tiles; -1 for none. They are whole, and earlier than the near ones.
    """

    window: int | None = None
    tile: int = 1
    near: int = 0
    chosen: Tensor | None = None

    def __post_init__(self) -> None:
        """`chosen` is read as it lies."""
        if self.chosen is not None:
            object.__setattr__(self, "chosen", self.chosen.contiguous())

    def keys(self, n: int) -> SeenKeys:
        """The same for n tokens; what it points to lives as long as this."""
        routes = 0 if self.chosen is None else self.chosen.shape[2]
        place = 0 if self.chosen is None else self.chosen.data_ptr()
        return SeenKeys(place, self.tile, min(self.near, n), routes, min(self.window or 0, n))


def forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool, seen: Seen
) -> tuple[Tensor, Tensor]:
    """Y (B, n, d_v) and the rows' log-sum-exps (B, n), in powers of two."""
    inner, results, _alive = forward_call(q, k, v, gamma, scale, drop)
    n = q.shape[1]
    run("chacal_sparse_forward", SparseForwardCall(inner, seen.keys(n)), n)
    return results


def backward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, drop: bool, seen: Seen, Y: Tensor,
    lse: Tensor, dY: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and γ, in its shape; lse in powers of two."""
    inner, results, _alive = backward_call(q, k, v, gamma, scale, drop, Y, lse, dY)
    n = q.shape[1]
    run("chacal_sparse_backward", SparseBackwardCall(inner, seen.keys(n)), n)
    dq, dk, dv, dgamma = results
    return dq, dk, dv, dgamma.sum_to_size(gamma.shape)
