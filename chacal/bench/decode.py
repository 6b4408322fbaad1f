"""One more token after a long context, every operator against ordinary attention with the same
cache machinery.

"sdpa" is the baseline: K and V in the buffers that the decoders keep theirs in, and PyTorch's own
attention. "dense" would be our decoder with γ = 0. "stock" is for orientation: K and V joined by
`torch.cat` for every token, as transformers' DynamicCache does it.

A decoder reads the context at once, as a prompt, in its parallel form. The two caches of ordinary
attention need not be told what came of it: they take keys and values as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chacal._memory import check_fits
from chacal.bench.timing import Timed, device_bytes, interleave, place, stopwatch
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
    reading: float | None
    """Seconds to read the context at once, measured once; None for ordinary attention."""


class OrdinaryCache:
    """Ordinary attention over K and V, kept in growing buffers or, as stock, copied every time."""

    def __init__(self, stock: bool) -> None:
        self.stock = stock
        self.k, self.v = Buffer(), Buffer()

    def fill(self, k: Tensor, v: Tensor) -> None:
        """Keys and values of the first tokens."""
        self.k.add(k.flatten(0, 1))
        self.v.add(v.flatten(0, 1))

    def extend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Output (batch, h, 1, d) of a new token."""
        if self.stock:
            self.k, self.v = (
                Buffer(torch.cat([old.view(), x.flatten(0, 1)], 1))
                for old, x in ((self.k, k), (self.v, v))
            )
            keys, values = self.k.view(), self.v.view()
        else:
            keys, values = self.k.append(k.flatten(0, 1)), self.v.append(v.flatten(0, 1))
        keys, values = (x.unflatten(0, q.shape[:2]) for x in (keys, values))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values)

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
    growth: bool = False,
    clock: str = "wall",
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
        growth: whether all contexts take turns too, which compares their times.
        clock: "wall", or "cpu" for the time that the processor worked for this process.
        device: "cpu" or "cuda".
        dtype: of q, k and v, by name.
        report: called with each row as soon as it is known.

    Returns:
        one row per context and operator, SDPA's first.
    """
    where, watch = place(device), stopwatch(device, clock)
    counts = {"heads": heads, "width": width, "batch": batch, "rounds": rounds}
    for name, value in [*(("context", n) for n in contexts), *counts.items()]:
        check_count(name, value)
    for text in operators:
        if text != STOCK:
            parse_operator(text).decoder()  # refuse what cannot decode before a context is read
    for context in contexts:
        check_fits(
            f"a context of {context} with {batch} x {heads} heads of {width}",
            # q, k and v, and the keys and values that the baseline keeps
            getattr(torch, dtype).itemsize * batch * heads * context * width * 5,
            "a shorter context, fewer heads or a smaller batch",
            device_bytes(device),
        )
    rows = []
    contexts = list(dict.fromkeys(contexts))
    for some in [contexts] if growth else [[context] for context in contexts]:
        filled = {}
        for context in some:
            generator = torch.Generator().manual_seed(context)
            shape = (batch, heads, context + TOKENS, width)
            drawn = (torch.randn(shape, generator=generator) for _ in range(3))
            inputs = [x.to(where, getattr(torch, dtype)) for x in drawn]
            for text in (BASELINE, *operators):
                filled[context, text] = _fill(text, inputs, context, watch)
        with torch.no_grad():
            calls = {at: each.decode for at, each in filled.items()}
            timings = interleave(calls, rounds, device=device, clock=clock)
        medians = {at: timing.median / TOKENS for at, timing in timings.items()}
        for (context, text), seconds in medians.items():
            row = Row(
                operator=text,
                context=context,
                seconds=seconds,
                ratios=(seconds / medians[context, BASELINE],),
                kept=filled[context, text].kept,
                reading=filled[context, text].reading,
                rounds=rounds,
                growths=(seconds / medians[min(some), text],) if growth else (),
            )
            rows.append(row)
            report(row)
    return rows


@dataclass(frozen=True)
class Filled:
    """A cache that has read a context: what it holds, how long that took, a call to time."""

    kept: int
    reading: float | None
    decode: Callable[[], object]


@torch.no_grad()
def _fill(
    text: str,
    inputs: list[Tensor],
    context: int,
    watch: Callable[[Callable[[], object]], float],
) -> Filled:
    read = [x[:, :, :context] for x in inputs]
    reading = None
    cache: Any
    if text in (BASELINE, STOCK):
        cache = OrdinaryCache(stock=text == STOCK)
        cache.fill(*read[1:])
    else:
        cache = parse_operator(text).decoder()
        reading = watch(lambda: cache.extend(*read))
    return Filled(cache.nbytes, reading, _call(cache, inputs, context))


def _call(cache: Any, inputs: list[Tensor], context: int) -> Callable[[], object]:
    """Decode `TOKENS` tokens one by one, and take them back."""

    def decode() -> None:
        for t in range(context, context + TOKENS):
            cache.extend(*(x[:, :, t : t + 1] for x in inputs))
        cache.crop(context)

    return decode
