"""The only stopwatch: candidates timed in one process, in turns, and told as ratios.

Absolute times mean little on a shared machine. A candidate and its baseline that run in turns
meet the same weather, so the ratio of their medians is worth reporting. It still differs from
process to process, so a figure to publish is the median over several, with its range.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from chacal._orphans import end_after
from chacal.native.build import library
from chacal.ops.inputs import check_count

MOST_THREADS = 1024
"""Beyond that a system may refuse to start them, and torch ends the process then."""

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""The time that passes, or the processor's work for us, all threads together: with one thread the
same on a machine that is ours alone, and steadier on one that is not."""

WARM = 10.0
"""Seconds after which what a first call has to do once does not count."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate over all rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A candidate's time over one run or more."""

    operator: str
    seconds: float
    """The median over runs of a run's median over rounds."""
    ratios: tuple[float, ...]
    """Of each run, time over that of the baseline, timed in turns with it; none without one."""
    rounds: int
    """Of each run."""
    growths: tuple[float, ...] = ()
    """Of each run, time per token over that at the shortest length, timed in turns with it; none
    where lengths were not compared."""

    @property
    def ratio(self) -> float | None:
        """The median over runs."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def growth(self) -> float | None:
        """The median over runs."""
        return statistics.median(self.growths) if self.growths else None


TimedT = TypeVar("TimedT", bound=Timed)
ResultT = TypeVar("ResultT")
NameT = TypeVar("NameT", bound=Hashable)


DEVICES = ("cpu", "cuda")
"""Where candidates may run."""


def place(device: str) -> torch.device:
    """The device of that name, if there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device; expected --device cpu, or a machine where torch sees one")
    return torch.device(device)


def device_bytes(device: str) -> int | None:
    """Memory of a card; None for this machine's own."""
    return torch.cuda.mem_get_info()[1] if device == "cuda" else None


def interleave(
    candidates: Mapping[NameT, Callable[[], object]],
    rounds: int = 7,
    warmup: int = 1,
    device: str = "cpu",
    clock: str = "wall",
    tell: Callable[[NameT, float], None] = lambda name, seconds: None,
    tell_round: Callable[[int], None] = lambda done: None,
) -> dict[NameT, Timing]:
    """Time every candidate once per round, in turns, after `warmup` untimed calls of each.

    A call that lasts `WARM` seconds is warm for most of it: the one that was to warm it up is then
    its first round. Calls as long as that are told one by one, and rounds when they are done, of
    which that to warm up is none.
    """
    watch = stopwatch(device, clock)
    seconds: dict[NameT, list[float]] = {name: [] for name in candidates}
    for name, call in candidates.items():
        for _ in range(warmup):
            lasted = watch(call)
            if lasted >= WARM:
                seconds[name] = [lasted]
                tell(name, lasted)
                break
    tell_round(0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for done in range(rounds):
            for name, call in candidates.items():
                if len(seconds[name]) > done:
                    continue
                seconds[name].append(watch(call))
                if seconds[name][-1] >= WARM:
                    tell(name, seconds[name][-1])
            tell_round(done + 1)
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(tuple(s)) for name, s in seconds.items()}


def stopwatch(device: str, clock: str = "wall") -> Callable[[Callable[[], object]], float]:
    """What times a call: by a card's own clock, or by one of `CLOCKS`."""
    if clock not in CLOCKS:
        raise ValueError(f"clock is {clock!r}; expected one of {', '.join(CLOCKS)}")
    if device == "cuda":
        if clock == "cpu":
            raise ValueError("clock is cpu on a card, which has its own; expected wall")
        return time_on_card
    return partial(time_call, now=CLOCKS[clock])


def time_call(call: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a call."""
    start = now()
    call()
    return now() - start


def time_on_card(call: Callable[[], object]) -> float:
    """Seconds that a card needs for what a call asks of it, and waits for it to be asked.

    A call returns before its work is done, so the card's own clock is read, at marks in its queue.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()  # nothing of the candidate before
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(end)


def repeat(
    measure: Callable[..., list[TimedT]],
    *,
    runs: int,
    threads: int,
    report: Callable[[int, TimedT], None] = lambda run, row: None,
) -> list[TimedT]:
    """Rows of several runs made one: medians, with the ratio of each run.

    Args:
        measure: one run, which calls its `report` with each row. Pickled, if there are more.
        runs: how many. Of more than one each has a process of its own; one is made in this.
        threads: CPU threads.
        report: called with a run's number, from 1, and each row as soon as it is known here.

    Returns:
        a row for each of a run's.
    """
    check_count("runs", runs)
    check_threads(threads)
    if runs == 1:
        return _measure(partial(measure, report=partial(report, 1)), threads)
    made = []
    for run in range(1, runs + 1):
        made.append(_alone(measure, threads))
        for row in made[-1]:
            report(run, row)
    return [over_runs(rows) for rows in zip(*made, strict=True)]


def check_threads(threads: int, least: int = 1) -> None:
    """A number of CPU threads that a system would start."""
    check_count("threads", threads, least)
    if threads > MOST_THREADS:
        raise ValueError(f"threads is {threads}; expected at most {MOST_THREADS}")


def over_runs(rows: Sequence[TimedT]) -> TimedT:
    """One row for what several runs say of the same candidate."""
    seconds = statistics.median(row.seconds for row in rows)
    ratios, growths = (
        tuple(x for row in rows for x in getattr(row, name)) for name in ("ratios", "growths")
    )
    return replace(rows[0], seconds=seconds, ratios=ratios, growths=growths)


def machine(threads: int, device: str = "cpu") -> dict[str, str | int]:
    """What a figure was measured on, without naming the machine."""
    return {
        **({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}),
        "cpu": processor(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "exact": "plain PyTorch" if library() is None else "compiled",
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
        "from chacal._orphans import end_with_input\n"
        "end_with_input()\n"
        f"torch.set_num_threads({threads})\n"
        "def peak():\n"
        "    try:\n"
        "        lines = open('/proc/self/status').read().splitlines()\n"
        "        return 1024 * int([x for x in lines if x.startswith('VmHWM')][0].split()[1])\n"
        "    except (OSError, IndexError):\n"
        "        unit = 1 if sys.platform == 'darwin' else 1024\n"
        "        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "x = torch.zeros(1, 1, 32, 8, requires_grad=True)\n"
        "chacal.resolvent_attention(x, x, x).sum().backward()\n"
        "try:\n"
        "    open('/proc/self/clear_refs', 'w').write('5')\n"
        "except OSError:\n"
        "    pass\n"
        "before = peak()\n"
        f"{code}\n"
        "print(before, peak())\n"
    )
    # its input stays open until it ends: it ends with us
    inside, ours = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdin=inside, capture_output=True, text=True
        )
    finally:
        os.close(inside)
        os.close(ours)
    if done.returncode:
        raise ValueError(f"the measured process failed: {done.stderr.strip()[-300:]}")
    before, after = (int(x) for x in done.stdout.split())
    return before, after


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Its name, which may say little, with what tells it from others of that name."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return platform.processor() or platform.machine()
    first = text.split("\n\n")[0]
    said = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    name = said.get("model name") or platform.processor() or platform.machine()
    which = [f"{word.split()[-1]} {said[word]}" for word in ("cpu family", "model") if word in said]
    flags = said.get("flags", "").split()
    widest = [told for flag, told in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    units = widest[:1] + (["AMX"] if "amx_bf16" in flags else [])
    details = "; ".join(", ".join(part) for part in (which, units) if part)
    return f"{name} ({details})" if details else name


def _alone(measure: Callable[[], list[TimedT]], threads: int) -> list[TimedT]:
    """One run in a process of its own, which shares no memory with ours."""
    return together(partial(_measure, measure, threads), 1)[0]


def _measure(measure: Callable[[], list[TimedT]], threads: int, rank: int = 0) -> list[TimedT]:
    torch.set_num_threads(threads)
    return measure()


def together(call: Callable[[int], ResultT], processes: int) -> list[ResultT]:
    """call(rank) in so many fresh processes at once; what each returned, in order."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh, initializer=_end_with_parent) as pool:
        try:
            return list(pool.map(call, range(processes)))
        except BrokenProcessPool:
            raise ValueError(
                "a process was killed before its end; perhaps it lacks memory: expected fewer "
                "heads, shorter lengths or a smaller batch"
            ) from None
        except BaseException:
            # the pool would wait for all of them, after Ctrl-C too
            for child in multiprocessing.active_children():
                child.kill()
            raise


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # it was started by `together`
    end_after(parent.join)
