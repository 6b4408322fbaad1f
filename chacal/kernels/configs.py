"""Which tile, warps and stages a kernel has on a card, in one table.

A configuration is chosen so that nothing is spilled. `chacal bench kernels`
compiles lines of it and tells registers, spills and shared memory; tests/slow/test_binaries.py
holds every line to what stands here and to its card's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

INTERPRETER = "interpreter"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
WIDTHS = (64, 128, 256)
"""A line is for d and d_v up to one of these."""

LINES = (
    "forward", "adjoint", "gradient", "decode",
    "routed forward", "routed adjoint", "routed gradient",
)  # fmt: skip
"""Kernels with a line for every width. Others of exact ChaCAL ("window forward") have lines only
where that of the plain kernel would spill."""

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
        registers: that a thread may have, on NVIDIA's cards; None leaves it to the assembler, which
            may spill a few so that more programs fit.
    """

    tile: int
    warps: int
    stages: int = 2
    columns: int = 256
    depth: int = 256
    repeats: int = 1
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """What the compiler is told."""
        told = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        return told if self.registers is None else told | {"maxnreg": self.registers}


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
        ("forward", 2, 256): Config(16, 4, 2, repeats=2),  # 240
        ("forward", 4, 64): Config(16, 4, 2, repeats=2),  # 205
        ("forward", 4, 128): Config(16, 8, 2, repeats=4),  # 255
        ("forward", 4, 256): Config(16, 8, 1, 32, 64, repeats=8),  # 234
        ("adjoint", 2, 64): Config(32, 2, 2),  # 255
        ("adjoint", 2, 128): Config(32, 4, 2),  # 255
        ("adjoint", 2, 256): Config(16, 4, 2, repeats=2),  # 245
        ("adjoint", 4, 64): Config(16, 4, 2, repeats=2),  # 206
        ("adjoint", 4, 128): Config(16, 8, 2, repeats=4),  # 255
        ("adjoint", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 215
        ("gradient", 2, 64): Config(64, 4, 2),  # 237
        ("gradient", 2, 128): Config(64, 8, 2),  # 168
        ("gradient", 2, 256): Config(32, 8, 1, repeats=2),  # 172
        ("gradient", 4, 64): Config(32, 8, 2, repeats=2),  # 254
        ("gradient", 4, 128): Config(16, 4, 1, repeats=2),  # 254
        ("gradient", 4, 256): Config(16, 8, 1, 32, 64, repeats=8),  # 231
        ("decode", 2, 64): Config(32, 4, 2),  # 64
        ("decode", 2, 128): Config(32, 4, 2),  # 116
        ("decode", 2, 256): Config(16, 4, 2),  # 118
        ("decode", 4, 64): Config(32, 4, 2),  # 64
        ("decode", 4, 128): Config(16, 4, 2),  # 64
        ("decode", 4, 256): Config(16, 4, 2),  # 128
        ("routed forward", 2, 64): Config(32, 2, 2),  # 251
        ("routed forward", 2, 128): Config(16, 2, 2),  # 218
        ("routed forward", 2, 256): Config(16, 4, 2, repeats=2),  # 252
        ("routed forward", 4, 64): Config(16, 4, 2, repeats=2),  # 215
        ("routed forward", 4, 128): Config(16, 4, 1, 32, 16, repeats=4),  # 168
        ("routed forward", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 217
        ("routed adjoint", 2, 64): Config(32, 2, 2),  # 255
        ("routed adjoint", 2, 128): Config(16, 2, 2),  # 238
        ("routed adjoint", 2, 256): Config(16, 4, 2, repeats=2),  # 251
        ("routed adjoint", 4, 64): Config(16, 4, 2, repeats=2),  # 212
        ("routed adjoint", 4, 128): Config(16, 4, 1, 32, 16, repeats=4, registers=255),  # 200
        ("routed adjoint", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 230
        ("routed gradient", 2, 64): Config(32, 4, 2),  # 209
        ("routed gradient", 2, 128): Config(32, 4, 2),  # 250
        ("routed gradient", 2, 256): Config(32, 8, 1, repeats=2),  # 245
        ("routed gradient", 4, 64): Config(16, 4, 2, repeats=2),  # 242
        ("routed gradient", 4, 128): Config(16, 8, 1, 32, 16, repeats=8),  # 201
        ("routed gradient", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 238
        ("window adjoint", 2, 64): Config(32, 2, 1),  # 255
        ("packed adjoint", 2, 128): Config(16, 2, 2),  # 240
        ("drop adjoint", 2, 128): Config(16, 2, 2),  # 242
    },
    "sm_90": {
        ("forward", 2, 64): Config(64, 4, 2),  # 254
        ("forward", 2, 128): Config(32, 4, 2),  # 253
        ("forward", 2, 256): Config(16, 4, 2, repeats=2),  # 228
        ("forward", 4, 64): Config(16, 4, 2, repeats=2),  # 184
        ("forward", 4, 128): Config(16, 8, 1, 32, repeats=4),  # 255
        ("forward", 4, 256): Config(16, 8, 1, 32, 64, repeats=8),  # 231
        ("adjoint", 2, 64): Config(32, 2, 2),  # 253
        ("adjoint", 2, 128): Config(16, 2, 2),  # 210
        ("adjoint", 2, 256): Config(16, 4, 2, repeats=2),  # 240
        ("adjoint", 4, 64): Config(16, 4, 2, repeats=2),  # 178
        ("adjoint", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 195
        ("adjoint", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 211
        ("gradient", 2, 64): Config(64, 4, 2),  # 208
        ("gradient", 2, 128): Config(64, 4, 2),  # 254
        ("gradient", 2, 256): Config(32, 8, 1, repeats=2),  # 140
        ("gradient", 4, 64): Config(32, 8, 2, repeats=2),  # 245
        ("gradient", 4, 128): Config(16, 8, 1, repeats=4),  # 250
        ("gradient", 4, 256): Config(16, 8, 1, 32, 64, repeats=8),  # 242
        ("decode", 2, 64): Config(32, 4, 2),  # 64
        ("decode", 2, 128): Config(32, 4, 2),  # 96
        ("decode", 2, 256): Config(16, 4, 2),  # 96
        ("decode", 4, 64): Config(32, 4, 2),  # 72
        ("decode", 4, 128): Config(16, 4, 2),  # 72
        ("decode", 4, 256): Config(16, 8, 2),  # 75
        ("routed forward", 2, 64): Config(32, 2, 1),  # 233
        ("routed forward", 2, 128): Config(16, 2, 2),  # 208
        ("routed forward", 2, 256): Config(16, 4, 1, repeats=2),  # 251
        ("routed forward", 4, 64): Config(16, 4, 2, repeats=2),  # 198
        ("routed forward", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 205
        ("routed forward", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 221
        ("routed adjoint", 2, 64): Config(32, 2, 2),  # 255
        ("routed adjoint", 2, 128): Config(16, 2, 2),  # 210
        ("routed adjoint", 2, 256): Config(16, 4, 2, repeats=2),  # 243
        ("routed adjoint", 4, 64): Config(16, 4, 2, repeats=2),  # 216
        ("routed adjoint", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 212
        ("routed adjoint", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 236
        ("routed gradient", 2, 64): Config(64, 4, 2),  # 246
        ("routed gradient", 2, 128): Config(32, 4, 2),  # 187
        ("routed gradient", 2, 256): Config(32, 8, 1, repeats=2),  # 182
        ("routed gradient", 4, 64): Config(16, 4, 1, depth=32, repeats=4),  # 204
        ("routed gradient", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 223
        ("routed gradient", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 209
        ("window forward", 2, 64): Config(32, 2, 2),  # 235
        ("window adjoint", 2, 64): Config(16, 1, 2),  # 216
        ("packed forward", 2, 64): Config(32, 2, 2),  # 233
        ("window forward", 2, 128): Config(16, 2, 2),  # 192
        ("packed forward", 2, 128): Config(16, 2, 2),  # 190
    },
    "sm_100": {
        ("forward", 2, 64): Config(64, 4, 2),  # 250
        ("forward", 2, 128): Config(32, 4, 2),  # 255
        ("forward", 2, 256): Config(16, 4, 2, repeats=2),  # 228
        ("forward", 4, 64): Config(16, 4, 2, repeats=2, registers=255),  # 207
        ("forward", 4, 128): Config(16, 8, 1, 32, repeats=4),  # 255
        ("forward", 4, 256): Config(16, 8, 1, 32, 64, repeats=8),  # 230
        ("adjoint", 2, 64): Config(16, 1, 2),  # 206
        ("adjoint", 2, 128): Config(16, 2, 2),  # 208
        ("adjoint", 2, 256): Config(16, 4, 2, repeats=2),  # 240
        ("adjoint", 4, 64): Config(16, 4, 2, repeats=2),  # 176
        ("adjoint", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 193
        ("adjoint", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 209
        ("gradient", 2, 64): Config(64, 4, 2),  # 255
        ("gradient", 2, 128): Config(64, 8, 2),  # 197
        ("gradient", 2, 256): Config(32, 8, 1, repeats=2, registers=255),  # 162
        ("gradient", 4, 64): Config(32, 8, 2, repeats=2),  # 250
        ("gradient", 4, 128): Config(16, 4, 1, repeats=2),  # 254
        ("gradient", 4, 256): Config(16, 8, 1, 32, 64, repeats=8),  # 242
        ("decode", 2, 64): Config(32, 4, 2),  # 64
        ("decode", 2, 128): Config(32, 4, 2),  # 128
        ("decode", 2, 256): Config(16, 4, 2),  # 120
        ("decode", 4, 64): Config(32, 4, 2),  # 66
        ("decode", 4, 128): Config(16, 4, 2),  # 64
        ("decode", 4, 256): Config(16, 4, 2),  # 138
        ("routed forward", 2, 64): Config(64, 4, 2),  # 255
        ("routed forward", 2, 128): Config(16, 2, 2),  # 186
        ("routed forward", 2, 256): Config(16, 4, 1, repeats=2),  # 238
        ("routed forward", 4, 64): Config(16, 4, 2, repeats=2),  # 197
        ("routed forward", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 207
        ("routed forward", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 219
        ("routed adjoint", 2, 64): Config(16, 1, 2),  # 212
        ("routed adjoint", 2, 128): Config(16, 2, 2),  # 212
        ("routed adjoint", 2, 256): Config(16, 4, 2, repeats=2),  # 242
        ("routed adjoint", 4, 64): Config(16, 4, 2, repeats=2),  # 217
        ("routed adjoint", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 214
        ("routed adjoint", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 198
        ("routed gradient", 2, 64): Config(64, 8, 2),  # 186
        ("routed gradient", 2, 128): Config(32, 4, 2),  # 185
        ("routed gradient", 2, 256): Config(32, 8, 1, repeats=2),  # 178
        ("routed gradient", 4, 64): Config(16, 8, 1, depth=32, repeats=8),  # 168
        ("routed gradient", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 219
        ("routed gradient", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 202
        ("packed gradient", 2, 64): Config(64, 8, 2),  # 152
        ("window forward", 2, 128): Config(16, 2, 2),  # 194
        ("packed forward", 2, 128): Config(16, 2, 2),  # 180
        ("drop forward", 4, 64): Config(16, 4, 1, depth=32, repeats=4),  # 158
        ("drop gradient", 4, 64): Config(16, 4, 2, repeats=2),  # 164
    },
    "gfx942": {
        ("forward", 2, 64): Config(64, 4, 2),  # 184
        ("forward", 2, 128): Config(32, 2, 2),  # 204
        ("forward", 2, 256): Config(16, 4, 2, repeats=4),  # 144
        ("forward", 4, 64): Config(16, 4, 2, repeats=4),  # 88
        ("forward", 4, 128): Config(16, 4, 2, repeats=4),  # 126
        ("forward", 4, 256): Config(16, 8, 1, 32, 64, repeats=8),  # 118
        ("adjoint", 2, 64): Config(64, 4, 2),  # 232
        ("adjoint", 2, 128): Config(32, 2, 2),  # 245
        ("adjoint", 2, 256): Config(16, 4, 2, repeats=4),  # 160
        ("adjoint", 4, 64): Config(16, 4, 2, repeats=4),  # 102
        ("adjoint", 4, 128): Config(16, 4, 2, repeats=4),  # 160
        ("adjoint", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 118
        ("gradient", 2, 64): Config(64, 4, 2),  # 492
        ("gradient", 2, 128): Config(32, 2, 2),  # 494
        ("gradient", 2, 256): Config(16, 4, 1, repeats=4),  # 240
        ("gradient", 4, 64): Config(16, 4, 2, repeats=4),  # 176
        ("gradient", 4, 128): Config(16, 4, 1, repeats=4),  # 250
        ("gradient", 4, 256): Config(16, 8, 1, 32, 64, repeats=8),  # 156
        ("decode", 2, 64): Config(32, 4, 2),  # 48
        ("decode", 2, 128): Config(32, 4, 2),  # 68
        ("decode", 2, 256): Config(16, 4, 2),  # 78
        ("decode", 4, 64): Config(16, 4, 2),  # 35
        ("decode", 4, 128): Config(16, 4, 2),  # 48
        ("decode", 4, 256): Config(16, 4, 2),  # 78
        ("routed forward", 2, 64): Config(64, 4, 2),  # 226
        ("routed forward", 2, 128): Config(32, 2, 2),  # 248
        ("routed forward", 2, 256): Config(16, 4, 2, repeats=4),  # 154
        ("routed forward", 4, 64): Config(16, 4, 2, repeats=4),  # 112
        ("routed forward", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 102
        ("routed forward", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 108
        ("routed adjoint", 2, 64): Config(64, 4, 2),  # 248
        ("routed adjoint", 2, 128): Config(32, 2, 2),  # 243
        ("routed adjoint", 2, 256): Config(16, 4, 2, repeats=4),  # 165
        ("routed adjoint", 4, 64): Config(16, 4, 2, repeats=4),  # 116
        ("routed adjoint", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 110
        ("routed adjoint", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 116
        ("routed gradient", 2, 64): Config(32, 2, 2),  # 392
        ("routed gradient", 2, 128): Config(16, 1, 2),  # 397
        ("routed gradient", 2, 256): Config(16, 4, 1, repeats=4),  # 297
        ("routed gradient", 4, 64): Config(16, 4, 2, repeats=4),  # 188
        ("routed gradient", 4, 128): Config(16, 8, 1, 32, 32, repeats=8),  # 128
        ("routed gradient", 4, 256): Config(16, 8, 1, 32, 32, repeats=8),  # 160
        ("packed gradient", 2, 64): Config(64, 4, 1),  # 288
        ("packed gradient", 2, 128): Config(32, 4, 2, repeats=2),  # 380
    },
}  # fmt: skip
"""target -> (kernel, bytes of a number, width) -> configuration; with a thread's registers."""


def find_config(
    kernel: str, target: str, dtype: torch.dtype, width: int, variants: Sequence[str] = ()
) -> Config:
    """The line for a kernel with channels up to `width`.

    `variants` are what it has beside exact ChaCAL; the first of them that has a line of its own
    decides.
    """
    if target == INTERPRETER:
        return Config(tile=32, warps=4)
    lines = TABLE[target]
    for most in WIDTHS:
        if width <= most:
            names = [*(f"{variant} {kernel}" for variant in variants), kernel]
            keys = ((name, dtype.itemsize, most) for name in names)
            return next(lines[key] for key in keys if key in lines)
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
