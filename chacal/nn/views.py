"""What a model attends to: A and its resolvent of every layer and head, and where the mass lies.

Every operator is linear in its values, so applied to V = I it returns the matrix that it stands
for. Nothing is computed a second way: A and S are those the model used.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chacal.nn.transformer import Transformer
from chacal.operators import BlockResolvent, Operator
from chacal.ops.delta import Beta
from chacal.ops.inputs import Gamma
from chacal.ops.weights import attention_weights


@dataclass(frozen=True)
class LayerView:
    """One layer's attention in one example.

    Attributes:
        operator: the layer's.
        gamma: γ of each head; None for ordinary attention.
        A: (h, n, n) attention weights.
        S: (h, n, n) what the operator makes of them; None for ordinary attention.
        hops: (h, n, n) what one hop of a path weighs: A, but for Algorithm 1, whose paths end at
            their block's border.
    """

    operator: Operator
    gamma: list[float] | None
    A: Tensor
    S: Tensor | None
    hops: Tensor


@torch.no_grad()
def view_layers(model: Transformer, tokens: Tensor, *, resolvents: bool = True) -> list[LayerView]:
    """A and S of every layer and head as the model reads one example.

    Args:
        model: in evaluation mode.
        tokens: (1, n), or (1, n, symbols).
        resolvents: whether S is wanted too.
    """
    views = []

    def look(module: Any, inputs: tuple[Any, ...]) -> None:
        q, k, _ = module.project(inputs[0])
        beta = module.betas(inputs[0])
        A, S = matrices(module.operator, q, k, module.gamma, beta, resolvents=resolvents)
        gamma = None
        if module.operator.has_gamma:
            own = [module.operator.own_gamma] * module.heads
            gamma = own if module.gamma is None else module.gamma.tolist()
        hops = A
        if isinstance(module.operator, BlockResolvent):
            local = dataclasses.replace(module.operator, branches="local")
            hops = local(q, k, _identity(q), gamma=0.0)
        views.append(LayerView(module.operator, gamma, A[0], None if S is None else S[0], hops[0]))

    hooks = [layer.attention.register_forward_pre_hook(look) for layer in model.blocks()]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return views


def matrices(
    operator: Operator,
    q: Tensor,
    k: Tensor,
    gamma: Gamma | None = None,
    beta: Beta | None = None,
    *,
    resolvents: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """A, and S with Y = S V where the operator has a γ or a β.

    Block-ChaCAL's A is the softmax that Algorithm 1 starts from, its S what comes of it.

    Args:
        operator: any.
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        gamma: stands in for the operator's own γ.
        beta: stands in for the operator's own β.
        resolvents: whether S is wanted too.

    Returns:
        (..., n, n) A, and (..., n, n) S or None.
    """
    I = _identity(q)
    if operator.has_beta:
        A = operator(q, k, I, beta=0.0)
        return A, operator(q, k, I, beta=beta) if resolvents else None
    if not operator.has_gamma:
        return operator(q, k, I), None
    # at γ = 0 every resolvent but Algorithm 1's is A V
    block = isinstance(operator, BlockResolvent)
    A = attention_weights(q, k) if block else operator(q, k, I, gamma=0.0)
    return A, operator(q, k, I, gamma=gamma) if resolvents else None


def _identity(q: Tensor) -> Tensor:
    n = q.shape[-2]
    return torch.eye(n, dtype=q.dtype, device=q.device).expand(*q.shape[:-2], n, n)


def block_mass(A: Tensor, size: int) -> Tensor:
    """Share of A's mass whose query and key lie in one block of `size` tokens; (..., n, n) -> (...)

    The blocks are Algorithm 1's: the first begins at token 0, the last may be short.
    """
    block = torch.arange(A.shape[-1], device=A.device) // size
    return _share(A, block[:, None] == block)


def window_mass(A: Tensor, size: int) -> Tensor:
    """Share of A's mass on keys t-size < s <= t of query t; (..., n, n) -> (...)."""
    t = torch.arange(A.shape[-1], device=A.device)
    back = t[:, None] - t
    return _share(A, (back >= 0) & (back < size))


def top_mass(A: Tensor, count: int) -> Tensor:
    """Share of A's mass on the `count` largest entries of each row; (..., n, n) -> (...)."""
    largest = A.topk(min(count, A.shape[-1]), dim=-1).values
    return largest.sum((-2, -1)) / A.sum((-2, -1))


def _share(A: Tensor, chosen: Tensor) -> Tensor:
    return (A * chosen).sum((-2, -1)) / A.sum((-2, -1))
