"""All chunks of a call as one differentiable function: cut, put in order, done, put together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chacal.ops.library import exact_backward
from chacal.parallel.chunk import Chunk, Gradients, Method, Shape, execute, joined
from chacal.parallel.link import Link
from chacal.parallel.schedule import Event, Program

CHUNKS = 4
"""Chunks per rank, where there are so many heads and sequences: while the first of them is on its
way from rank to rank, the others are worked on."""


LEAST = 1024
"""Rows of a chunk (heads times tokens), where there are so many: fewer are done before a message is
there."""


def cut(heads: Sequence[int], lengths: Sequence[Sequence[int]], ranks: int) -> list[list[slice]]:
    """Parts of so many heads and such lengths, cut to chunks that are enough for a pipeline."""
    made = []
    for B, own in zip(heads, lengths, strict=True):
        most = max(-(-sum(heads) // (CHUNKS * ranks)), -(-LEAST // sum(own)))
        made.append([slice(a, min(a + most, B)) for a in range(0, B, most)])
    return made


@functools.lru_cache(maxsize=64)
def forward_order(chunks: tuple[tuple[Method, Shape], ...]) -> list[Event]:
    """What all ranks do, in order."""
    return program_of(chunks).order()


@functools.lru_cache(maxsize=64)
def backward_order(chunks: tuple[tuple[Method, Shape], ...]) -> list[Event]:
    """The same for gradients."""
    return program_of(chunks, backward=True).order()


def program_of(chunks: Sequence[tuple[Method, Shape]], backward: bool = False) -> Program:
    """One direction of all chunks."""
    return joined([
        method.backward_program(i, shape) if backward else method.forward_program(i, shape)
        for i, (method, shape) in enumerate(chunks)
    ])  # fmt: skip


class Sharded(torch.autograd.Function):
    """All parts of a call, on (B, l, d)."""

    @staticmethod
    def forward(
        ctx: Any,
        link: Link,
        scale: float,
        methods: list[Method],
        lengths: list[tuple[int, ...]],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Y (B, l, d_v) of each part; four tensors of each are given."""
        chunks, which, outputs = [], [], []
        parts = [tensors[i : i + 4] for i in range(0, len(tensors), 4)]
        cuts = cut([q.shape[0] for q, *_ in parts], lengths, link.size)
        for (q, k, v, gamma), slices, method, own in zip(
            parts, cuts, methods, lengths, strict=True
        ):
            Y, lse = torch.empty_like(v), q.new_empty(q.shape[:2])
            outputs.append(Y)
            for at in slices:
                shape = Shape(at.stop - at.start, own, q.shape[2], v.shape[2])
                begins = shape.ranks[0] == link.rank and not method.drop
                first = v[at, :1] if begins else v.new_zeros(shape.heads, 1, shape.d_v)
                one = gamma if gamma.shape[0] == 1 else gamma[at]
                chunks.append(
                    Chunk(shape, link.rank, q[at], k[at], v[at], one, scale, first, Y[at], lse[at])
                )
                which.append(method)
        order = forward_order(tuple((m, c.shape) for m, c in zip(which, chunks, strict=True)))
        states = {
            i: method.forward(chunk)
            for i, (method, chunk) in enumerate(zip(which, chunks, strict=True))
            if chunk.q.shape[1]
        }
        execute(order, link, states)
        ctx.link, ctx.methods, ctx.cuts = link, which, cuts
        ctx.save_for_backward(*tensors, *outputs)
        # what is neither an input nor an output; the tensors that are come back from autograd
        ctx.kept = [(c.shape, c.scale, c.first, c.lse, c.kept) for c in chunks]
        return tuple(outputs)

    @staticmethod
    @exact_backward
    def backward(ctx: Any, *dYs: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, k, v and γ of each part."""
        count = len(ctx.cuts)
        tensors, outputs = ctx.saved_tensors[: 4 * count], ctx.saved_tensors[4 * count :]
        parts = [tensors[i : i + 4] for i in range(0, len(tensors), 4)]
        states: dict[int, Gradients] = {}
        number = 0
        for (q, k, v, gamma), Y, dY, slices in zip(parts, outputs, dYs, ctx.cuts, strict=True):
            for at in slices:
                shape, scale, first, lse, kept = ctx.kept[number]
                one = gamma if gamma.shape[0] == 1 else gamma[at]
                chunk = Chunk(
                    shape, ctx.link.rank, q[at], k[at], v[at], one, scale, first, Y[at], lse, kept
                )
                if q.shape[1]:
                    states[number] = ctx.methods[number].backward(chunk, dY[at])
                number += 1
        shapes = [kept[0] for kept in ctx.kept]
        execute(backward_order(tuple(zip(ctx.methods, shapes, strict=True))), ctx.link, states)
        made: list[Tensor | None] = []
        done = 0
        for (q, k, v, gamma), slices in zip(parts, ctx.cuts, strict=True):
            numbers = range(done, done + len(slices))
            done += len(slices)
            if not q.shape[1]:
                made += [torch.zeros_like(x) for x in (q, k, v, gamma)]
                continue
            own = [states[i] for i in numbers]
            dgamma = torch.cat([state.dgamma for state in own])
            made += [
                torch.cat([state.dq for state in own]),
                torch.cat([state.dk for state in own]),
                torch.cat([state.dv for state in own]),
                dgamma.sum_to_size(gamma.shape),
            ]
        return None, None, None, None, *made
