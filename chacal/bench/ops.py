"""Every operator against ordinary attention, in time and in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chacal._memory import check_fits
from chacal.bench.timing import (
    Timed,
    check_threads,
    device_bytes,
    interleave,
    peak_memory,
    place,
    stopwatch,
)
from chacal.operators import parse_operator
from chacal.ops.guard import finite, moderate
from chacal.ops.inputs import check_count
from chacal.ops.resolvent import resolvent
from chacal.ops.weights import attention_weights

BASELINE = "sdpa"
MATERIALISED = "formed"
"""Forms A and solves: what exact ChaCAL costs when written as in the paper."""
LOOKS = "guard"
"""No operator: what each of them pays for a look at its values (ops/guard.py)."""

DEFAULT_OPERATORS = (
    "chacal",
    "block/3",
    "pooled",
    "routed",
    "window@64",
    "pattern",
    "delta",
    "local",
    "bigbird",
    MATERIALISED,
)

MATERIALISED_LIMIT = 8192
"""The longest n for which n x n matrices are formed."""

PROBE = 2048
"""The n at which SDPA is tried, to tell how long a longer one would take."""


@dataclass(frozen=True, kw_only=True)
class Row(Timed):
    """One operator at one length, against scaled_dot_product_attention."""

    n: int
    batch: int
    backward: bool

    @property
    def per_token(self) -> float:
        """Seconds per token."""
        return self.seconds / (self.n * self.batch)


def measure(
    operators: Sequence[str],
    lengths: Sequence[int],
    *,
    heads: int = 8,
    width: int = 64,
    batch: int = 1,
    backward: bool = False,
    rounds: int = 7,
    baseline: bool = True,
    budget: float = math.inf,
    growth: bool = False,
    clock: str = "wall",
    device: str = "cpu",
    dtype: str = "float32",
    tell: Callable[[str], None] = lambda line: None,
    report: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Times of `operators` at `lengths`, forward or forward and backward, in turns with SDPA.

    Args:
        operators: texts for `parse_operator`, "formed" or "guard".
        lengths: values of n.
        heads: h.
        width: d of a head.
        batch: sequences.
        backward: whether the gradients of q, k and v are part of it.
        rounds: timed calls of each.
        baseline: whether SDPA is timed too; without it there are no ratios.
        budget: seconds for all calls of SDPA at one length; where it would take longer, by the
            square law, it is left out.
        growth: whether all lengths take turns too, which compares times per token.
        clock: "wall", or "cpu" for the time that the processor worked for this process.
        device: "cpu" or "cuda".
        dtype: of q, k and v, by name.
        tell: called with a line for every call that takes long.
        report: called with each row as soon as it is known.

    Returns:
        one row per length and operator, SDPA's first.
    """

    def tell_call(at: tuple[int, str], seconds: float) -> None:
        tell(f"n={at[0]} {at[1]}: a call of {seconds:.0f} s")

    where, watch = place(device), stopwatch(device, clock)
    _check(operators, lengths, heads=heads, width=width, batch=batch, rounds=rounds)
    if not budget > 0:
        raise ValueError(f"budget is {budget}; expected a positive number of seconds")
    lengths = list(dict.fromkeys(lengths))
    for n in lengths:
        _check_memory(operators, n, heads, width, batch, device, dtype)
    rows = []
    for some in [lengths] if growth else [[n] for n in lengths]:
        calls: dict[tuple[int, str], Callable[[], object]] = {}
        for n in some:
            # one set for all: of a million tokens, each tensor is half a GiB
            inputs = _draw(n, heads, width, batch, where, dtype)
            texts = [x for x in operators if x != MATERIALISED or n <= MATERIALISED_LIMIT]
            if baseline and (rounds + 1) * _expect(n, backward, inputs, watch) <= budget:
                texts = [BASELINE, *texts]
            calls |= {(n, text): _call(text, inputs, backward) for text in texts}
        timings = interleave(calls, rounds, device=device, clock=clock, tell=tell_call)
        medians = {at: timing.median for at, timing in timings.items()}
        for (n, text), seconds in medians.items():
            base = medians.get((n, BASELINE))
            shortest = min(m for m, other in medians if other == text)
            growths = (seconds / n / (medians[shortest, text] / shortest),) if growth else ()
            row = Row(
                operator=text, n=n, batch=batch, backward=backward, seconds=seconds,
                ratios=() if base is None else (seconds / base,), rounds=rounds, growths=growths,
            )  # fmt: skip
            rows.append(row)
            report(row)
    return rows


def _expect(
    n: int,
    backward: bool,
    inputs: Sequence[Tensor],
    watch: Callable[[Callable[[], object]], float],
) -> float:
    """Seconds of SDPA at n, by the square law; 0 where that is not long."""
    if n <= 2 * PROBE:
        return 0.0
    call = _call(BASELINE, [x.detach()[:, :, :PROBE].clone() for x in inputs], backward)
    return min(watch(call) for _ in range(2)) * (n / PROBE) ** 2


def measure_memory(
    operators: Sequence[str],
    n: int,
    *,
    heads: int,
    width: int = 64,
    backward: bool = True,
    threads: int = 1,
    device: str = "cpu",
    dtype: str = "float32",
) -> dict[str, int]:
    """Peak bytes of forward, or of forward and backward, per operator: see `whole_tensors` too.

    On a CPU they are those beyond a fresh process's start; on a card all that torch allocated.
    """
    where = place(device)
    _check(operators, [n], heads=heads, width=width)
    check_threads(threads)
    _check_memory(operators, n, heads, width, device=device, dtype=dtype)
    if device == "cuda":
        peaks = {}
        for text in operators:
            call = _call(text, _draw(n, heads, width, 1, where, dtype), backward)
            torch.cuda.reset_peak_memory_stats()
            call()
            peaks[text] = torch.cuda.max_memory_allocated()
        return peaks
    return {
        text: _peak_of_process(text, n, heads, width, backward, threads, dtype)
        for text in operators
    }


def whole_tensors(n: int, heads: int, width: int, backward: bool, dtype: str) -> int:
    """Bytes of q, k, v and Y and, with the backward pass, their gradients: none can do without."""
    return (8 if backward else 4) * getattr(torch, dtype).itemsize * heads * n * width


def _peak_of_process(
    text: str, n: int, heads: int, width: int, backward: bool, threads: int, dtype: str
) -> int:
    attend = {
        BASELINE: "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        MATERIALISED: "chacal.resolvent(chacal.attention_weights(q, k), v, 0.9)",
    }.get(text, f"chacal.parse_operator({text!r})(q, k, v)")
    code = (
        f"q, k, v = (torch.randn(1, {heads}, {n}, {width}, dtype=torch.{dtype}, "
        f"requires_grad={backward}) for _ in range(3))\n"
        f"y = {attend}\n" + "y.backward(torch.ones_like(y))" * backward
    )
    before, after = peak_memory(code, threads)
    return after - before


def _check(operators: Sequence[str], lengths: Sequence[int], **counts: int) -> None:
    """Refuse what cannot be measured before anything is."""
    for name, value in [*(("length", n) for n in lengths), *counts.items()]:
        check_count(name, value)
    for text in operators:
        if text != LOOKS:
            _attend(text)


def _check_memory(
    operators: Sequence[str],
    n: int,
    heads: int,
    width: int,
    batch: int = 1,
    device: str = "cpu",
    dtype: str = "float32",
) -> None:
    """Refuse a length whose inputs, or the matrices that an operator forms, do not fit."""
    matrices = max((_formed(text, n, width) for text in operators), default=0)
    check_fits(
        f"n = {n} with {batch} x {heads} heads of {width}",
        getattr(torch, dtype).itemsize * batch * heads * n * (4 * width + matrices),
        "a shorter length, fewer heads or a smaller batch",
        device_bytes(device),
    )


def _formed(text: str, n: int, width: int) -> int:
    if text == MATERIALISED:
        return n if n <= MATERIALISED_LIMIT else 0
    return 0 if text in (BASELINE, LOOKS) else parse_operator(text).formed(n, width)


def _draw(
    n: int, heads: int, width: int, batch: int, where: torch.device, dtype: str
) -> list[Tensor]:
    """q, k, v and the gradient of Y; the same numbers on every device."""
    generator = torch.Generator().manual_seed(n)
    shape = (batch, heads, n, width)
    drawn = (torch.randn(shape, generator=generator) for _ in range(4))
    return [x.to(where, getattr(torch, dtype)) for x in drawn]


def _call(text: str, inputs: list[Tensor], backward: bool) -> Callable[[], object]:
    """A call to time."""
    q, k, v, dY = inputs
    if text == LOOKS:
        return lambda: moderate(q, k, v, 1.0) if backward else finite(v)
    attend = _attend(text)
    if not backward:

        def forward() -> Tensor:
            with torch.no_grad():
                return attend(q, k, v)

        return forward
    leaves = [x.requires_grad_() for x in (q, k, v)]
    return lambda: torch.autograd.grad(attend(*leaves), leaves, dY)


def _attend(text: str) -> Callable[..., Tensor]:
    if text == BASELINE:
        return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True
        )
    if text == MATERIALISED:
        return lambda q, k, v: resolvent(attention_weights(q, k), v, 0.9)
    return parse_operator(text)
