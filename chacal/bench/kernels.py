"""The kernels' binaries for a card that need not be here, and what they do, counted.

Nothing is timed: what stands as a time is a model and is called so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from chacal.kernels import model
from chacal.kernels.configs import LINES, TABLE, TARGETS, WIDTHS, Config, find_precision
from chacal.ops.inputs import check_count

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Line:
    """One line of the table of configurations, compiled.

    Attributes:
        kernel, dtype, width: which line; d and d_v are `width`.
        config: tile, warps and stages.
        registers, spilled, shared, programs: what the binary tells (`kernels/aot.py`).
    """

    kernel: str
    dtype: str
    width: int
    config: Config
    registers: int
    spilled: int
    shared: int
    programs: int


@dataclass(frozen=True)
class Against:
    """One pass against flash attention's, by counting; `model` is a model of the times' ratio."""

    name: str
    launches: int
    work: float
    memory: float
    cache: float
    model: float


def check_target(target: str) -> None:
    """A target that the table has, and a Triton that compiles."""
    if target not in TARGETS:
        raise ValueError(f"the target is {target!r}; expected one of {', '.join(TARGETS)}")
    if importlib.util.find_spec("triton") is None:
        raise ValueError(
            "Triton is not installed; expected it, to compile the kernels (it is for Linux: "
            "pip install triton)"
        )


def compile_table(target: str, dtype: str, widths: tuple[int, ...]) -> Iterator[Line]:
    """Every kernel's line for a dtype and these widths, each as soon as it is compiled."""
    check_target(target)
    unknown = sorted(set(widths) - set(WIDTHS))
    if unknown:
        raise ValueError(f"the width is {unknown[0]}; expected one of {WIDTHS}")
    # reads its kernels from files that decide at import whether they are to be interpreted
    from chacal.kernels.aot import INTERPRETED, compile_kernel

    if INTERPRETED:
        raise ValueError(
            "TRITON_INTERPRET is set, and kernels are not compiled then; expected it unset"
        )
    for width in widths:
        for kernel in LINES:
            config = TABLE[target][kernel, DTYPES[dtype].itemsize, width]
            made = compile_kernel(kernel, target, DTYPES[dtype], width, config)
            yield Line(
                kernel, dtype, width, config, made.registers, made.spilled, made.shared,
                made.programs,
            )  # fmt: skip


def against_flash(
    target: str, dtype: str, width: int, *, n: int, heads: int, batch: int
) -> list[Against]:
    """Forward and backward of exact ChaCAL against flash attention's, d = d_v = `width`."""
    for name, value in (("n", n), ("heads", heads), ("batch", batch)):
        check_count(name, value)
    number = DTYPES[dtype]
    shape = model.Shape(n, heads * batch, width, width, number.itemsize)
    precision = find_precision(target, number).solve
    lines, peak = TABLE[target], model.PEAKS[target]
    forward, adjoint, gradient = (
        lines[kernel, number.itemsize, width] for kernel in ("forward", "adjoint", "gradient")
    )
    passes = [
        ("forward", 1, model.forward_cost(shape, forward, precision), model.flash_forward(shape)),
        (
            "backward",
            2,
            model.adjoint_cost(shape, adjoint, precision) + model.gradient_cost(shape, gradient),
            model.flash_backward(shape),
        ),
    ]
    return [
        Against(
            name,
            launches,
            ours.work / flash.work,
            ours.memory / flash.memory,
            ours.cache / flash.cache,
            ours.seconds(peak) / flash.seconds(peak),
        )
        for name, launches, ours, flash in passes
    ]


def card_name(target: str) -> str:
    """The card whose peaks the model takes."""
    return model.PEAKS[target].name
