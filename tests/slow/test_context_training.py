"""`chacal train --context-parallel`: processes that share texts learn what one learns."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

ARGS = [
    "train", "chains", "--blocks", "4", "--block-size", "5", "--width", "16", "--heads", "2",
    "--batch-size", "4", "--steps", "6", "--eval-every", "3", "--eval-examples", "10",
    "--test-examples", "8", "--checkpoint-every", "3", "--log-every", "1", "--operators",
    "chacal,window@5,routed@4,gamma=learn:0.5",
]  # fmt: skip

ALONE = [sys.executable, "-m", "chacal"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def together(processes):
    """torchrun's call with so many processes."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(processes), "-m", "chacal",
    ]  # fmt: skip


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def same(ours, theirs):
    """Losses and metrics of every step, of the test, and the weights."""
    for one, other in zip(lines(ours), lines(theirs), strict=True):
        numbers = {k: v for k, v in one.items() if k not in ("seconds", "tokens")}
        assert numbers == pytest.approx({k: other[k] for k in numbers}, abs=1e-5)
        assert one["tokens"] == other["tokens"]
    tests = [json.loads((out / "result.json").read_text())["test"] for out in (ours, theirs)]
    assert tests[0] == pytest.approx(tests[1], abs=1e-5)
    weights = [load_file(out / "last.safetensors") for out in (ours, theirs)]
    for key in (k for k in weights[1] if k.startswith("model.")):
        assert (weights[0][key] - weights[1][key]).abs().max() < 1e-3, key  # AdamW divides by √v


@pytest.fixture(scope="module")
def alone(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "alone"
    run(*ALONE, *ARGS, "--out", out, env=ENV)
    return out


def test_two_share_texts(run, alone, tmp_path):
    run(*together(2), *ARGS, "--out", tmp_path, "--context-parallel", 2, env=ENV, timeout=240)
    same(tmp_path, alone)


def test_beside_fsdp(run, alone, tmp_path):
    """Four processes: two by two they share texts, and all share the weights."""
    run(
        *together(4), *ARGS, "--out", tmp_path, "--context-parallel", 2, "--fsdp", env=ENV,
        timeout=240,
    )  # fmt: skip
    same(tmp_path, alone)


def test_another_number_of_processes_goes_on(run, alone, tmp_path):
    """Three steps by one process, and three by two that share texts."""
    run(*ALONE, *ARGS, "--steps", 3, "--out", tmp_path, env=ENV)
    config = json.loads((tmp_path / "config.json").read_text())
    config["train"]["steps"] = 6
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "result.json").unlink()
    run(
        *together(2), *ARGS, "--out", tmp_path, "--context-parallel", 2, "--resume", env=ENV,
        timeout=240,
    )  # fmt: skip
    same(tmp_path, alone)


def test_a_rank_that_dies_is_named_once(tmp_path, free_port):
    """Of three that share texts; without torchrun, whose own report would stand around it."""
    endless = [*ARGS, "--out", str(tmp_path), "--context-parallel", "3", "--steps", "100000"]
    ranks = [
        subprocess.Popen(
            [*ALONE, *endless, "--checkpoint-every", "1"], text=True, stderr=subprocess.PIPE,
            env={
                **ENV, "WORLD_SIZE": "3", "RANK": str(rank), "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port),
            },
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        until = time.monotonic() + 90
        while not (tmp_path / "last.safetensors").exists():
            assert time.monotonic() < until, "no step was taken"
            assert all(rank.poll() is None for rank in ranks), ranks[0].stderr.read()
            time.sleep(0.1)
        ranks[1].send_signal(signal.SIGKILL)
        said = [rank.communicate(timeout=60)[1] for rank in (ranks[0], ranks[2])]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [2, -signal.SIGKILL, 2], said
    told = [line for text in said for line in text.splitlines() if line.startswith("chacal: ")]
    assert len(told) == 1, said
    assert re.match(r"chacal: rank 1 of this run ended: .*--resume goes on from it$", told[0])
    assert "Traceback" not in "".join(said)
