"""Replace the causal self-attention of chosen layers, in place, and put it back.

A patched attention module differs in three attributes: `chacal_operator`, a config that names our
attention function, and a hook for the cache (attention.py). Nothing else is touched, so
`unpatch` restores the very model, and encoder and cross-attention cannot be reached.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

from torch.nn import Module
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import PreTrainedModel

from chacal.hf.attention import PatchedConfig, hand_over_cache
from chacal.hf.config import CONFIGS, PREFIX, ChaCALConfig
from chacal.operators import Operator, parse_operator, spelled_out

Model = TypeVar("Model", bound=PreTrainedModel)

PROTOCOLS: dict[str, str | list[int]] = {
    "paper:lm": "all",
    "paper:code": [1],
    "paper:scrolls": [0],
}
"""Which layers the paper replaces, counted from 0: all twelve of GPT-2 for language modelling; only
"layer 2", the second, for code; only the first decoder self-attention of BART for SCROLLS."""

REASONS = {
    "encoder": "an encoder's self-attention is bidirectional, so A is not triangular and the "
    "resolvent no forward substitution",
    "cross": "cross-attention is not square, and a token does not hop from one sequence to another",
}


def patch(
    model: Model,
    operator: Operator | str,
    layers: str | int | Sequence[int] = "all",
    *,
    allow_leak: bool = False,
) -> Model:
    """Let some layers of a transformers model attend with `operator`, in place.

    Weights and state-dict keys stay as they are. The whole model is patched, not a part of
    it: its config records the operators, and `save_pretrained` writes them. A layer may be patched
    again, and other layers with another operator.

    Args:
        model: GPT-2, BART (its decoder), Llama, Mistral, Qwen2 or Qwen3, with any head; those of
            `models.HEADS` can be loaded again once they are saved.
        operator: an operator or its text, such as "chacal,gamma=0.5" or "window@64".
        layers: "all", decoder layers counted from 0, or one of `PROTOCOLS`.
        allow_leak: whether an operator that sees later tokens may be used.

    Returns:
        the model.
    """
    operator = parse_operator(operator) if isinstance(operator, str) else operator
    if not isinstance(operator, Operator):
        raise ValueError(f"operator is {operator!r}; expected an operator or a text for one")
    if not operator.causal and not allow_leak:
        raise ValueError(
            f"{operator} sees later tokens, and in a causal model that leaks the answer; expected "
            f"a causal operator (rows=first), or allow_leak=True"
        )
    attentions = causal_attentions(model)
    chosen = choose_layers(layers, len(attentions))
    whole = _whole_of(model)
    if whole is not None:
        raise ValueError(
            f"model is the {type(model).__name__} of a {whole}, whose config would not say what "
            f"is patched, and save_pretrained would write it as dense; expected the {whole} itself"
        )
    config = _own_config(model)
    texts = {i: str(op) for i, op in operators_of(model).items()} | dict.fromkeys(
        chosen, str(operator)
    )
    # what is saved must mean the same to a later version, whose defaults may be others
    config.chacal_operators = {str(i): spelled_out(texts[i]) for i in sorted(texts)}
    config.chacal_allow_leak = config.chacal_allow_leak or not operator.causal
    for i in chosen:
        _install(attentions[i], operator, config)
    return model


def unpatch(model: Model) -> Model:
    """Ordinary attention again in every layer; bitwise the model that was patched."""
    attentions = causal_attentions(model)
    for i in operators_of(model):
        _remove(attentions[i], model.config)
    if isinstance(model.config, ChaCALConfig):
        model.config.__class__ = model.config.stock
        del model.config.chacal_operators, model.config.chacal_allow_leak
    return model


def operators_of(model: PreTrainedModel) -> dict[int, Operator]:
    """The patched layers, counted from 0, and their operators."""
    return {
        module.layer_idx: module.chacal_operator
        for module in model.modules()
        if hasattr(module, "chacal_operator")
    }


def install_from_config(model: PreTrainedModel) -> None:
    """Patch a new model as its config says."""
    config = model.config
    if not isinstance(config, ChaCALConfig) or not config.chacal_operators:
        raise ValueError(
            f"the config of {type(model).__name__} names no operator; expected chacal_operators, "
            f'as in from_pretrained(..., chacal_operators={{"1": "chacal"}}) or, for all layers, '
            f'chacal_operators="chacal"'
        )
    attentions = causal_attentions(model)
    given = config.chacal_operators
    texts = dict.fromkeys(attentions, given) if isinstance(given, str) else _by_layer(given)
    choose_layers(list(texts), len(attentions))
    operators = {i: parse_operator(text) for i, text in texts.items()}
    leaking = [str(op) for op in operators.values() if not op.causal]
    if leaking and not config.chacal_allow_leak:
        raise ValueError(
            f"{leaking[0]} sees later tokens; expected a causal operator, or chacal_allow_leak=True"
        )
    config.chacal_operators = {str(i): spelled_out(text) for i, text in texts.items()}
    for i, operator in operators.items():
        _install(attentions[i], operator, config)


def _by_layer(texts: Any) -> dict[int, str]:
    """`chacal_operators` with its layers as numbers; a file has them as texts."""
    numbered = isinstance(texts, dict) and all(str(layer).isdigit() for layer in texts)
    if not numbered or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(
            f"chacal_operators is {texts!r}; expected operators by layer, counted from 0, as in "
            f'{{"1": "chacal"}}, or one text for all layers'
        )
    return {int(layer): text for layer, text in texts.items()}


def causal_attentions(model: PreTrainedModel) -> dict[int, Any]:
    """The causal self-attention modules of a model that can be patched, by layer."""
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"model is {type(model).__name__}; expected a transformers model (patch it before "
            f"torch.compile or any other wrapper)"
        )
    name, kind = type(model).__name__, str(model.config.model_type).removeprefix(PREFIX)
    found = [m for m in model.modules() if getattr(m, "is_causal", False) is True]
    # not every decoder marks its attention as causal; what generates has one all the same
    untried = kind not in CONFIGS and (found or model.can_generate())
    if not untried and (not found or getattr(model.config, "is_causal", True) is False):
        raise ValueError(
            f"{name} has no causal self-attention, and a resolvent needs a triangular A; expected "
            f"a decoder, such as GPT-2, Llama or BART"
        )
    if untried:
        raise ValueError(
            f"{name} is of an architecture ({kind!r}) that has not been tried; expected one of "
            f"{', '.join(CONFIGS)}"
        )
    return {m.layer_idx: m for m in found}


def choose_layers(layers: Any, count: int) -> list[int]:
    """Layers as a list of indices, checked against how many there are."""
    layers = PROTOCOLS.get(layers, layers) if isinstance(layers, str) else layers
    if isinstance(layers, str):
        if layers == "all":
            return list(range(count))
        for part, reason in REASONS.items():
            if part in layers:
                raise ValueError(
                    f"layers is {layers!r}; expected decoder self-attention only: {reason}"
                )
        raise ValueError(
            f"layers is {layers!r}; expected 'all', a list of layers such as [1], or one of "
            f"{', '.join(map(repr, PROTOCOLS))}"
        )
    chosen = list(layers) if isinstance(layers, (Sequence, range, set)) else [layers]
    if not chosen:
        raise ValueError("layers is empty; expected 'all' or at least one layer")
    for i in chosen:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < count:
            raise ValueError(f"layer {i!r} does not exist; expected layers from 0 to {count - 1}")
    return sorted(set(chosen))


_WHOLES: weakref.WeakKeyDictionary[Module, weakref.WeakSet[Module]] = weakref.WeakKeyDictionary()
"""The transformers models that each was made a part of.

A module does not know what it is a part of, so it is noted as models are put together. What was
put together before this import, or copied whole, is not known.
"""


def _note_whole(whole: Module, name: str, part: Module | None) -> None:
    if isinstance(part, PreTrainedModel) and isinstance(whole, PreTrainedModel):
        _WHOLES.setdefault(part, weakref.WeakSet()).add(whole)


register_module_module_registration_hook(_note_whole)


def _whole_of(model: Module) -> str | None:
    """The class of the largest transformers model that has this one as a part, if one is known."""
    for whole in list(_WHOLES.get(model, ())):
        if any(part is model for part in whole.children()):
            return _whole_of(whole) or type(whole).__name__
    return None


def _own_config(model: PreTrainedModel) -> Any:
    """A config of our class that no other model shares, given to the model and its parts."""
    old = model.config
    new = copy.deepcopy(old)
    if not isinstance(new, ChaCALConfig):
        new.__class__ = CONFIGS[new.model_type]
        new.chacal_operators, new.chacal_allow_leak = None, False
    for module in model.modules():
        config = module.__dict__.get("config")
        if config is old:
            module.config = new
        elif isinstance(config, PatchedConfig):
            module.config = PatchedConfig(new)
    return new


def _install(attention: Any, operator: Operator, config: Any) -> None:
    if not hasattr(attention, "chacal_operator"):
        attention.chacal_hook = attention.register_forward_pre_hook(
            hand_over_cache, with_kwargs=True
        )
    attention.chacal_operator = operator
    attention.config = PatchedConfig(config)


def _remove(attention: Any, config: Any) -> None:
    attention.chacal_hook.remove()
    del attention.chacal_hook, attention.chacal_operator
    attention.config = config
