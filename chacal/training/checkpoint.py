"""Checkpoints as single safetensors files: weights, optimiser, random state; never pickle.

One file is written beside and renamed, so a crash leaves the checkpoint before it. Its metadata
carries the progress (step, best metric) as JSON, a mark that says it is ours, and a checksum of
all of it: a bit that turned over on a disk would else become another result. Checkpoints of
versions before the checksum are read without one. Weights that are not finite are neither written
nor read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from chacal._files import parse_json
from chacal._plain import member
from chacal.training.runs import write_atomic

MARK = "chacal-checkpoint-1"
OF_OPERATORS = (
    ".gamma_logit", ".learned_gamma.weight", ".chacal_gamma.weight",
    ".attention.beta.weight", ".attention.beta.bias",
)  # fmt: skip
"""How the names of learned γ and β end."""


class Damaged(ValueError):
    """The file is not as it was written."""


def save_checkpoint(path: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    """Write tensors and progress to `path`, whole or not at all."""
    if bad := not_finite(tensors):
        raise ValueError(
            f"the weights are not finite ({bad}) at step {progress['step']}; {path} is left as it "
            f"was (a smaller --lr, or --qk-norm, may help)"
        )
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, x in tensors.items():
        x = x.detach().cpu().contiguous()
        # tied weights have two names, and the format holds each of them
        plain[name] = x.clone() if x.data_ptr() in seen else x
        seen.add(x.data_ptr())
    metadata = {"format": MARK, "progress": json.dumps(progress)}
    checksum = hashlib.sha256(metadata["progress"].encode())
    for name in sorted(plain):
        _add(checksum, name, plain[name])
    write_atomic(path, save(plain, {**metadata, "checksum": checksum.hexdigest()}))


def load_checkpoint(path: Path, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors whose names start with `prefix` (taken off), and the progress; all is verified."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise ValueError(f"{path} {what}; expected a checkpoint of a chacal run")
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != MARK:
                raise ValueError(
                    f"{path} is a safetensors file, but not a chacal checkpoint ({MARK})"
                )
            progress = member(metadata, "progress", str, str(path))
            checksum = hashlib.sha256(progress.encode())
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                _add(checksum, name, tensor)
                if name.startswith(prefix):
                    tensors[name] = tensor
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {error}") from None
    made = checksum.hexdigest()
    if metadata.get("checksum", made) != made:
        raise Damaged(
            f"{path} is damaged: its checksum is not that of what it holds; expected the file as "
            f"it was written (bring it back from a copy, or train the run again with --force)"
        )
    if bad := not_finite(tensors):
        raise ValueError(
            f"{path} has weights that are not finite ({bad}); expected those of a run that "
            f"learned (train it again with --force and a smaller --lr)"
        )
    told = parse_json(progress, f"{path}: progress")
    if not isinstance(told, dict):
        raise ValueError(f"{path}: progress is {progress[:40]}; expected an object")
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items()}, told


def not_finite(tensors: dict[str, Tensor]) -> str:
    """The first weight of a checkpoint's tensors that holds an infinity or NaN; "" for none."""
    for name, x in tensors.items():
        # numbers of one byte have no such test of their own
        if name.startswith("model.") and x.is_floating_point():
            wide = x.float() if x.element_size() == 1 else x
            if not bool(torch.isfinite(wide).all()):
                return name.removeprefix("model.")
    return ""


def _add(checksum: hashlib._Hash, name: str, x: Tensor) -> None:
    """Count in a tensor: what it is called, what it is, and its bytes."""
    checksum.update(f"\n{name} {x.dtype} {tuple(x.shape)}\n".encode())
    checksum.update(x.reshape(-1).view(torch.uint8).numpy().data)


def load_weights(model: torch.nn.Module, path: Path) -> dict[str, Any]:
    """Put a checkpoint's weights into `model`; the progress they were saved with."""
    tensors, progress = load_checkpoint(path, "model.")
    frozen = frozen_names(model)
    own = {name: x for name, x in model.state_dict().items() if name not in frozen}
    # an operator that has no γ or β can stand where one with a learned one was trained
    tensors = {k: v for k, v in tensors.items() if k in own or not k.endswith(OF_OPERATORS)}
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
        if tensor.is_floating_point() != own[name].is_floating_point():
            raise ValueError(
                f"{path} is of another model: {name} is of {tensor.dtype}; expected "
                f"{own[name].dtype}"
            )
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
