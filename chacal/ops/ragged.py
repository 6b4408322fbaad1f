"""Operators that depend on n itself, for sequences of different length, inside a compiled graph.

Blocks of n // 3 are other blocks for every length, so a padded batch is computed once per distinct
length (`run` in inputs.py). Which lengths there are is in the mask, and a graph cannot depend on
that. To a compiler the whole of it is therefore one operator, torch.ops.chacal.ragged, that is told
how to find the operation for a length. Its backward computes the forward again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chacal.ops.library import Operation, no_dgamma

Plan = Callable[[int, Sequence[int], Sequence[str]], tuple[Operation, tuple[Any, ...]]]
"""(n, sizes, words) -> an operation, and its options after the scale."""

PLANS: dict[str, Plan] = {}
"""The operators by name; their files enter them."""


class ByLength(NamedTuple):
    """Which plan an operator has, in what a schema can say.

    Attributes:
        name: in PLANS.
        sizes: whole numbers; 0 stands for one that is not given.
        words: options that are texts.
    """

    name: str
    sizes: list[int]
    words: list[str]

    def core(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """Y (B, n, d_v) of sequences of one length."""
        operation, options = PLANS[self.name](q.shape[1], self.sizes, self.words)
        return operation(q, k, v, gamma, scale, *options)


def _parts(counts: Tensor, plan: tuple[Any, ...]) -> Iterator[tuple[Tensor, int, Operation, Any]]:
    """For each length: which sequences have it, the length, the operation and its options."""
    scale, name, sizes, words = plan
    for count in counts[counts > 0].unique().tolist():
        operation, options = PLANS[name](count, sizes, words)
        yield (counts == count).nonzero()[:, 0], count, operation, (scale, *options)


def _flat(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """(B, n, d) of some sequences' first tokens, in float32 at least."""
    compute = torch.promote_types(x.dtype, torch.float32)
    return x[rows][..., :count, :].to(compute).reshape(-1, count, x.shape[-1])


def _inputs(rows: Tensor, count: int, qkv: Sequence[Tensor], gamma: Tensor) -> list[Tensor]:
    return [*(_flat(x, rows, count) for x in qkv), gamma[rows].reshape(-1, 1, 1)]


def forward(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, counts: Tensor, *plan: Any
) -> tuple[Tensor, Tensor]:
    """Y (batch, ..., n, d_v), zeros from `counts` (batch,) on; nothing is kept."""
    Y = v.new_zeros(v.shape)
    for rows, count, operation, options in _parts(counts, plan):
        part = operation.forward(*_inputs(rows, count, (q, k, v), gamma), *options)[0]
        Y[rows, ..., :count, :] = part.reshape(len(rows), *v.shape[1:-2], count, -1).to(Y.dtype)
    return Y, _kept(q)[0]


def backward(
    dY: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, kept: Tensor, counts: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and γ."""
    *plan, gamma_needed = rest
    grads = [torch.zeros_like(x) for x in (q, k, v)]
    dgamma = torch.zeros_like(gamma) if gamma_needed else no_dgamma(gamma)
    for rows, count, operation, options in _parts(counts, tuple(plan)):
        inputs = _inputs(rows, count, (q, k, v), gamma)
        saved = operation.forward(*inputs, *options)[operation.first_kept :]
        found = operation.backward(
            _flat(dY, rows, count), *inputs, *saved, *options, gamma_needed
        )  # fmt: skip
        for grad, part in zip(grads, found[:3], strict=True):
            shape = (len(rows), *grad.shape[1:-2], count, grad.shape[-1])
            grad[rows, ..., :count, :] = part.reshape(shape).to(grad.dtype)
        if gamma_needed:
            dgamma[rows] = found[3].reshape(len(rows), *gamma.shape[1:])
    dq, dk, dv = grads
    return dq, dk, dv, dgamma


def _kept(q: Tensor, *rest: Any) -> tuple[Tensor]:
    return (q.new_empty(0),)


RAGGED = Operation(
    "ragged",
    "Tensor counts, float scale, str name, int[] sizes, str[] words",
    forward,
    backward,
    _kept,
    output_needed=False,
)
"""q, k and v (batch, ..., n, d) with real tokens first, γ (batch, ...)."""
