"""The attention function that patched layers call, under the name "chacal" in transformers'
AttentionInterface.

An attention module of transformers projects, rotates, calls the function that its config names,
and projects back. A patched module keeps all of that; only the name is another, so weights,
state-dict keys and forwards stay as they are. A hook before its forward takes the cache out of
its hands (cache.py) and leaves the layer's own state at the module, where the function finds it;
not every module hands its arguments on.

A compiler finds one operator in a layer without a cache, and no break in its graph: what reads
values is left out there (masks.py). One token with a cache of fixed size is a graph too
(static.py); any other layer with a cache breaks it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from chacal.hf.cache import OperatorLayer, is_static, layer_of
from chacal.hf.masks import PACKED, read_mask
from chacal.hf.static import StaticOperatorLayer
from chacal.operators import Operator

NAME = "chacal"

CACHE = ("past_key_values", "layer_past")
"""What modules call the cache."""

USED: Any = "used"
"""Stands where a module's state was, once its attention has been computed."""

REFUSED = ("softcap", "s_aux", "position_bias", "cache")
"""Arguments of other attention functions that would change what is computed."""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Y of a patched layer.

    Args:
        module: the attention module; its operator is `chacal_operator`, its γ, if it learns one,
            `chacal_gamma`, and its state, where there is a cache, `chacal_layer`.
        query: (batch, heads, c, d).
        key: (batch, key heads, c, d).
        value: (batch, key heads, c, d_v).
        attention_mask: what the model made for its attention implementation.
        scaling: multiplies q·k.
        dropout: on Y. On A it could make the solve singular.
        sliding_window: refused where it would hide a key.
        is_causal: refused where false.
        kwargs: of other attention functions; refused where they would change the result.

    Returns:
        (batch, c, heads, d_v), and (batch, heads, 0, 0) in the place of attention weights, which
        are never formed: with None, `outputs.attentions` would skip the layer.
    """
    compute = _attend
    if torch.compiler.is_compiling() and _branches(module, query):
        compute = torch.compiler.disable(_attend)
    return compute(
        module, query, key, value, attention_mask, scaling, dropout, sliding_window, is_causal,
        kwargs,
    )  # fmt: skip


def _branches(module: Any, query: Tensor) -> bool:
    """Whether a cache is asked to branch on its data, as all but one token of a fixed size do."""
    layer = getattr(module, "chacal_layer", None)
    if isinstance(layer, StaticOperatorLayer):
        return query.shape[2] > 1
    return layer is not None


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    sliding_window: int | None,
    is_causal: bool | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    operator = getattr(module, "chacal_operator", None)
    if operator is None:
        raise ValueError(
            f"attn_implementation is {NAME!r} on a layer without an operator; expected "
            f"chacal.hf.patch(model, operator)"
        )
    given = [name for name in REFUSED if kwargs.get(name) is not None]
    if given or is_causal is False:
        raise ValueError(
            f"{operator} was called with {', '.join(given) or 'is_causal=False'}; expected plain "
            f"causal attention (soft caps and sinks have no resolvent here)"
        )
    layer: OperatorLayer | StaticOperatorLayer | None = getattr(module, "chacal_layer", None)
    if layer is USED:
        raise ValueError(
            f"{type(module).__name__} attends more than once a token, and {operator} keeps one "
            f"state for it; expected use_cache=False"
        )
    if layer is not None:
        module.chacal_layer = USED
    count = query.shape[2]
    if key.shape[2] != count:
        raise ValueError(
            f"{type(module).__name__} gave {key.shape[2]} keys to {count} queries, from a cache of "
            f"its own, which holds V where {operator} needs its state; expected use_cache=False"
        )
    past = layer.length if isinstance(layer, OperatorLayer) else 0
    longest = layer.max_cache_len if isinstance(layer, StaticOperatorLayer) else past + count
    if sliding_window is not None and longest > sliding_window:
        raise ValueError(
            f"the model's own sliding window of {sliding_window} hides keys of {longest} "
            f"tokens, and {operator} has its own pattern; expected shorter inputs, or a config "
            f"with sliding_window=None"
        )
    # under autocast, rotated queries and keys are float32 while values are not
    dtype = torch.promote_types(query.dtype, value.dtype)
    q, k, v = (x.to(dtype) for x in (query, key, value))
    gamma = module.chacal_gamma(q) if operator.learn is not None else None
    if isinstance(layer, StaticOperatorLayer):
        Y = layer.attend(q, k, v, attention_mask, scaling, gamma=gamma, kwargs=kwargs)
        return _given_back(Y, value.dtype)
    seen = read_mask(attention_mask, query.shape[0], past, count, kwargs)
    if seen.cu_seqlens is not None:
        if layer is not None:
            raise ValueError(PACKED)
        Y = _packed(operator, q, k, v, seen.cu_seqlens, scaling, gamma)
    elif layer is None:
        Y = operator(q, k, v, mask=seen.real, scale=scaling, gamma=gamma)
    else:
        Y = layer.attend(q, k, v, seen.real, scaling, gamma=gamma)
    return _given_back(nn.functional.dropout(Y, dropout, training=module.training), value.dtype)


def _given_back(Y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Y as a module of transformers expects it."""
    no_weights = Y.new_empty(*Y.shape[:2], 0, 0)
    return Y.transpose(1, 2).contiguous().to(dtype), no_weights


def _packed(
    operator: Operator,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    scale: float | None,
    gamma: Tensor | None,
) -> Tensor:
    """Y of sequences that are packed into the rows of (batch, heads, n, d)."""
    batch = q.shape[0]
    # all rows one after another: (heads, batch · n, d)
    q, k, v = (x.transpose(0, 1).flatten(1, 2) for x in (q, k, v))
    Y = operator(q, k, v, cu_seqlens=cu_seqlens, scale=scale, gamma=gamma)
    return Y.unflatten(1, (batch, -1)).transpose(0, 1)


def hand_over_cache(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Forward pre-hook of a patched module: its state instead of the cache."""
    name = next((name for name in CACHE if kwargs.get(name) is not None), None)
    if name is None:
        if getattr(module, "chacal_layer", None) is not None:
            module.chacal_layer = None
        return None
    compute = _hand_over
    if torch.compiler.is_compiling() and not is_static(kwargs[name]):
        compute = torch.compiler.disable(_hand_over)  # a decoder branches on its data
    return compute(module, args, kwargs, name)


def _hand_over(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    layer = layer_of(kwargs[name], module.layer_idx, module.chacal_operator)
    module.chacal_layer = layer
    return args, {**kwargs, name: None}


class PatchedConfig:
    """A config as an attention module sees it: the model's own, but for the function's name.

    Read through, not copied, so that what is set on the model's config later counts here too.
    """

    _attn_implementation = NAME

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_config":  # copying asks before there is a config
            raise AttributeError(name)
        return getattr(self._config, name)


AttentionInterface.register(NAME, attend)
