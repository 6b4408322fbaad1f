"""Checkpoints as single safetensors files: weights, optimiser, random state; never pickle.

One file is written beside and renamed, so a crash leaves the checkpoint before it. Its metadata
carries the progress (step, best metric) as JSON and a mark that says it is ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from chacal.training.runs import write_atomic

MARK = "chacal-checkpoint-1"
GAMMAS = (".gamma_logit", ".learned_gamma.weight", ".chacal_gamma.weight")
"""How the names of learned γ end."""


def save_checkpoint(path: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    """Write tensors and progress to `path`, whole or not at all."""
    metadata = {"format": MARK, "progress": json.dumps(progress)}
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, x in tensors.items():
        x = x.detach().cpu().contiguous()
        # tied weights have two names, and the format holds each of them
        plain[name] = x.clone() if x.data_ptr() in seen else x
        seen.add(x.data_ptr())
    write_atomic(path, save(plain, metadata))


def load_checkpoint(path: Path, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors whose names start with `prefix` (taken off), and the progress."""
    if not path.is_file():
        raise ValueError(f"{path} is not there; expected a checkpoint of a chacal run")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != MARK:
                raise ValueError(
                    f"{path} is a safetensors file, but not a chacal checkpoint ({MARK})"
                )
            tensors = {
                name[len(prefix) :]: file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 - it is no dict
                if name.startswith(prefix)
            }
            return tensors, json.loads(metadata["progress"])
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {error}") from None


def load_weights(model: torch.nn.Module, path: Path) -> dict[str, Any]:
    """Put a checkpoint's weights into `model`; the progress they were saved with."""
    tensors, progress = load_checkpoint(path, "model.")
    frozen = frozen_names(model)
    own = {name: x for name, x in model.state_dict().items() if name not in frozen}
    # an operator that has no γ can stand where one with a learned γ was trained
    tensors = {k: v for k, v in tensors.items() if k in own or not k.endswith(GAMMAS)}
    missing, foreign = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or foreign:
        raise ValueError(
            f"{path} is of another model: "
            + "; ".join(
                f"{what} {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
                for what, names in (("it lacks", missing), ("it has", foreign))
                if names
            )
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"{path} is of another model: {name} has shape {tuple(tensor.shape)}; expected "
                f"{tuple(own[name].shape)}"
            )
    model.load_state_dict(tensors, strict=not frozen)
    return progress


def frozen_names(model: torch.nn.Module) -> set[str]:
    """Weights that do not learn: a checkpoint leaves them to the model that they came from."""
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


def pack_optimizer(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """The optimiser's state as named tensors; `names` are its parameters', in order."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{names[index]}.{key}": torch.as_tensor(value)
        for index, values in state.items()
        for key, value in values.items()
    }


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, names: list[str], tensors: dict[str, Tensor]
) -> None:
    """Put back what `pack_optimizer` took."""
    own = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parameter, _, key = name.rpartition(".")
        state.setdefault(names.index(parameter), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})
