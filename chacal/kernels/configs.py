"""Which tile, warps and stages a kernel has on a card, in one table.

A configuration is chosen so that nothing is spilled, as far as there is one. `chacal bench kernels`
compiles lines of it and tells registers, spills and shared memory; tests/slow/test_binaries.py
holds every line to what stands here and to its card's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

INTERPRETER = "interpreter"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
WIDTHS = {2: (64, 128, 256), 4: (64, 128)}
"""A line is for d and d_v up to one of these, by bytes of a number; wider float32 does not fit."""

PAIRS_AT_ONCE = 64
"""Heads (of all sequences) that tickets go through side by side: enough to fill a card, few enough
for its cache to hold their keys and values."""


@dataclass(frozen=True)
class Config:
    """How a kernel is compiled.

    Attributes:
        tile: rows, and keys, of a tile.
        warps: groups of threads that work on one.
        stages: how far loads run ahead of products.
        columns: of the solved values, multiplied with a tile's inverse at a time.
        depth: channels that a score is made of at a time.
        repeats: how often warps make the same score, as the compiler lays them out (aot.py).
    """

    tile: int
    warps: int
    stages: int = 2
    columns: int = 256
    depth: int = 256
    repeats: int = 1


@dataclass(frozen=True)
class Precision:
    """How float32 numbers are multiplied.

    Attributes:
        products: in scores and values, where those are float32.
        solve: in the inverse of a tile and its product. Three products of bfloat16 parts keep 16
            bits, more than half precision stores.
    """

    products: str
    solve: str


BACKEND_OPTIONS: dict[str, dict[str, int]] = {
    "cuda": {},
    # a wave has 16 rows of a product, as a warp has: with 32 those past a tile's end repeat others
    "hip": {"matrix_instr_nonkdim": 16},
}


TABLE: dict[str, dict[tuple[str, int, int], Config]] = {
    "sm_80": {
        ("forward", 2, 64): Config(32, 2, 2),  # 240
        ("forward", 2, 128): Config(32, 4, 2),  # 255
        ("forward", 2, 256): Config(16, 4, 2),  # 240
        ("forward", 4, 64): Config(16, 4, 2),  # 205
        ("forward", 4, 128): Config(16, 8, 2),  # 255
        ("adjoint", 2, 64): Config(32, 2, 2),  # 255
        ("adjoint", 2, 128): Config(32, 4, 2),  # 255
        ("adjoint", 2, 256): Config(16, 4, 2),  # 245
        ("adjoint", 4, 64): Config(16, 4, 2),  # 206
        ("adjoint", 4, 128): Config(16, 8, 2),  # 255
        ("gradient", 2, 64): Config(64, 4, 2),  # 237
        ("gradient", 2, 128): Config(64, 8, 2),  # 168
        ("gradient", 2, 256): Config(32, 8, 1),  # 172
        ("gradient", 4, 64): Config(32, 8, 2),  # 254
        ("gradient", 4, 128): Config(16, 4, 1),  # 254
        ("decode", 2, 64): Config(32, 4, 2),  # 64
        ("decode", 2, 128): Config(32, 4, 2),  # 116
        ("decode", 2, 256): Config(16, 4, 2),  # 118
        ("decode", 4, 64): Config(32, 4, 2),  # 64
        ("decode", 4, 128): Config(16, 4, 2),  # 64
    },
    "sm_90": {
        ("forward", 2, 64): Config(64, 4, 2),  # 254
        ("forward", 2, 128): Config(32, 4, 2),  # 253
        ("forward", 2, 256): Config(16, 4, 2),  # 228
        ("forward", 4, 64): Config(16, 4, 2),  # 184
        ("forward", 4, 128): Config(16, 8, 2, 32),  # 255, 8 bytes spilled
        ("adjoint", 2, 64): Config(32, 2, 2),  # 253
        ("adjoint", 2, 128): Config(32, 8, 2),  # 255
        ("adjoint", 2, 256): Config(16, 4, 2),  # 240
        ("adjoint", 4, 64): Config(16, 4, 2),  # 178
        ("adjoint", 4, 128): Config(16, 8, 2, 32),  # 255, 8 bytes spilled
        ("gradient", 2, 64): Config(64, 4, 2),  # 220
        ("gradient", 2, 128): Config(64, 8, 2),  # 236
        ("gradient", 2, 256): Config(32, 8, 1),  # 140
        ("gradient", 4, 64): Config(32, 8, 2),  # 245
        ("gradient", 4, 128): Config(16, 8, 1),  # 250
        ("decode", 2, 64): Config(32, 4, 2),  # 64
        ("decode", 2, 128): Config(32, 4, 2),  # 96
        ("decode", 2, 256): Config(16, 4, 2),  # 96
        ("decode", 4, 64): Config(32, 4, 2),  # 72
        ("decode", 4, 128): Config(16, 4, 2),  # 72
    },
    "sm_100": {
        ("forward", 2, 64): Config(64, 4, 2),  # 250
        ("forward", 2, 128): Config(32, 4, 2),  # 255
        ("forward", 2, 256): Config(16, 4, 2),  # 228
        ("forward", 4, 64): Config(16, 4, 2),  # 184
        ("forward", 4, 128): Config(16, 8, 1),  # 255
        ("adjoint", 2, 64): Config(16, 1, 2),  # 206
        ("adjoint", 2, 128): Config(32, 8, 2),  # 253
        ("adjoint", 2, 256): Config(16, 4, 2),  # 240
        ("adjoint", 4, 64): Config(16, 4, 2),  # 176
        ("adjoint", 4, 128): Config(16, 8, 2, 32),  # 255, 8 bytes spilled
        ("gradient", 2, 64): Config(64, 4, 2),  # 254
        ("gradient", 2, 128): Config(64, 8, 2),  # 197
        ("gradient", 2, 256): Config(32, 8, 1),  # 142
        ("gradient", 4, 64): Config(32, 8, 2),  # 250
        ("gradient", 4, 128): Config(16, 4, 1),  # 254
        ("decode", 2, 64): Config(32, 4, 2),  # 64
        ("decode", 2, 128): Config(32, 4, 2),  # 128
        ("decode", 2, 256): Config(16, 4, 2),  # 120
        ("decode", 4, 64): Config(32, 4, 2),  # 66
        ("decode", 4, 128): Config(16, 4, 2),  # 64
    },
    "gfx942": {
        ("forward", 2, 64): Config(64, 4, 2),  # 184
        ("forward", 2, 128): Config(32, 2, 2),  # 204
        ("forward", 2, 256): Config(16, 4, 2),  # 144
        ("forward", 4, 64): Config(16, 4, 2),  # 88
        ("forward", 4, 128): Config(16, 4, 2),  # 126
        ("adjoint", 2, 64): Config(64, 4, 2),  # 232
        ("adjoint", 2, 128): Config(32, 2, 2),  # 245
        ("adjoint", 2, 256): Config(16, 4, 2),  # 160
        ("adjoint", 4, 64): Config(16, 4, 2),  # 102
        ("adjoint", 4, 128): Config(16, 4, 2),  # 160
        ("gradient", 2, 64): Config(64, 4, 2),  # 492
        ("gradient", 2, 128): Config(32, 2, 2),  # 494
        ("gradient", 2, 256): Config(16, 4, 1),  # 240
        ("gradient", 4, 64): Config(16, 4, 2),  # 176
        ("gradient", 4, 128): Config(16, 4, 1),  # 250
        ("decode", 2, 64): Config(32, 4, 2),  # 48
        ("decode", 2, 128): Config(32, 4, 2),  # 68
        ("decode", 2, 256): Config(16, 4, 2),  # 78
        ("decode", 4, 64): Config(16, 4, 2),  # 35
        ("decode", 4, 128): Config(16, 4, 2),  # 48
    },
}  # fmt: skip
"""target -> (kernel, bytes of a number, width) -> configuration; beside it, registers of a thread.

Float32 with 128 channels spills two registers in three lines; nothing else tried had less."""


def find_config(
    kernel: str, target: str, dtype: torch.dtype, width: int, variants: Sequence[str] = ()
) -> Config:
    """The line for a kernel with channels up to `width`.

    `variants` are what it has beside exact ChaCAL; the first of them that has a line of its own
    decides.
    """
    if target == INTERPRETER:
        return Config(tile=32, warps=4)
    widths = WIDTHS[dtype.itemsize]
    for most in widths:
        if width <= most:
            lines = TABLE[target]
            names = (f"{variant} {kernel}" for variant in variants)
            own = [
                lines[x, dtype.itemsize, most] for x in names if (x, dtype.itemsize, most) in lines
            ]
            return own[0] if own else lines[kernel, dtype.itemsize, most]
    raise ValueError(f"d or d_v is {width}; expected at most {widths[-1]} for {dtype}")


def find_precision(target: str, dtype: torch.dtype) -> Precision:
    """How a target multiplies float32 numbers, beside inputs of `dtype`."""
    if target == INTERPRETER:
        return Precision("ieee", "ieee")
    single = "ieee" if target.startswith("gfx") else "tf32x3"
    return Precision(single, single if dtype == torch.float32 else "bf16x3")


def find_target(device: torch.device, interpreting: bool) -> str:
    """The table's name for a device; of a card that it does not have, the newest older one's."""
    if interpreting:
        return INTERPRETER
    if torch.version.hip:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    if major < 8:
        raise ValueError(f"the card has compute capability {major}; expected 8 or more")
    return {8: "sm_80", 9: "sm_90"}.get(major, "sm_100")


def backend_options() -> dict[str, int]:
    """What this machine's compiler is told beside a configuration."""
    return BACKEND_OPTIONS["hip" if torch.version.hip else "cuda"]
