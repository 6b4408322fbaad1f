"""Kernels compiled for a card that is not here, and what the binary tells of itself.

Triton's compiler needs no card. What it makes holds the registers of a thread, the bytes that did
not fit into them (spills) and the shared memory of a program; how many programs a multiprocessor
can hold at once follows from these.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from chacal.kernels.backward import adjoint_kernel
from chacal.kernels.configs import BACKEND_OPTIONS, Config, find_precision
from chacal.kernels.decode import PIECES, decode_kernel
from chacal.kernels.forward import forward_kernel
from chacal.kernels.gradient import gradient_kernel

KERNELS = {
    "forward": forward_kernel,
    "adjoint": adjoint_kernel,
    "gradient": gradient_kernel,
    "decode": decode_kernel,
}
VARIANTS: dict[str, dict[str, object]] = {
    "": {},
    "routed": {"ROUTES": 1},
    "window": {"WINDOW": True},
    "packed": {"SEQS": 16},
    "drop": {"DROP": True},
}
"""What a kernel has beside exact ChaCAL, as constants of it."""
INTERPRETED = not isinstance(forward_kernel, triton.runtime.JITFunction)
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
FLOAT32 = {"lse", "gamma", "delta", "dq", "dgamma", "parts"}
INT32 = {
    "cu", "ticket", "done", "lengths", "finished", "chosen", "blocks", "rows", "begins",
}  # fmt: skip


@dataclass(frozen=True)
class Card:
    """What a multiprocessor has.

    Attributes:
        backend, arch, warp: how Triton names it, and threads of a warp.
        registers: of 32 bits, all threads together.
        threads: that can be there at once.
        shared: bytes of shared memory, all programs together.
        most_shared: bytes that one program may have.
    """

    backend: str
    arch: Any
    warp: int
    registers: int
    threads: int
    shared: int
    most_shared: int


CARDS = {
    "sm_80": Card("cuda", 80, 32, 65536, 2048, 164 << 10, 163 << 10),
    "sm_90": Card("cuda", 90, 32, 65536, 2048, 228 << 10, 227 << 10),
    "sm_100": Card("cuda", 100, 32, 65536, 2048, 228 << 10, 227 << 10),
    "gfx942": Card("hip", "gfx942", 64, 4 * 512 * 64, 2048, 64 << 10, 64 << 10),
}
"""NVIDIA's from the CUDA programming guide's table of compute capabilities; gfx942 has four units
of 512 registers for each of 64 lanes, and 64 KiB."""


@dataclass(frozen=True)
class Binary:
    """A kernel compiled for a target.

    Attributes:
        registers: of a thread.
        spilled: bytes of a thread that did not fit into them.
        shared: bytes of a program.
        programs: that a multiprocessor holds at once.
        repeats: how often warps make the same score, for want of rows and keys for all of them.
    """

    registers: int
    spilled: int
    shared: int
    programs: int
    repeats: float


def compile_kernel(
    kernel: str, target: str, dtype: torch.dtype, width: int, config: Config
) -> Binary:
    """A kernel for d = d_v = `width`, named as in the table: "forward", "routed forward", ..."""
    card = CARDS[target]
    variant, _, name = kernel.rpartition(" ")
    function = KERNELS[name]
    precision = find_precision(target, dtype)
    constants: dict[str, object] = {
        "d": width, "d_v": width, "D": width, "D_V": width, "TILE": config.tile, "SEQS": 0,
        "DROP": False, "WINDOW": False, "ROUTES": 0, "UPCAST": False,
        "PRECISION": precision.products, "SOLVE": precision.solve, "COLUMNS": config.columns,
        "DEPTH": config.depth, "STAGES": config.stages, "PIECES": PIECES,
    } | VARIANTS[variant]  # fmt: skip
    constants = {name: x for name, x in constants.items() if name in function.arg_names}
    types = dict(_types(function.arg_names, constants, DTYPES[dtype]))
    # as the launcher finds it: whole cache lines, but for counters and single numbers
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(function.arg_names)
        if types[name].startswith("*") or re.fullmatch(r"(q|k|v|dY|Z)_[bhn]", name)
    }
    source = ASTSource(
        function,
        types,
        {(function.arg_names.index(name),): x for name, x in constants.items()},
        aligned,
    )
    compiled = triton.compile(
        source,
        target=GPUTarget(card.backend, card.arch, card.warp),
        options={**config.options, **BACKEND_OPTIONS[card.backend]},
    )
    registers, spilled = _resources(compiled.asm)
    shared = compiled.metadata.shared
    programs = _programs(card, config, registers, shared)
    return Binary(registers, spilled, shared, programs, _repeats(compiled.asm["ttgir"], config))


def _types(names: list[str], constants: dict[str, object], dtype: str) -> Iterator[tuple[str, str]]:
    """Triton's type of each argument."""
    for name in names:
        if name in constants:
            yield name, "constexpr"
        elif name in FLOAT32:
            yield name, "*fp32"
        elif name in INT32:
            yield name, "*i32"
        elif name in ("q", "k", "v", "Z", "Y", "dY", "W", "G", "dk"):
            yield name, f"*{dtype}"
        else:
            yield name, "fp32" if name.startswith("scale") else "i32"


def _resources(asm: dict[str, Any]) -> tuple[int, int]:
    """Registers of a thread, and bytes spilled."""
    if "cubin" not in asm:
        found = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", asm["amdgcn"]))
        return int(found["vgpr_count"]), 4 * int(found["vgpr_spill_count"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told))
    return int(usage["REG"]), int(usage["STACK"]) + int(usage["LOCAL"])


def _programs(card: Card, config: Config, registers: int, shared: int) -> int:
    """How many programs fit on a multiprocessor; registers come in eights."""
    threads = config.warps * card.warp
    return min(
        card.registers // (threads * -(-registers // 8) * 8),
        card.threads // threads,
        card.shared // max(1, shared),
    )


def _repeats(code: str, config: Config) -> float:
    """The most of all products of the walk whose result is a square of A.

    Of a layout are read the warps along rows and columns and the shape of an instruction; what
    these have past the square's end repeats it. sm_100's own products are not split among warps.
    """
    kinds = re.findall(r"^(#\w+) = #ttg\.(?:nvidia_mma|amd_mfma)<\{(.*)\}>", code, re.M)
    covered = {name: _covered(layout) for name, layout in kinds}
    square = rf"(?:tt\.dot|warp_group_dot) .*-> tensor<{config.tile}x{config.tile}xf32, (#\w+)>"
    most, loops = 1.0, list[int]()
    for line in code.splitlines():
        indent = len(line) - len(line.lstrip())
        if loops and line.lstrip().startswith("}") and indent <= loops[-1]:
            loops.pop()
        if "scf.for" in line:
            loops.append(indent)
        found = re.search(square, line)
        if loops and found:
            rows, columns = (max(1.0, size / config.tile) for size in covered[found[1]])
            most = max(most, rows * columns)
    return most


def _covered(layout: str) -> list[int]:
    """Rows and columns that all warps have in one instruction each."""
    (warps, sizes) = (
        re.findall(rf"{name} = \[(\d+), (\d+)", layout)[0] for name in ("warpsPerCTA", "instrShape")
    )
    return [int(a) * int(b) for a, b in zip(warps, sizes, strict=True)]
