"""Replace the causal self-attention of chosen layers, in place, and put it back.

A patched attention module differs in three attributes: `chacal_operator`, a config that names our
attention function, and a hook for the cache (attention.py); where γ is learned, it has one
parameter more, `chacal_gamma.weight`. Nothing else is touched, so `unpatch` restores the very
model, and encoder and cross-attention cannot be reached.
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
from chacal.hf.config import ChaCALConfig, extended, stock_of
from chacal.hf.decoders import causal_attentions, choose_layers, count_heads
from chacal.nn.gamma import LearnedGamma
from chacal.operators import Operator, parse_operator, spelled_out

Model = TypeVar("Model", bound=PreTrainedModel)


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

    With `gamma=learn` a patched layer has a γ per head as a parameter (`chacal_gamma.weight`). It
    starts at 0, where exact ChaCAL is the attention that the model was trained with; with
    `gamma=learn:0.5` at 0.5. `parameter_groups` gives an optimiser a learning rate for it,
    `gammas` shows it. Patched again, a layer starts anew.

    Args:
        model: a decoder, or BART and its like, whose attention is computed by transformers'
            AttentionInterface, with any head; those of `models.HEADS` can be loaded again once
            they are saved.
        operator: an operator or its text, such as "chacal,gamma=learn" or "window@64".
        layers: "all", decoder layers counted from 0, or one of `PROTOCOLS`. A layer that slides a
            window, caps its scores or has sinks is refused.
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
    chosen = choose_layers(layers, attentions)
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
    if (stock := getattr(type(model), "chacal_stock", None)) is not None:
        model.__class__ = stock  # loaded as a class of ours, which it no longer is
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
    choose_layers(list(texts), attentions)
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
        new.__class__ = extended(stock_of(new.model_type))
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
    _forget_gamma(attention)
    if operator.learn is not None:
        device = next(attention.parameters()).device
        attention.chacal_gamma = LearnedGamma(
            count_heads(attention), operator.learn.start, device=device
        )
    attention.chacal_operator = operator
    attention.config = PatchedConfig(config)


def _remove(attention: Any, config: Any) -> None:
    attention.chacal_hook.remove()
    _forget_gamma(attention)
    del attention.chacal_hook, attention.chacal_operator
    attention.config = config


def _forget_gamma(attention: Any) -> None:
    if hasattr(attention, "chacal_gamma"):
        del attention.chacal_gamma
