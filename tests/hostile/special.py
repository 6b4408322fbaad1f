"""Tensors with numbers that break arithmetic, in shapes at the edge, through every operator.

No row may depend on a later token in any value that a float can hold: rows before the first
changed token are those of a call without it. So are their gradients, and rows of a decoder.
An operator that leaks may give what it likes, but may not fail.
"""

import os
from dataclasses import dataclass

import torch
from cases import CAUSAL, DECODABLE, LEAKY, draw, far, leaves
from child import Found
from hypothesis import strategies as st

import chacal

NUMBERS = [
    "nan", "inf", "-inf", "1e25", "-1e25", "3e38", "-3e38", "1e-45", "1e-39", "-0.0", "1e19",
    "1e10", "100", "1e-20", "0",
]  # fmt: skip

LENGTHS = [1, 2, 3, 4, 5, 8, 9, 13, 16, 31, 40, 63, 64, 65, 129, 150, 0]

OPERATORS = list(dict.fromkeys([*CAUSAL, *DECODABLE, *LEAKY]))

DTYPES = {"float32": 1e-5, "float64": 1e-10, "bfloat16": 2e-2}
"""How near rows must be: relative to the largest, bfloat16 being rounded at the end."""


@dataclass(frozen=True)
class Case:
    """Inputs drawn from a seed, with some numbers of them replaced."""

    operator: str
    leading: tuple[int, ...]
    n: int
    d: int = 3
    d_v: int = 3
    dtype: str = "float32"
    spots: tuple[tuple[str, int, int, int, str], ...] = ()
    """(q, k or v; sequence; token; channel or -1 for all; number), indices modulo the size."""
    padding: int = 0
    """Tokens masked at the start of the first sequence."""
    calls: tuple[int, ...] = ()
    """Where a decoder's tokens are parted; empty for none."""
    seed: int = 0


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case."""
    decoding = draw(st.booleans())
    n = draw(st.sampled_from(LENGTHS[:11] if decoding else LENGTHS))
    if not n:  # which is refused; hypothesis likes what stands last
        n = draw(st.sampled_from([7, 7, 7, 0]))
    count = st.integers(0, 1 << 16)
    spot = st.tuples(
        st.sampled_from("qkv"), count, count, st.integers(-1, 5), st.sampled_from(NUMBERS)
    )
    return Case(
        operator=draw(st.sampled_from(DECODABLE if decoding else OPERATORS)),
        leading=draw(st.sampled_from([(), (1,), (2,), (0,), (2, 3), (1, 0), (3, 1)])),
        n=n,
        d=draw(st.sampled_from([1, 2, 3, 8])),
        d_v=draw(st.sampled_from([1, 2, 3, 8])),
        dtype=draw(st.sampled_from(["float32", "float32", "float64", "bfloat16"])),
        spots=tuple(draw(st.lists(spot, max_size=4))),
        padding=draw(st.sampled_from([0, 0, 0, 1, 4])),
        calls=tuple(draw(st.lists(st.integers(0, n), max_size=3).map(sorted))) if decoding else (),
        seed=draw(st.integers(0, 1000)),
    )


def try_case(case: Case) -> str:
    """Call the operator, judge; what was looked at, in a word."""
    try:
        return _try(case)
    except Found:
        raise
    except ValueError:
        return "refused"
    except Exception as error:  # none of ours: a fault, whatever it is
        where = error.__traceback__
        while where.tb_next is not None and "chacal/" in where.tb_next.tb_frame.f_code.co_filename:
            where = where.tb_next
        place = f"{os.path.basename(where.tb_frame.f_code.co_filename)}:{where.tb_lineno}"
        mark = f"{type(error).__name__} at {place}"
        raise Found(f"{case!r}\n{type(error).__name__}: {error} ({place})", mark) from error


def _try(case: Case) -> str:
    operator = chacal.parse_operator(case.operator)
    good, bad, first = inputs_of(case)
    mask = None
    if case.padding and case.leading and 0 not in case.leading:
        mask = torch.ones(case.leading[0], case.n, dtype=torch.bool)
        mask[0, : case.padding] = False
    good, bad = leaves(*good), leaves(*bad)
    Y, Y_bad = operator(*good, mask=mask), operator(*bad, mask=mask)
    if not operator.causal:
        Y_bad.sum().backward()
        return "leaky"
    rows = torch.arange(case.n) < first.unsqueeze(-1)  # (..., n)
    _same(case, "outputs", Y_bad, Y, rows)
    weights = draw(*Y.shape, seed=case.seed + 9).to(Y.dtype) * rows.unsqueeze(-1)
    found, expected = (
        torch.autograd.grad((torch.where(rows.unsqueeze(-1), y, 0) * weights).sum(), x)
        for y, x in ((Y_bad, bad), (Y, good))
    )
    for name, a, b in zip("qkv", found, expected, strict=True):
        _same(case, f"the gradient of {name}", a, b, torch.ones_like(rows), slack=10)
    if case.calls:
        _decode(case, operator, bad, mask, Y, rows)
        return "decoded"
    return "causal"


def _decode(case, operator, bad, mask, Y, rows) -> None:
    decoder = operator.decoder()
    parts, start = [], 0
    with torch.no_grad():
        for end in [*case.calls, case.n]:
            part = slice(start, end)
            own = None if mask is None else mask[..., part]
            parts.append(decoder.extend(*(x[..., part, :] for x in bad), own))
            start = end
    _same(case, "decoded rows", torch.cat(parts, -2), Y, rows)


def inputs_of(case: Case):
    """Sound inputs, the same with their spots, and the first changed token of each sequence."""
    sizes = (case.d, case.d, case.d_v)
    dtype = getattr(torch, case.dtype)
    good = [
        draw(*case.leading, case.n, d, seed=case.seed + i).to(dtype) for i, d in enumerate(sizes)
    ]
    bad = [x.clone() for x in good]
    first = torch.full(case.leading, case.n)
    flat, B = first.view(-1), first.numel()
    if case.n and B:
        for which, sequence, token, channel, number in case.spots:
            x = bad["qkv".index(which)]
            b, t = sequence % B, token % case.n
            at = slice(None) if channel < 0 else channel % x.shape[-1]
            x.view(B, case.n, -1)[b, t, at] = float(number)
            flat[b] = min(int(flat[b]), t)
    return good, bad, first


def _same(case: Case, what: str, a, b, rows, slack: float = 1.0) -> None:
    a, b = a.detach()[rows].double(), b.detach()[rows].double()
    if a.numel():
        size = 1 + float(b.abs().max())
        if not (distance := far(a, b)) <= slack * DTYPES[case.dtype] * size:
            kind = case.operator.split(",")[0].split("@")[0].split("/")[0]
            raise Found(
                f"{case!r}\n{what} before the first changed token differ by {distance}",
                f"{what} of {kind}",
            )
