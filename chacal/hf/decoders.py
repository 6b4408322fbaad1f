"""Which attention modules of a transformers model can take an operator, and why others cannot.

There is no list of architectures. What is asked of a model is that its causal self-attention is
computed by the function that its config names (transformers' AttentionInterface), for that is
where an operator comes in, and that nothing is done to the scores which a resolvent cannot honour.
What is in the way is said by name, before anything is changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedModel

from chacal._depth import nearest
from chacal.hf.config import PREFIX

PROTOCOLS: dict[str, str | list[int]] = {
    "paper:lm": "all",
    "paper:code": [1],
    "paper:scrolls": [0],
}
"""Which layers the paper replaces, counted from 0: all twelve of GPT-2 for language modelling; only
"layer 2", the second, for code; only the first decoder self-attention of BART for SCROLLS."""

MIDDLE = (0.34, 0.47, 0.6, 0.74)
"""Where `layers="middle"` patches a model, as shares of its depth: 10, 14, 18 and 22 of 30 layers.
Both the first layers, which read words, and the last, which choose the next one, stay as they
were; tab:hops shows what four such layers are worth."""

REASONS = {
    "encoder": "an encoder's self-attention is bidirectional, so A is not triangular and the "
    "resolvent no forward substitution",
    "cross": "cross-attention is not square, and a token does not hop from one sequence to another",
}

NARROW = {
    "sliding_attention": "a sliding window",
    "chunked_attention": "chunks of the sequence",
}
"""Types of layers that see less than all earlier tokens."""


def causal_attentions(model: PreTrainedModel) -> dict[int, Any]:
    """The causal self-attention modules of a model that can be patched, by layer."""
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"model is {type(model).__name__}; expected a transformers model (patch it before "
            f"torch.compile or any other wrapper)"
        )
    name, kind = type(model).__name__, str(model.config.model_type).removeprefix(PREFIX)
    asking = [m for m in model.modules() if asks_interface(m)]
    if not asking and model.can_generate():
        raise ValueError(
            f"{name} computes its attention by itself, and not by a function that its config "
            f"names (transformers' AttentionInterface), so there is no place for an operator; "
            f"expected a decoder such as GPT-2, Llama, Pythia or OLMo 2"
        )
    found = [m for m in asking if getattr(m, "is_causal", False) is True]
    if not found or getattr(model.config, "is_causal", True) is False:
        raise ValueError(
            f"{name} has no causal self-attention, and a resolvent needs a triangular A; expected "
            f"a decoder, such as GPT-2, Llama or BART"
        )
    if model.config.get_text_config() is not model.config:
        raise ValueError(
            f"{name} has its language model as a part, whose config says nothing of the whole; "
            f"expected the language model itself, as AutoModelForCausalLM may load it"
        )
    if kind not in CONFIG_MAPPING:
        raise ValueError(
            f"{name} has a config of the type {kind!r}, which transformers does not know, so that "
            f"it could not be loaded again; expected an architecture of transformers"
        )
    indices = [getattr(m, "layer_idx", None) for m in found]
    attentions = {i: m for i, m in zip(indices, found, strict=True) if i is not None}
    if len(attentions) < len(found):
        raise ValueError(
            f"{name} has {len(found)} causal attentions that its layers do not number one by one; "
            f"expected one in each layer, with its layer_idx"
        )
    return dict(sorted(attentions.items()))


def asks_interface(module: nn.Module) -> bool:
    """Whether a module's forward looks its attention function up in transformers' interface."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def objection(attention: Any) -> str | None:
    """What a module does that a resolvent cannot honour, if anything."""
    if getattr(attention, "sinks", None) is not None:
        return "has attention sinks, which take a share of every row of A away from the tokens"
    cap = getattr(attention, "attn_logit_softcapping", None)
    if cap is not None:
        return f"caps its scores softly (attn_logit_softcapping={cap}), so A is another"
    if hasattr(attention, "has_relative_attention_bias"):
        return "adds a bias by relative position to its scores, so A is another"
    types = getattr(attention.config, "layer_types", None)
    kind = types[attention.layer_idx] if types else getattr(attention, "layer_type", None)
    if kind in NARROW:
        return f"sees only {NARROW[kind]} ({kind}), and an operator would make it see everything"
    return None


def count_heads(attention: Any) -> int:
    """Query heads of an attention module."""
    config = attention.config
    for place, name in (
        (attention, "num_heads"),
        (config, "decoder_attention_heads"),
        (config, "num_attention_heads"),
    ):
        count = getattr(place, name, None)
        if isinstance(count, int):
            return count
    raise ValueError(f"{type(attention).__name__} does not say how many heads it has")


def open_layers(attentions: Mapping[int, Any]) -> list[int]:
    """The layers that can be patched."""
    return [i for i, attention in attentions.items() if objection(attention) is None]


def choose_layers(layers: Any, attentions: Mapping[int, Any]) -> list[int]:
    """Layers as a list of indices, each of which can be patched."""
    layers = PROTOCOLS.get(layers, layers) if isinstance(layers, str) else layers
    free = open_layers(attentions)
    if layers == "middle":
        layers = nearest(free, MIDDLE, len(attentions))
    chosen = list(attentions) if layers == "all" else _listed(layers, attentions)
    for i in chosen:
        if (why := objection(attentions[i])) is not None:
            instead = f"layers={free}, or some of them" if free else "another model"
            raise ValueError(f"layer {i} {why}; expected {instead}")
    return chosen


def _listed(layers: Any, attentions: Mapping[int, Any]) -> list[int]:
    if isinstance(layers, str):
        for part, reason in REASONS.items():
            if part in layers:
                raise ValueError(
                    f"layers is {layers!r}; expected decoder self-attention only: {reason}"
                )
        raise ValueError(
            f"layers is {layers!r}; expected 'all', 'middle', a list of layers such as [1], or one "
            f"of {', '.join(map(repr, PROTOCOLS))}"
        )
    chosen = list(layers) if isinstance(layers, (Sequence, range, set)) else [layers]
    if not chosen:
        raise ValueError("layers is empty; expected 'all' or at least one layer")
    last = max(attentions)
    whole = len(attentions) == last + 1
    for i in chosen:
        if isinstance(i, bool) or not isinstance(i, int) or i not in attentions:
            there = f"layers from 0 to {last}" if whole else f"one of {list(attentions)}"
            raise ValueError(f"layer {i!r} does not exist; expected {there}")
    return sorted(set(chosen))
