"""A patched layer in a cache of fixed size, transformers' StaticCache, which compiled `generate`
needs.

It stands where the stock StaticLayer would and holds the operator's `FixedDecoder`. How many tokens
there are is a tensor, as in the stock one, so a compiled step is the same graph for every token.
On a CPU and outside a graph, values are looked at, and what cannot be is refused with a word; in a
graph, a mask is taken as one of padding, and only the length is watched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from chacal.decoding.fixed_decoder import FixedDecoder
from chacal.hf.masks import PACKED, check_past, new_tokens, read_mask
from chacal.operators import Operator
from chacal.ops.inputs import may_read


def not_patched(operator: Operator) -> str:
    """What a layer that wants K and V is told by one of ours."""
    return (
        f"this cache was filled by a layer with {operator}, and holds its state where an "
        f"ordinary layer needs K and V; expected the model it came from, patched as it was"
    )


class StaticOperatorLayer(CacheLayerMixin):
    """One patched layer of a cache of `max_cache_len` tokens, empty at first."""

    is_compileable = True
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, operator: Operator, max_cache_len: int) -> None:
        super().__init__()
        self.operator, self.max_cache_len = operator, max_cache_len
        try:
            self.decoder: FixedDecoder = operator.fixed_decoder(max_cache_len)
        except ValueError as error:
            raise ValueError(f"{error}; or use_cache=False") from None
        self.cumulative_length = torch.tensor(0)
        self.real: Tensor | None = None  # (batch, max_cache_len) which tokens were no padding
        self._full = (
            f"the cache of a layer with {operator} holds {max_cache_len}; expected fewer, or a "
            f"cache with a higher max_cache_len"
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Any,
        scale: float | None,
        *,
        gamma: Tensor | None,
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Outputs of c new tokens, given all before them.

        Args:
            q: (batch, heads, c, d) queries.
            k: (batch, key heads, c, d) keys.
            v: (batch, key heads, c, d_v) values.
            mask: what the model made for its attention implementation, for all slots.
            scale: multiplies q·k.
            gamma: (heads,) a learned γ; None for the operator's own.
            kwargs: of the attention function, for `read_mask`.

        Returns:
            (batch, heads, c, d_v); zeros at padding.
        """
        inputs = (q, k, v) if gamma is None else (q, k, v, gamma)
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            raise ValueError(
                f"gradients do not flow through a cache of fixed size, which a layer with "
                f"{self.operator} was given; expected torch.no_grad(), or use_cache=False"
            )
        batch, count = q.shape[0], q.shape[2]
        if self.real is None:
            self._allocate(q, k, v)
        assert self.real is not None
        if batch != len(self.real):
            raise ValueError(
                f"{batch} sequences were given to a cache of {len(self.real)}; expected as many as "
                f"before, or a new cache"
            )
        at = self.cumulative_length + torch.arange(count, device=q.device)
        if count > 1 or may_read(q):
            real = self._read_mask(mask, batch, count, kwargs)
        else:
            torch._assert_async(self.cumulative_length < self.max_cache_len, self._full)
            real = new_tokens(mask, batch, at)
        Y = self.decoder.extend(q, k, v, real, scale=scale, gamma=gamma)
        all_real = torch.ones(batch, count, dtype=torch.bool, device=q.device)
        self.real.index_copy_(1, at, all_real if real is None else real)
        self.cumulative_length.add_(count)
        return Y

    def _allocate(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.decoder.allocate(q, k, v)
        self.batch_size = q.shape[0]
        self.real = torch.zeros(
            q.shape[0], self.max_cache_len, dtype=torch.bool, device=q.device
        )  # fmt: skip
        self.cumulative_length = self.cumulative_length.to(q.device)
        self.is_initialized = True
        if not torch.compiler.is_compiling():
            # or graphs that CUDA captured would be left for every token
            for x in self._tensors():
                torch._dynamo.mark_static_address(x)

    def _tensors(self) -> list[Tensor]:
        assert self.real is not None
        return [*self.decoder.tensors(), self.real, self.cumulative_length]

    def _read_mask(
        self, mask: Any, batch: int, count: int, kwargs: dict[str, Any]
    ) -> Tensor | None:
        """(batch, c) which of the new tokens are real; None is all. What cannot be is refused."""
        assert self.real is not None
        past = int(self.cumulative_length)
        n = past + count
        if n > self.max_cache_len:
            raise ValueError(f"{n} tokens were given, but {self._full}")
        if isinstance(mask, Tensor):
            mask = mask[..., :n]  # later slots are empty
        seen = read_mask(mask, batch, past, count, kwargs)
        if seen.cu_seqlens is not None:
            raise ValueError(PACKED)
        check_past(seen.real, self.real, past)
        return None if seen.real is None else seen.real[:, past:]

    def reset(self) -> None:
        """Back to no tokens; the memory stays."""
        if self.real is not None:
            for x in self._tensors():
                x.zero_()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence i becomes what sequence beam_idx[i] was."""
        if self.real is not None:
            self.decoder.reorder(beam_idx)
            self.real.copy_(self.real.index_select(0, beam_idx.to(self.real.device)))

    def get_seq_length(self) -> Any:
        """Tokens so far, padding too: a tensor, that no graph depends on."""
        return self.cumulative_length if self.is_initialized else 0

    def get_max_length(self) -> int:
        """Tokens that fit."""
        return self.max_cache_len

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that a mask is made for."""
        return self.max_cache_len, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Only a layer that is not patched calls this."""
        raise ValueError(not_patched(self.operator))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare from keys alone: the first tokens tell how many heads ask."""

    def offload(self) -> None:
        """A decoder stays where it is."""

    def prefetch(self) -> None:
        """A decoder stays where it is."""
