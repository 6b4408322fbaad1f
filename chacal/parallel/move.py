"""Rows that change their rank, there and, for gradients, back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chacal.ops.library import exact_backward
from chacal.parallel.chunk import starts
from chacal.parallel.link import Link, exchange


def moved(link: Link, x: Tensor, lengths: Sequence[int], wanted: Sequence[int]) -> Tensor:
    """x (B, l, d), of a text that ranks hold `lengths` rows of, as they are to hold it."""
    if tuple(lengths) == tuple(wanted):
        return x
    return Moved.apply(link, x, tuple(lengths), tuple(wanted))


class Moved(torch.autograd.Function):
    """Rows to where they are wanted."""

    @staticmethod
    def forward(
        ctx: Any, link: Link, x: Tensor, lengths: Sequence[int], wanted: Sequence[int]
    ) -> Tensor:
        """(B, wanted, d)."""
        ctx.link, ctx.lengths, ctx.wanted = link, lengths, wanted
        return _move(link, x, lengths, wanted)

    @staticmethod
    @exact_backward
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients to where the rows came from."""
        return None, _move(ctx.link, dx, ctx.wanted, ctx.lengths), None, None


def _move(link: Link, x: Tensor, lengths: Sequence[int], wanted: Sequence[int]) -> Tensor:
    there, here = starts(lengths), starts(wanted)
    own = there[link.rank], there[link.rank + 1]
    new = here[link.rank], here[link.rank + 1]
    made = x.new_empty(x.shape[0], new[1] - new[0], x.shape[2])
    sent, coming = {}, {}
    for rank in range(link.size):
        a, b = max(own[0], here[rank]), min(own[1], here[rank + 1])
        if a < b and rank != link.rank:
            sent[rank] = x[:, a - own[0] : b - own[0]]
        elif a < b:
            made[:, a - new[0] : b - new[0]] = x[:, a - own[0] : b - own[0]]
        a, b = max(new[0], there[rank]), min(new[1], there[rank + 1])
        if a < b and rank != link.rank:
            coming[rank] = (x.shape[0], b - a, x.shape[2])
    for rank, part in exchange(link, x, sent, coming).items():
        a = max(new[0], there[rank]) - new[0]
        made[:, a : a + part.shape[1]] = part
    link.done()
    return made
