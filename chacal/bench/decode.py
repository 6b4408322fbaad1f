"""One more token after a long context, every operator against ordinary attention with the same
cache machinery.

"sdpa" is the baseline: K and V in the buffers that the decoders keep theirs in, and PyTorch's own
attention. "dense" would be our decoder with γ = 0. "stock" is for orientation: K and V joined by
`torch.cat` for every token, as transformers' DynamicCache does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chacal._memory import check_fits
from chacal.bench.timing import Timed, device_bytes, interleave, place
from chacal.decoding.buffers import Buffer
from chacal.operators import parse_operator
from chacal.ops.inputs import check_count

BASELINE = "sdpa"
STOCK = "stock"
DEFAULT_OPERATORS = (
    "chacal", "block@64", "pooled@64", "routed@64", "pattern", "window@64", "delta", STOCK,
)  # fmt: skip

TOKENS = 16
"""Decoded one by one in a timed call, then taken back: so many hide the clock's own cost."""


@dataclass(frozen=True, kw_only=True)
class Row(Timed):
    """One operator after one context: seconds per token, against SDPA's."""

    context: int
    kept: int
    """Bytes that the cache holds."""


class OrdinaryCache:
    """Ordinary attention over K and V, kept in growing buffers or, as stock, copied every time."""

    def __init__(self, stock: bool) -> None:
        self.stock = stock
        self.k, self.v = Buffer(), Buffer()

    def extend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Outputs (batch, h, c, d) of c new tokens: the first ones, or a single one."""
        first = not self.k.tensors()
        if self.stock and not first:
            self.k, self.v = (
                Buffer(torch.cat([old.view(), x.flatten(0, 1)], 1))
                for old, x in ((self.k, k), (self.v, v))
            )
            keys, values = self.k.view(), self.v.view()
        else:
            keys, values = self.k.append(k.flatten(0, 1)), self.v.append(v.flatten(0, 1))
        keys, values = (x.unflatten(0, q.shape[:2]) for x in (keys, values))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=first)

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.k.crop(length)
        self.v.crop(length)

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return sum(x.numel() * x.element_size() for x in self.k.tensors() + self.v.tensors())


def measure(
    operators: Sequence[str],
    contexts: Sequence[int],
    *,
    heads: int = 8,
    width: int = 64,
    batch: int = 1,
    rounds: int = 9,
    device: str = "cpu",
    dtype: str = "float32",
    report: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Time per token of `operators` after `contexts`, in turns with SDPA.

    Args:
        operators: texts for `parse_operator`, or "stock".
        contexts: tokens in the cache before the timed ones.
        heads: h.
        width: d of a head.
        batch: sequences.
        rounds: timed calls of each, of `TOKENS` tokens.
        device: "cpu" or "cuda".
        dtype: of q, k and v, by name.
        report: called with each row as soon as it is known.

    Returns:
        one row per context and operator, SDPA's first.
    """
    where = place(device)
    counts = {"heads": heads, "width": width, "batch": batch, "rounds": rounds}
    for name, value in [*(("context", n) for n in contexts), *counts.items()]:
        check_count(name, value)
    for context in contexts:
        check_fits(
            f"a context of {context} with {batch} x {heads} heads of {width}",
            # q, k and v, and the keys and values that the baseline keeps
            getattr(torch, dtype).itemsize * batch * heads * context * width * 5,
            "a shorter context, fewer heads or a smaller batch",
            device_bytes(device),
        )
    rows = []
    for context in contexts:
        caches = {text: _cache(text) for text in (BASELINE, *operators)}
        generator = torch.Generator().manual_seed(context)
        shape = (batch, heads, context + TOKENS, width)
        drawn = (torch.randn(shape, generator=generator) for _ in range(3))
        inputs = [x.to(where, getattr(torch, dtype)) for x in drawn]
        with torch.no_grad():
            for cache in caches.values():
                cache.extend(*(x[:, :, :context] for x in inputs))
            kept = {text: cache.nbytes for text, cache in caches.items()}
            calls = {text: _call(cache, inputs, context) for text, cache in caches.items()}
            timings = interleave(calls, rounds, device=device)
        for text, timing in timings.items():
            row = Row(
                operator=text,
                context=context,
                seconds=timing.median / TOKENS,
                ratios=(timing.median / timings[BASELINE].median,),
                kept=kept[text],
                rounds=rounds,
            )
            rows.append(row)
            report(row)
    return rows


def _cache(text: str) -> Any:
    if text in (BASELINE, STOCK):
        return OrdinaryCache(stock=text == STOCK)
    return parse_operator(text).decoder()


def _call(cache: Any, inputs: list[Tensor], context: int) -> Callable[[], object]:
    """Decode `TOKENS` tokens one by one, and take them back."""

    def decode() -> None:
        for t in range(context, context + TOKENS):
            cache.extend(*(x[:, :, t : t + 1] for x in inputs))
        cache.crop(context)

    return decode
