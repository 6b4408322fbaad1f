"""The only stopwatch: candidates timed in one process, in turns, and told as ratios.

Absolute times mean little on a shared machine. A candidate and its baseline that run in turns
meet the same weather, so the ratio of their medians is worth reporting.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from chacal.ops.inputs import check_count


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate over all rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.seconds)


def interleave(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 7, warmup: int = 1
) -> dict[str, Timing]:
    """Time every candidate once per round, in turns, after `warmup` untimed calls of each."""
    for call in candidates.values():
        for _ in range(warmup):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in candidates.items():
                start = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - start)
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(tuple(s)) for name, s in seconds.items()}


def use_threads(threads: int) -> None:
    """Let this process compute with so many threads."""
    check_count("threads", threads)
    torch.set_num_threads(threads)


def machine(threads: int) -> dict[str, str | int]:
    """What a figure was measured on, without naming the machine."""
    return {
        "cpu": _cpu_name(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
    }


def peak_memory(code: str, threads: int = 1) -> tuple[int, int]:
    """Peak resident bytes of a fresh process at its start and after running `code`.

    The process imports torch and chacal and warms both up before the first figure, so that their
    difference is what `code` needed. On Linux the peak is the process's own and is set back to
    what it holds after the warm-up; `ru_maxrss` would start at the peak of the process that
    started it.
    """
    program = (
        "import resource, sys, torch, chacal\n"
        f"torch.set_num_threads({threads})\n"
        "def peak():\n"
        "    try:\n"
        "        lines = open('/proc/self/status').read().splitlines()\n"
        "        return 1024 * int([x for x in lines if x.startswith('VmHWM')][0].split()[1])\n"
        "    except (OSError, IndexError):\n"
        "        unit = 1 if sys.platform == 'darwin' else 1024\n"
        "        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "x = torch.zeros(1, 1, 8, 8, requires_grad=True)\n"
        "chacal.resolvent_attention(x, x, x).sum().backward()\n"
        "try:\n"
        "    open('/proc/self/clear_refs', 'w').write('5')\n"
        "except OSError:\n"
        "    pass\n"
        "before = peak()\n"
        f"{code}\n"
        "print(before, peak())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"the measured process failed: {done.stderr.strip()[-300:]}")
    before, after = (int(x) for x in done.stdout.split())
    return before, after


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
