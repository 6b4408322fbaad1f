"""routed.c on tensors: the routed resolvent's choice of tiles and its forward pass."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from chacal.native.resolvent import ForwardCall, View, forward_call, rows, run, view


class RoutedCall(ctypes.Structure):
    """`struct routed_call`."""

    _fields_ = (
        ("rows", ForwardCall),
        ("chosen", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("tile", "near", "routes")),
    )


class ChoiceCall(ctypes.Structure):
    """`struct choice_call`."""

    _fields_ = (
        ("q", View),
        ("summary", View),
        ("chosen", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("heads", "n", "d", "tiles", "parts", "width")),
        *((name, ctypes.c_long) for name in ("tile", "near", "routes")),
        ("bound", ctypes.c_int),
    )


def choose(q: Tensor, summary: Tensor, tile: int, near: int, routes: int, bound: bool) -> Tensor:
    """(B, n, routes) tiles of which a part scores highest, the best first; -1 for none.

    Args:
        q: (B, n, d) queries.
        summary: (B, tiles, parts, d), or 2d for a bound: greatest and least of each channel.
        tile: keys of a tile.
        near: tiles before a row's own that are not to be chosen.
        routes: how many a row chooses.
        bound: whether the summary is one of bounds.
    """
    q, (_, tiles, parts, width) = rows(q), summary.shape
    summary = summary.flatten(1, 2).contiguous()
    chosen = torch.empty(*q.shape[:2], routes, dtype=torch.long)
    call = ChoiceCall(
        view(q), view(summary), chosen.data_ptr(), *q.shape, tiles, parts, width, tile, near,
        routes, bound,
    )  # fmt: skip
    run("chacal_choose", call, q.shape[1])
    return chosen


def forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, tile: int, near: int,
    chosen: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Y (B, n, d_v) and the rows' log-sum-exps (B, n)."""
    B, n, _ = q.shape
    q, k, v = map(rows, (q, k, v))
    gamma, chosen = gamma.expand(B, 1, 1).contiguous(), chosen.contiguous()
    Y, lse = q.new_empty(B, n, v.shape[-1]), q.new_empty(B, n)
    inner = forward_call(q, k, v, gamma, Y, lse, scale, False)
    call = RoutedCall(inner, chosen.data_ptr(), tile, near, chosen.shape[2])
    run("chacal_routed_forward", call, n)
    return Y, lse
