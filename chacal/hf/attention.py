"""The attention function that patched layers call, under the name "chacal" in transformers'
AttentionInterface.

An attention module of transformers projects, rotates, calls the function that its config names,
and projects back. A patched module keeps all of that; only the name is another, so weights,
state-dict keys and forwards stay as they are. A hook before its forward takes the cache out of
its hands (cache.py) and leaves the layer's own state at the module, where the function finds it;
not every module hands its arguments on.

The mask is made once for all layers, for the implementation that the ordinary ones use. All that
an operator needs of it is which tokens are real. That is read off its last row, which a causal
mask lets see every real key; a mask that says anything else is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from chacal.hf.cache import OperatorLayer, layer_of, unless_all

NAME = "chacal"

CACHE = ("past_key_values", "layer_past")
"""What modules call the cache."""

USED: Any = "used"
"""Stands where a module's state was, once its attention has been computed."""

REFUSED = ("softcap", "s_aux", "position_bias", "cu_seq_lens_q", "cu_seq_lens_k", "cache")
"""Arguments of other attention functions that would change what is computed."""


@torch.compiler.disable  # a graph break at every patched layer: what follows branches on data
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
        key: (batch, key heads, c, d), repeated to all heads here.
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
            f"causal attention (packed sequences, soft caps and sinks have no resolvent here)"
        )
    layer: OperatorLayer | None = module.__dict__.get("chacal_layer")
    if layer is USED:
        raise ValueError(
            f"{type(module).__name__} attends more than once a token, and {operator} keeps one "
            f"state for it; expected use_cache=False"
        )
    if layer is not None:
        module.__dict__["chacal_layer"] = USED
    past = 0 if layer is None else layer.length
    count = query.shape[2]
    if key.shape[2] != count:
        raise ValueError(
            f"{type(module).__name__} gave {key.shape[2]} keys to {count} queries, from a cache of "
            f"its own, which holds V where {operator} needs its state; expected use_cache=False"
        )
    if sliding_window is not None and past + count > sliding_window:
        raise ValueError(
            f"the model's own sliding window of {sliding_window} hides keys of {past + count} "
            f"tokens, and {operator} has its own pattern; expected shorter inputs, or a config "
            f"with sliding_window=None"
        )
    positions = kwargs.get("position_ids")
    if attention_mask is None and positions is not None and bool((positions.diff() < 0).any()):
        raise ValueError(
            "position_ids start again within a row and there is no mask, as for sequences packed "
            "for flash attention, which would see each other; expected one sequence a row"
        )
    real = unless_all(real_tokens(attention_mask, query.shape[0], past, count))
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    # under autocast, rotated queries and keys are float32 while values are not
    dtype = torch.promote_types(query.dtype, value.dtype)
    q, k, v = (x.to(dtype) for x in (query, key, value))
    gamma = module.chacal_gamma(q) if operator.learn is not None else None
    if layer is None:
        Y = operator(q, k, v, mask=real, scale=scaling, gamma=gamma)
    else:
        Y = layer.attend(q, k, v, real, scaling, gamma=gamma, groups=groups)
    Y = nn.functional.dropout(Y, dropout, training=module.training)
    no_weights = Y.new_empty(*Y.shape[:2], 0, 0)
    return Y.transpose(1, 2).contiguous().to(value.dtype), no_weights


def real_tokens(mask: Tensor | None, batch: int, past: int, count: int) -> Tensor | None:
    """Which tokens are no padding, from an attention mask of any of transformers' forms.

    Args:
        mask: None; (batch, n) as for flash attention; (batch or 1, heads or 1, c, n), boolean as
            for SDPA or added to scores as in eager attention, for c queries that end n keys.
        batch: sequences.
        past: keys before the first query.
        count: c.

    Returns:
        (batch, n) boolean, or None where nothing is masked.
    """
    if mask is None:
        return None
    n = past + count
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4) or mask.shape[-1] != n:
        given = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask is {given}; expected {n} keys in (batch, n) or 4-D form")
    if mask.ndim == 2:
        return mask.bool().expand(batch, n)
    visible = mask if mask.dtype == torch.bool else mask == 0
    real = visible[:, 0, -1].clone()  # a view, kept by a cache, would keep the whole mask
    causal = torch.ones(count, n, dtype=torch.bool, device=mask.device).tril(past)
    if not bool((visible == (real[:, None, None] & causal)).all()):
        raise ValueError(
            "attention_mask is not a causal mask with padding (packed sequences, a sliding window "
            "or a mask of your own?); expected a 2-D mask, 1 for real tokens, as tokenizers give"
        )
    return real.expand(batch, n)


@torch.compiler.disable
def hand_over_cache(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Forward pre-hook of a patched module: its state instead of the cache."""
    module.__dict__.pop("chacal_layer", None)
    name = next((name for name in CACHE if kwargs.get(name) is not None), None)
    if name is None:
        return None
    # no attribute that a module could register, or a copy would have to carry
    module.__dict__["chacal_layer"] = layer_of(
        kwargs[name], module.layer_idx, module.chacal_operator
    )
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
