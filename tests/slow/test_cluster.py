"""Sweeps on a real Ray cluster of two nodes, all on this machine: what dies, stops and meets."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from chacal._files import read_json
from chacal.experiments.files import table_file
from chacal.experiments.job import failure_file
from chacal.experiments.reproduce import reproduce
from chacal.report.files import read_table
from chacal.training.lock import LOCK, alone

pytest.importorskip("ray")

TESTS = Path(__file__).parent.parent
TABLE = "tab:ablation_branches"
PATIENCE = 600
"""Seconds; a busy machine is slow, and one that hangs is told."""

SWEEP = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from tables import FakeTable
from test_sweep import cell, sweep
from chacal.experiments.ray_engine import OnRay
from chacal.training.runs import Interrupted
try:
    table = sweep(FakeTable({cells}), Path({out!r}), seeds=(0,), engine=OnRay(address={address!r}))
except Interrupted as stopped:
    print(stopped, file=sys.stderr)
    sys.exit(130)
"""
ENDLESS = "steps=10**7, checkpoint_every=10**7, eval_every=10**7"


@pytest.fixture(scope="module")
def cluster():
    """A head with room for three cells; a test adds the second node, with room for one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # or busy neighbours starve it
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80 * 2**20}
        made = Cluster(
            initialize_head=True,
            head_node_args={**small, "num_cpus": 3, "include_dashboard": False},
        )
        made.add_second = lambda: made.add_node(**small, num_cpus=1)
        yield made
        made.shutdown()


@pytest.fixture
def start():
    """Start Python; what is left of it at the end is killed."""
    started = []

    def call(*args):
        process = subprocess.Popen(
            [sys.executable, *map(str, args)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


def wait_until(what, process=None):
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def ended(process):
    """Its exit code, and what it said."""
    out, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, out + errors


def jobs(above=None):
    """Processes of jobs, of all or below one."""
    every = psutil.Process(above).children(recursive=True) if above else psutil.process_iter()
    found = []
    for process in every:
        try:
            if "chacal.experiments.job" in process.cmdline():
                found.append(process)
        except psutil.Error:  # it ended meanwhile
            pass
    return found


def untimed(table):
    """A table as its file has it, without times and who made it."""

    def strip(data):
        if isinstance(data, dict):
            return {k: strip(v) for k, v in data.items() if "seconds" not in k and k != "machines"}
        return [strip(x) for x in data] if isinstance(data, list) else data

    return strip(read_json(table))


def test_a_table_outlives_a_node(cluster, start, tmp_path):
    second = cluster.add_second()
    raylet = second.all_processes["raylet"][0].process.pid
    quiet, torn = tmp_path / "quiet", tmp_path / "torn"
    sweep = start("-m", "chacal", "reproduce", TABLE, "--scale", "smoke", "--engine", "ray",
                  "--address", cluster.address, "--out", torn)  # fmt: skip
    # the job on the second node has begun to write, and dies with its machine
    logs = torn / "runs"

    def written():
        pids = {read_json(f)["pid"]: f.parent for f in logs.glob(f"*/{LOCK}") if f.stat().st_size}
        lost = [job for job in jobs(raylet) if job.pid in pids]
        return [(job, pids[job.pid]) for job in lost if (pids[job.pid] / "metrics.jsonl").exists()]

    ((job, folder),) = wait_until(written, sweep)
    for process in (job.parent(), job):  # the task first, or it would tell of its job's end
        process.kill()
    cluster.remove_node(second, allow_graceful=False)
    assert not (folder / "result.json").exists()
    code, said = ended(sweep)
    assert code == 0, said
    # Ray tells that a node is gone after a moment, in which a table this small may be done
    assert said.count("is lost; what ran there goes on") <= 1
    assert "5 of 5 done" in said
    reproduce(TABLE, scale="smoke", out=quiet, quiet=True)
    assert untimed(table_file(TABLE, torn)) == untimed(table_file(TABLE, quiet))
    runs = [f.relative_to(quiet) for f in (quiet / "runs").iterdir()]
    assert len(runs) == 5
    for run in runs:
        (evaluation,) = (f.name for f in (quiet / run).glob("evaluation-*.json"))
        assert (torn / run / evaluation).read_bytes() == (quiet / run / evaluation).read_bytes()
        # the header of such a file has its metadata in any order
        one, two = (load_file(out / run / "best.safetensors") for out in (torn, quiet))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
    assert not list(torn.rglob(f"{LOCK}*"))


def program(cluster, out, *cells):
    return SWEEP.format(
        paths=[str(TESTS), str(TESTS / "experiments")], out=str(out), address=cluster.address,
        cells=", ".join(cells),
    )  # fmt: skip


def test_two_sweeps_at_once_and_a_cell_that_fails(cluster, start, tmp_path):
    out = tmp_path / "smoke"
    cells = ('cell("good", "dense", steps=30)', 'cell("bad", "chacal", device="cuda")')
    both = [start("-c", program(cluster, out, *cells)) for _ in range(2)]
    for one in both:
        code, said = ended(one)
        assert code == 0, said
    told = {c.row: c.runs["0"] for c in read_table(table_file("tab:boxes", out)).cells}
    assert {row: run.state for row, run in told.items()} == {"bad": "failed", "good": "done"}
    assert "device is 'cuda' and torch sees none" in told["bad"].why
    (log,) = (out / "runs").glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line["step"] for line in lines if "lr" in line]
    assert steps == sorted(set(steps)), "it ran once"
    assert steps[-1] == 30
    assert not failure_file(log.parent).exists()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_on_after_its_sweep(cluster, start, tmp_path, stop):
    out = tmp_path / "smoke"
    sweep = start("-c", program(cluster, out, f'cell("a", "chacal", {ENDLESS})'))
    runs = out / "runs"
    wait_until(lambda: list(runs.glob("*/metrics.jsonl")), sweep)
    (lock,) = runs.glob(f"*/{LOCK}")
    job = read_json(lock)["pid"]
    os.kill(sweep.pid, stop)
    code, said = ended(sweep)
    if stop == signal.SIGINT:
        assert code == 130, said
        assert "0 of 1 cells done; the same command goes on from there" in said
        assert not psutil.pid_exists(job), "it is waited for"
        assert not lock.exists()
        assert (lock.parent / "last.safetensors").exists(), "it saved its step"
    # of a sweep that is killed, Ray kills the jobs
    wait_until(lambda: not psutil.pid_exists(job))
    with alone(lock.parent, wait=False):
        pass
