"""Which heads an answer needs: how much less likely it is without each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from chacal.play.models import Model


@torch.no_grad()
def needed_heads(
    model: Model, tokens: Tensor, rows: list[int], answers: list[int], gamma: float | None
) -> list[list[float]]:
    """For every layer and head, by how much the answers' mean log-probability falls without it.

    All heads are tried in one pass: a copy of the sequence for each.

    Args:
        model: asked.
        tokens: (1, n).
        rows: at which answers are given, and a head is silenced.
        answers: the class at each of them.
        gamma: stands in for the model's own γ.
    """
    layers = [layer.attention for layer in model.net.blocks()]
    width = layers[0].out.in_features
    heads = layers[0].heads
    copies = tokens.expand(1 + len(layers) * heads, -1)

    def silence(number: int) -> Callable[..., Any]:
        def hook(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            (Y,) = inputs
            for head in range(heads):
                own = slice(head * width // heads, (head + 1) * width // heads)
                copy = Y[1 + number * heads + head]  # copy 0 stays whole
                copy[rows, own] = 0
            return (Y,)

        return hook

    hooks = [layer.out.register_forward_pre_hook(silence(i)) for i, layer in enumerate(layers)]
    try:
        scores = model.scores(copies, gamma)
    finally:
        for hook in hooks:
            hook.remove()
    likely = torch.log_softmax(scores[:, rows], -1)
    classes = torch.tensor(answers).expand(len(copies), -1)
    said = likely.gather(-1, classes[..., None])[..., 0].mean(-1)
    return (said[0] - said[1:]).unflatten(0, (len(layers), heads)).tolist()
