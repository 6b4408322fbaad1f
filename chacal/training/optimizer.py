"""What a step is made with: AdamW, and its rate at every step."""

from __future__ import annotations

import math

import torch
from torch import nn

from chacal.nn.gamma import learned_gammas
from chacal.training.config import TrainConfig


def make_optimizer(
    model: nn.Module, settings: TrainConfig
) -> tuple[torch.optim.AdamW, list[str], list[float]]:
    """AdamW on what learns; its names in the plain model, in the optimiser's order; peak rates.

    A learned γ has a rate of its own and no decay. All else is as in a model without one, so that
    the two compare.
    """
    gammas = {id(p) for p in learned_gammas(model)}
    named = [(n.removeprefix("module."), p) for n, p in model.named_parameters() if p.requires_grad]
    rest = [(name, p) for name, p in named if id(p) not in gammas]
    learned = [(name, p) for name, p in named if id(p) in gammas]
    kinds = (
        (rest, settings.lr, settings.weight_decay),
        (learned, settings.gamma_lr, 0.0),
    )
    groups = [
        {"params": [p for _, p in own], "weight_decay": decay} for own, _, decay in kinds if own
    ]
    if not groups:
        raise ValueError(
            "nothing of the model learns; expected a part that is not frozen, as γ is with "
            "gamma=learn in the operator's text"
        )
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, settings.beta2))
    names = [name for name, _ in (*rest, *learned)]
    return optimizer, names, [peak for own, peak, _ in kinds if own]


def learning_rate(settings: TrainConfig, step: int, peak: float | None = None) -> float:
    """The rate of step `step`, counted from 0: a rise over `warmup`, then the schedule's fall.

    `peak` is the highest, `settings.lr` unless given.
    """
    peak = settings.lr if peak is None else peak
    if step < settings.warmup:
        return peak * (step + 1) / settings.warmup
    begin = max(settings.warmup, round(settings.steps * (1 - settings.decay)))
    if settings.schedule == "constant" or step < begin:
        return peak
    done = (step - begin) / max(1, settings.steps - begin)
    fall = done if settings.schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
    return peak * (1 - (1 - settings.final_lr) * fall)
