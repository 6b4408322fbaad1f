"""What of a pretrained model learns: all of it, some layers, adapters (LoRA), or γ alone.

A learned γ and a new head always learn; they are what was added.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from torch import nn

from chacal.hf.patch import causal_attentions
from chacal.nn.gamma import learned_gammas

EMBEDDINGS = "embeddings"
EVERYTHING = "all"


def freeze(model: Any, parts: str) -> None:
    """Let some weights of a transformers model stay as they are.

    Args:
        model: with or without a head, patched or not.
        parts: "all"; or joined by "+": "embeddings", and layers from 0 as in 3 or 0-9.
    """
    chosen = frozen_parts(parts, len(causal_attentions(model)))
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    embeddings = {id(p) for table in tables for p in table.parameters()}
    for name, parameter in model.named_parameters():
        number = re.search(r"\.(\d+)\.", name)
        own = EMBEDDINGS if id(parameter) in embeddings else int(number[1]) if number else None
        if EVERYTHING in chosen or own in chosen:
            parameter.requires_grad = False
    for gamma in learned_gammas(model):
        gamma.requires_grad = True


def frozen_parts(parts: str, layers: int) -> set[str | int]:
    """ "embeddings+0-2" -> {"embeddings", 0, 1, 2}, checked against how many layers there are."""
    chosen: set[str | int] = set()
    for part in parts.split("+"):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if span is None and part not in (EVERYTHING, EMBEDDINGS):
            raise ValueError(
                f"freeze is {parts!r}; expected all, or embeddings and layers from 0 joined by "
                f"plus signs, as in embeddings+0-9"
            )
        if span is None:
            chosen.add(part)
            continue
        first, last = int(span[1]), int(span[2] or span[1])
        if not first <= last < layers:
            raise ValueError(f"freeze is {parts!r}; expected layers from 0 to {layers - 1}")
        chosen |= set(range(first, last + 1))
    return chosen


def add_lora(model: Any, rank: int) -> None:
    """Adapters of PEFT on every linear layer; of the model itself, only γ goes on learning."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError(
            f"lora is {rank}; adapters need the package 'peft' (pip install peft)"
        ) from None
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    with warnings.catch_warnings():
        # GPT-2 keeps its matrices the other way round, and PEFT says that it noticed
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")
        inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = ".lora_" in name
    for gamma in learned_gammas(model):
        gamma.requires_grad = True


def merge_lora(model: nn.Module) -> None:
    """Add what adapters learned to the matrices that they stand beside, and take them away."""
    try:
        from peft.tuners.lora import LoraLayer
    except ImportError:
        return  # and nobody put adapters there
    adapted = [(name, m) for name, m in model.named_modules() if isinstance(m, LoraLayer)]
    for name, layer in adapted:
        layer.merge()
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.get_base_layer())
