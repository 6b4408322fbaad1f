"""Whether a CPU survives a product of bfloat16 matrices, asked before the first one.

On some virtual machines the processor announces AMX and may not use it: oneDNN takes it at its
word, and the first bfloat16 product kills the process without a message. oneDNN has a variable
that keeps it off AMX. It is read at a process's first matrix product, of whatever dtype.
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import subprocess
import sys
import warnings
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_BF16"

PROGRAM = """
import resource, torch
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a death that is asked for leaves no core file
torch.set_num_threads(1)  # a forked process has no pool of threads
q = torch.ones(1, 1, 64, 64, dtype=torch.bfloat16, requires_grad=True)
x = torch.mm(q[0, 0], q[0, 0]) + torch.nn.functional.linear(q[0, 0], q[0, 0])
y = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
(x + y).sum().backward()
"""
"""Products as training makes them; a string, since it must run where chacal was not imported."""

PATIENCE = 60
"""Seconds for a few products in a copy of this process, should it wait for a thread it lacks."""


def ensure_bfloat16(
    *, quiet: bool = False, program: str = PROGRAM, cpuinfo: Path = Path("/proc/cpuinfo")
) -> None:
    """Make bfloat16 products on the CPU safe, or raise a ValueError that says what to do.

    A child process makes them first. If it is killed, oneDNN is kept off AMX for this process and
    its children. Nothing is tried where the variable is set already, nor where no AMX is
    announced; only Linux tells.

    Args:
        quiet: say nothing when the variable is set.
        program: what the child runs.
        cpuinfo: where the processor announces what it has.
    """
    if VARIABLE in os.environ or not _announces_amx(cpuinfo) or _survives_afresh(program):
        return
    os.environ[VARIABLE] = WITHOUT_AMX
    if not _survives_here(program):
        del os.environ[VARIABLE]
        raise ValueError(
            f"bfloat16 products kill this process: the processor announces AMX and may not use "
            f"it, and {VARIABLE}={WITHOUT_AMX} helps only before the first matrix product; set it "
            f"before Python starts, or leave bf16 off"
        )
    if not quiet:
        print(
            f"chacal: this processor announces AMX but may not use it; bfloat16 goes on with "
            f"{VARIABLE}={WITHOUT_AMX}",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def _announces_amx(cpuinfo: Path) -> bool:
    try:
        return "amx_bf16" in cpuinfo.read_text()
    except OSError:
        return False


@functools.cache  # a process need not ask twice
def _survives_afresh(program: str) -> bool:
    """Whether a new process runs the program, or at least is not killed by it."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    return done.returncode >= 0


def _survives_here(program: str) -> bool:
    """Whether a copy of this process is not killed: one that oneDNN looks the same to.

    No other way tells whether the variable came in time.
    """
    with warnings.catch_warnings():
        # Python warns of threads that a copy does not have; the program waits for none
        warnings.simplefilter("ignore", DeprecationWarning)
        child = multiprocessing.get_context("fork").Process(target=_run, args=(program,))
        child.start()
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
        child.join()
    return child.exitcode is not None and child.exitcode >= 0


def _run(program: str) -> None:
    faulthandler.disable()  # a death that is asked for needs no report
    exec(program, {})
