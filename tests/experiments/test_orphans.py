"""Nothing is left running: what a command started ends with it, even if it is killed."""

import os
import signal
import subprocess
import sys
import time

from tables import FakeTable
from test_sweep import cell

ENDLESS = {"steps": 10**7, "checkpoint_every": 50, "eval_every": 10**7, "log_every": 1}
BESIDE = FakeTable(cell("a", "chacal", **ENDLESS), cell("b", "dense", **ENDLESS))

SWEEP = """
import sys
sys.path[:0] = [{here!r}, {above!r}]
from pathlib import Path
from test_orphans import BESIDE
from test_sweep import sweep
sweep(BESIDE, Path({out!r}), seeds=(0,), jobs=2)
"""


def processes():
    """Parent and state of every process, by its number."""
    told = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in told.splitlines())
    return {int(pid): (int(parent), state) for pid, parent, state in rows}


def children(parent):
    return [pid for pid, (of, _) in processes().items() if of == parent]


def alive(pids):
    now = processes()
    # one that nobody has asked for its exit code yet is over all the same
    return [pid for pid in pids if pid in now and not now[pid][1].startswith("Z")]


def wait_until(what, seconds):
    deadline = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found, "waited in vain"


def check_that_children_end(process, begun, most=30):
    """Kill a process once it has begun, and see what it started end."""
    try:
        wait_until(begun, 120)
        started = children(process.pid)
        assert started
    finally:
        process.kill()
        process.wait()
    try:
        wait_until(lambda: not alive(started), most)
    finally:
        for pid in alive(started):
            os.kill(pid, signal.SIGKILL)


def test_the_jobs_of_a_killed_sweep_end(tmp_path):
    here = os.path.dirname(__file__)
    code = SWEEP.format(here=here, above=os.path.dirname(here), out=str(tmp_path / "smoke"))
    process = subprocess.Popen([sys.executable, "-c", code])
    logs = (tmp_path / "smoke" / "runs").glob
    check_that_children_end(process, lambda: len(list(logs("*/metrics.jsonl"))) == 2)
    # they were asked first, and saved what they had
    assert len(list(logs("*/last.safetensors"))) == 2


def test_the_measured_process_of_a_killed_bench_ends():
    command = ["bench", "ops", "chacal", "-n", "64", "--rounds", str(10**8), "--runs", "2"]
    process = subprocess.Popen([sys.executable, "-m", "chacal", *command])

    def measuring():
        # multiprocessing keeps a small process beside the one that measures
        return len(children(process.pid)) >= 2

    check_that_children_end(process, measuring)
