"""choice.c on tensors: which tiles rows choose."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from chacal.native.resolvent import View, rows, run, view


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
