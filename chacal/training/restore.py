"""What a checkpoint may put back into the loop: named fields of their types, tensors that fit.

A checkpoint can come from a stranger or from a damaged disk, and the loop must not become whatever
it says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chacal._plain import added, from_plain, member
from chacal.training.checkpoint import load_checkpoint
from chacal.training.config import ModelConfig, RunConfig
from chacal.training.distributed import Group
from chacal.training.runs import RunFolder

ADAMW = {"step", "exp_avg", "exp_avg_sq"}
"""What the optimiser remembers of a weight."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a checkpoint says of the loop besides its tensors."""

    step: int
    best: float | None
    best_metrics: dict[str, float]
    seconds: float
    tokens: int
    loss: float
    stopped: str = added("")
    unmeasured: bool = added(False)


def read_progress(data: Any, steps: int, where: str) -> Progress:
    """A run's progress, as far as it can have come.

    Args:
        data: what the checkpoint holds.
        steps: of the run.
        where: how errors name it.
    """
    progress = from_plain(Progress, data, where)
    if not 0 <= progress.step <= steps:
        raise ValueError(f"{where}.step is {progress.step}; expected 0 to {steps}, the run's steps")
    if progress.tokens < 0:
        raise ValueError(f"{where}.tokens is {progress.tokens}; expected at least 0")
    if not 0 <= progress.seconds < math.inf:
        raise ValueError(f"{where}.seconds is {progress.seconds}; expected at least 0")
    if progress.stopped not in ("", "target"):
        raise ValueError(f"{where}.stopped is {progress.stopped!r}; expected '' or 'target'")
    return progress


def check_optimizer(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], path: Path
) -> None:
    """Refuse what is not AdamW's memory of a model with such weights.

    Args:
        tensors: by "WEIGHT.KIND".
        shapes: of the weights.
        path: the checkpoint.
    """
    kinds: dict[str, set[str]] = {}
    for name, tensor in tensors.items():
        weight, _, kind = name.rpartition(".")
        if weight not in shapes or kind not in ADAMW:
            raise ValueError(f"{path}: optimizer.{name} is of no weight of this model")
        expected = torch.Size() if kind == "step" else shapes[weight]
        if tensor.shape != expected or not tensor.is_floating_point():
            raise ValueError(
                f"{path}: optimizer.{name} has shape {tuple(tensor.shape)} and {tensor.dtype}; "
                f"expected {tuple(expected)} and floating point"
            )
        kinds.setdefault(weight, set()).add(kind)
    for weight, there in kinds.items():
        if lacking := sorted(ADAMW - there):
            raise ValueError(f"{path}: optimizer.{weight}.{lacking[0]} is missing")


def random_state(device: torch.device) -> Tensor:
    """The state that dropout draws from, as bytes."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device, where: str) -> None:
    """Put back what `random_state` took; `where` is how errors name it."""
    own = random_state(device)
    try:
        if state.dtype != own.dtype or state.shape != own.shape:
            raise RuntimeError
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
    except RuntimeError:
        raise ValueError(
            f"{where} is not a random state of torch {torch.__version__} on {device.type}; "
            f"expected the checkpoint of a run with both"
        ) from None


def own_random_state(
    tensors: Mapping[str, Tensor], config: RunConfig, group: Group, path: Path
) -> Tensor | None:
    """This rank's state of a checkpoint; None where another number of ranks goes on without.

    Only dropout draws anything, so a model without it is the same on any number of processes.
    """
    states = {k.removeprefix("random."): v for k, v in tensors.items() if k[:7] == "random."}
    if set(states) == set(map(str, range(group.world))):
        return states[str(group.rank)]
    if states and isinstance(config.model, ModelConfig) and not config.model.dropout:
        return None
    raise ValueError(
        f"{path} was run by {len(states)} processes, and its model draws random numbers (dropout); "
        f"expected the same number to resume it, not {group.world}"
    )


def way_on(run: RunFolder) -> str:
    """What is left of a run whose last checkpoint is damaged, as the end of a sentence."""
    try:
        step = member(load_checkpoint(run.best)[1], "step", int, str(run.best))
    except ValueError:
        return ""
    return (
        f"; {run.best.name}, of step {step}, is whole: --init {run.path} with another --out starts "
        f"a new run from it"
    )
