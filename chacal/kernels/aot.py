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

from chacal.kernels.backward import adjoint_kernel, gradient_kernel
from chacal.kernels.configs import BACKEND_OPTIONS, Config, find_precision
from chacal.kernels.decode import PIECES, decode_kernel
from chacal.kernels.forward import forward_kernel

KERNELS = {
    "forward": forward_kernel,
    "adjoint": adjoint_kernel,
    "gradient": gradient_kernel,
    "decode": decode_kernel,
}
INTERPRETED = not isinstance(forward_kernel, triton.runtime.JITFunction)
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
FLOAT32 = {"lse", "gamma", "delta", "dq", "dgamma", "parts"}
INT32 = {"cu", "ticket", "done", "lengths", "finished"}


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
    """

    registers: int
    spilled: int
    shared: int
    programs: int


def compile_kernel(
    kernel: str,
    target: str,
    dtype: torch.dtype,
    width: int,
    config: Config,
    **options: object,
) -> Binary:
    """A kernel for d = d_v = `width`; `options` are constants of it other than the usual ones."""
    card = CARDS[target]
    function = KERNELS[kernel]
    precision = find_precision(target, dtype)
    constants: dict[str, object] = {
        "d": width, "d_v": width, "D": width, "D_V": width, "TILE": config.tile, "SEQS": 0,
        "DROP": False, "WINDOW": False, "UPCAST": False, "PRECISION": precision.products,
        "SOLVE": precision.solve, "COLUMNS": config.columns, "STAGES": config.stages,
        "PIECES": PIECES,
    } | options  # fmt: skip
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
        options={
            "num_warps": config.warps, "num_stages": config.stages, "enable_fp_fusion": True,
            **BACKEND_OPTIONS[card.backend],
        },
    )  # fmt: skip
    registers, spilled = _resources(compiled.asm)
    shared = compiled.metadata.shared
    return Binary(registers, spilled, shared, _programs(card, config, registers, shared))


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
