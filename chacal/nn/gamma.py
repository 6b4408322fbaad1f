"""A γ per head that is learned and can be exactly 0, and the optimiser's groups for it.

At γ = 0 a resolvent is ordinary attention, so a pretrained model in which γ starts at 0 is still
the model that it was. For that, 0 must be reachable, must have a gradient, and must be a place to
stay. A smooth map cannot do it: one that is never negative and is 0 at 0 is flat there. |w| is not
flat, but a step that would make γ negative makes it positive. So the parameter is γ itself, and
what is used is the parameter clamped to [0, `LARGEST`], by a projected gradient (`Clamped`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 0.999
"""Paths of a thousand hops on average. 1 is where the resolvent ends, and bfloat16, as which
mixed precision may hand the parameter over, knows nothing between 0.998 and 1."""


class Clamped(torch.autograd.Function):
    """w clamped to [0, LARGEST]; beyond a border only a gradient that leads back is passed on.

    At 0 itself it is the derivative in γ, whatever its sign. With torch.clamp, a parameter that a
    step has carried past a border would have no gradient, and stay there for good. With every
    gradient passed straight through, one that rests beyond a border would be carried further out
    at each step and take as many to come back.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        """(heads,) -> (heads,)."""
        ctx.save_for_backward(w)
        return w.clamp(0.0, LARGEST)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """A descent step goes against the gradient."""
        (w,) = ctx.saved_tensors
        outward = ((w < 0) & (grad > 0)) | ((w > LARGEST) & (grad < 0))
        return grad.masked_fill(outward, 0.0)


class LearnedGamma(nn.Module):
    """γ of each head of one layer.

    A module and not a bare parameter, so that PEFT can name it among `modules_to_save`. In half
    precision γ would stand still, its steps being smaller than the next number; the parameter
    stays in float32 whatever the model is cast to.

    Args:
        heads: h.
        start: γ of all heads at first.
        device: of the parameter.
    """

    def __init__(
        self, heads: int, start: float = 0.0, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.start = min(start, LARGEST)
        self.weight = nn.Parameter(torch.empty(heads, dtype=torch.float32, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """γ as it is at first."""
        nn.init.constant_(self.weight, self.start)

    def forward(self, like: Tensor | None = None) -> Tensor:
        """(heads,) γ in [0, LARGEST], on the device of `like`."""
        w = self.weight if like is None else self.weight.to(like.device)
        return Clamped.apply(w.to(torch.promote_types(w.dtype, torch.float32)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LearnedGamma:
        """What `.to` and `.half` do to tensors, without the halving."""

        def kept(x: Tensor) -> Tensor:
            made = fn(x)
            return x.to(made.device) if made.is_floating_point() and made.itemsize < 4 else made

        return super()._apply(kept, recurse)

    def extra_repr(self) -> str:
        """Heads and start."""
        return f"heads={self.weight.shape[0]}, start={self.start}"


def learned_gammas(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of all learned γ of a model, however it is wrapped."""
    for module in model.modules():
        if isinstance(module, LearnedGamma):
            yield module.weight


def parameter_groups(
    model: nn.Module, *, lr: float, gamma_lr: float = 1e-2, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimiser: γ with a rate of its own and never any decay.

    γ is a number in [0, 1), not one of thousands of weights of about 0.01: at their rate it would
    not move in a fine-tuning, and decay would draw it to 0. Biases and norms, all that is no
    matrix, do not decay either. What takes no gradient, as weights that PEFT froze, is left out.

    Args:
        model: any; γ of `chacal.nn` and of `chacal.hf` are found, inside PEFT or FSDP2 too.
        lr: of everything but γ.
        gamma_lr: of γ.
        weight_decay: of matrices.

    Returns:
        groups that are not empty, γ last; as in `AdamW(parameter_groups(model, lr=2e-4))`.
    """
    gammas = {id(p) for p in learned_gammas(model)}
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    learned: list[nn.Parameter] = []
    for p in model.parameters():
        if p.requires_grad:
            (learned if id(p) in gammas else matrices if p.ndim > 1 else vectors).append(p)
    groups: list[dict[str, Any]] = [
        {"params": matrices, "lr": lr, "weight_decay": weight_decay},
        {"params": vectors, "lr": lr, "weight_decay": 0.0},
        {"params": learned, "lr": gamma_lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
