"""What a patched layer keeps between tokens, inside an ordinary transformers cache.

A stock cache holds K and V, and a resolvent's layer that read them would be wrong without a word:
what a row passes on is Z, not V. So a patched layer never meets the cache. It is given its
`OperatorLayer`, which stands in the cache's list of layers where the stock one would and holds
the operator's decoder; all other layers keep their K and V. An empty `DynamicCache` is fitted in
this way on its first use, which is why `generate` needs no other cache than its own, and an empty
`StaticCache` with layers of fixed size (static.py). One that already holds V, or another kind of
cache, is refused.

Query heads of one group have the same keys and values in a stock cache, and here the same keys
only: Z is each head's own. With H query and G key heads, a layer of exact ChaCAL keeps (G + H) d
numbers per token where ordinary attention keeps 2 G d.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from chacal.decoding.decoder import Decoder
from chacal.decoding.states import ROLLBACK
from chacal.hf.masks import check_past
from chacal.hf.static import StaticOperatorLayer, not_patched
from chacal.operators import Operator
from chacal.ops.inputs import check_count


class OperatorLayer(CacheLayerMixin):
    """One patched layer of a cache: the operator's decoder, empty at first.

    A forward pass that is to be differentiated takes the parallel form, which has a backward, and
    leaves its tokens for the decoder to read should the sequence ever go on.
    """

    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, operator: Operator, rollback: int = ROLLBACK) -> None:
        check_count("rollback", rollback, least=0)
        super().__init__()
        self.operator, self.rollback = operator, rollback
        self.reset()

    def reset(self) -> None:
        """Back to no tokens."""
        self.length = 0
        self._batch = 0
        self.decoder: Decoder | None = None
        self._unread: dict[str, Any] | None = None  # what the decoder has yet to be told

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float | None,
        *,
        gamma: Tensor | None = None,
    ) -> Tensor:
        """Outputs of c new tokens, given all before them.

        Args:
            q: (batch, heads, c, d) queries.
            k: (batch, key heads, c, d) keys.
            v: (batch, key heads, c, d_v) values.
            mask: (batch, length + c) boolean, True for real tokens; None if all are.
            scale: multiplies q·k.
            gamma: (heads,) a learned γ; None for the operator's own.

        Returns:
            (batch, heads, c, d_v); zeros at padding.
        """
        check_past(mask, self._past_mask(), self.length)
        inputs = (q, k, v) if gamma is None else (q, k, v, gamma)
        trains = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        if trains and self.length:
            raise ValueError(
                f"the cache holds {self.length} tokens of a layer with {self.operator}, and "
                f"gradients do not flow through it; expected torch.no_grad(), or the whole "
                f"sequence at once with use_cache=False"
            )
        mask = None if mask is None else mask[:, self.length :]
        if trains or (not self.length and not can_decode(self.operator)):
            given = {"q": q, "k": k, "v": v, "mask": mask, "scale": scale, "gamma": gamma}
            self._unread = {n: x.detach() if isinstance(x, Tensor) else x for n, x in given.items()}
            Y = self.operator(q, k, v, mask=mask, scale=scale, gamma=gamma)
        else:
            Y = self._read().extend(q, k, v, mask, scale=scale, gamma=gamma)
        self.length += q.shape[-2]
        self._batch = q.shape[0]
        return Y

    def _past_mask(self) -> Tensor | None:
        """(batch, length) which of the tokens so far were no padding; None is all."""
        if self._unread is not None:
            return self._unread["mask"]
        return None if self.decoder is None else self.decoder.real

    def _read(self) -> Decoder:
        """The decoder, told of everything so far."""
        if self.decoder is None:
            try:
                self.decoder = self.operator.decoder(rollback=self.rollback)
            except ValueError as error:
                raise ValueError(f"{error}; or use_cache=False") from None
        if self._unread is not None:
            self.decoder.extend(**self._unread)
            self._unread = None
        return self.decoder

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; their number comes as a negative one, as transformers has it."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove is {tokens_to_remove}; expected 0 or less")
        if tokens_to_remove and self.length:
            self._read().crop(self.length + tokens_to_remove)
            self.length += tokens_to_remove

    def batch_select_indices(self, indices: Tensor) -> None:
        """Sequence i becomes what sequence indices[i] was."""
        if self.length:
            self._read().reorder(indices)
            self._batch = len(indices)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The same, as beam search calls it."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, copies side by side."""
        if self.length:
            self.batch_select_indices(torch.arange(self._batch).repeat_interleave(repeats))

    def get_seq_length(self) -> int:
        """Tokens so far, padding too."""
        return self.length

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that a mask is made for."""
        return self.length + query_length, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Only a layer that is not patched calls this."""
        raise ValueError(not_patched(self.operator))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: the decoder grows."""

    def offload(self) -> None:
        """A decoder stays where it is."""

    def prefetch(self) -> None:
        """A decoder stays where it is."""


STOCK = (DynamicCache, StaticCache)
"""Caches whose layers may be replaced."""

PLAIN = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
"""Layers that keep K and V, and nothing else."""


def can_decode(operator: Operator) -> bool:
    """Whether an operator can go on from a cache, one token at a time."""
    try:
        operator.decoder()
    except ValueError:
        return False
    return True


def new_cache(model: PreTrainedModel, rollback: int = ROLLBACK) -> Cache:
    """An empty cache for a patched model; `rollback` tokens can be cropped again at least.

    `generate` makes its own; this one is for operators that forget (window, pooled, block) under
    assisted decoding with more candidates than the default rollback.
    """
    from chacal.hf.decoders import causal_attentions

    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    for index, attention in causal_attentions(model).items():
        operator = getattr(attention, "chacal_operator", None)
        if operator is not None:
            cache.layers[index] = OperatorLayer(operator, rollback)
    if model.config.is_encoder_decoder:
        return EncoderDecoderCache(cache, DynamicCache(config=config))
    return cache


def is_static(cache: Cache) -> bool:
    """Whether a cache is one of fixed size."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    return type(cache) is StaticCache


def layer_of(cache: Cache, index: int, operator: Operator) -> OperatorLayer | StaticOperatorLayer:
    """The place of patched layer `index` in a cache, made where the cache is new."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if getattr(cache, "offloading", False):
        raise ValueError(
            f"layer {index} has {operator} and the cache is offloaded, which an operator's state "
            f"cannot be; expected a cache without offloading"
        )
    layers = cache.layers
    if type(cache) is DynamicCache and cache.layer_class_to_replicate is not None:
        while len(layers) <= index:
            layers.append(cache.layer_class_to_replicate())
    layer = layers[index] if index < len(layers) else None
    if type(cache) in STOCK and not isinstance(layer, (OperatorLayer, StaticOperatorLayer)):
        # a subclass may do anything with its layers
        layer = layers[index] = _fitted(layer, index, operator)
    if not isinstance(layer, (OperatorLayer, StaticOperatorLayer)):
        raise ValueError(
            f"layer {index} has {operator} and the cache, a {type(cache).__name__}, keeps raw K "
            f"and V for it, which would give wrong outputs; expected no cache, an empty "
            f"DynamicCache or StaticCache, or chacal.hf.new_cache(model)"
        )
    if layer.operator != operator:
        raise ValueError(
            f"layer {index} has {operator} and the cache was filled by {layer.operator}; "
            f"expected a new cache"
        )
    return layer


def _fitted(layer: Any, index: int, operator: Operator) -> Any:
    """Ours in the place of an empty stock layer; one that holds V stays, to be refused."""
    if type(layer) not in PLAIN:
        raise ValueError(
            f"layer {index} has {operator} and keeps more than K and V (its place in the cache "
            f"is a {type(layer).__name__}); expected use_cache=False, or other layers"
        )
    if int(layer.get_seq_length()):
        return layer
    if isinstance(layer, StaticLayer):
        return StaticOperatorLayer(operator, layer.max_cache_len)
    return OperatorLayer(operator)
