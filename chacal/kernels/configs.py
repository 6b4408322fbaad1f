"""Which tile, warps and stages a kernel has on a card, in one table.

A configuration is chosen so that nothing is spilled: a register that goes to memory and back costs
more than a smaller tile. `chacal bench kernels` compiles every line of the table and tells
registers, spills and shared memory; tests/slow/test_kernels.py holds each to no spills and to its
card's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

INTERPRETER = "interpreter"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
WIDTHS = (64, 128, 256)
"""A line is for d and d_v up to one of these."""

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
    """

    tile: int
    warps: int
    stages: int = 2
    columns: int = 256


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


TABLE: dict[str, dict[tuple[str, int, int], Config]] = {}
"""target -> (kernel, bytes of a number, width) -> configuration."""


def find_config(kernel: str, target: str, dtype: torch.dtype, width: int) -> Config:
    """The line for a kernel with channels up to `width`."""
    if target == INTERPRETER:
        return Config(tile=32, warps=4)
    lines = TABLE[target]
    for most in WIDTHS:
        if width <= most:
            return lines[kernel, dtype.itemsize, most]
    raise ValueError(f"d or d_v is {width}; expected at most {WIDTHS[-1]}")


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
