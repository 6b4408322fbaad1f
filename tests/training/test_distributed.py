"""Two processes take the steps that one takes."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

ARGS = [
    "train", "chains", "--blocks", "4", "--block-size", "4", "--width", "16", "--heads", "2",
    "--batch-size", "8", "--steps", "16", "--eval-every", "8", "--eval-examples", "20",
    "--test-examples", "32", "--checkpoint-every", "8", "--log-every", "1", "--accumulate", "2",
]  # fmt: skip


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "split" not in line], [
        line["accuracy"] for line in lines if "split" in line
    ]


def launch(out, *extra):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "chacal", *ARGS, "--out", str(out), *extra,
    ]  # fmt: skip
    # a hang at exit, which gloo is prone to, fails instead of stopping the suite
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "alone"
    done = subprocess.run([sys.executable, "-m", "chacal", *ARGS, "--out", str(out)])
    assert done.returncode == 0
    return out


@pytest.mark.parametrize("extra", [(), ("--fsdp",)], ids=["ddp", "fsdp"])
def test_two_processes_learn_what_one_learns(alone, tmp_path, extra):
    launch(tmp_path / "two", *extra)
    ours, theirs = losses(tmp_path / "two"), losses(alone)
    assert len(ours[0]) == 16
    torch.testing.assert_close(torch.tensor(ours[0]), torch.tensor(theirs[0]), atol=1e-4, rtol=0)
    assert ours[1] == pytest.approx(theirs[1], abs=1e-2)
    final = [load_file(run / "last.safetensors") for run in (tmp_path / "two", alone)]
    weights = [k for k in final[1] if k.startswith(("model.", "optimizer."))]
    assert set(weights) <= set(final[0])
    for key in weights:
        torch.testing.assert_close(final[0][key], final[1][key], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("extra", [(), ("--fsdp",)], ids=["ddp", "fsdp"])
def test_two_processes_resume(tmp_path, extra):
    out = tmp_path / "run"
    launch(out, *extra)
    whole = load_file(out / "last.safetensors")
    halfway = tmp_path / "half"
    launch(halfway, *extra, "--steps", "8")
    # the first 8 steps of 16, as a stop at step 8 leaves them
    config = json.loads((out / "config.json").read_text())
    (halfway / "config.json").write_text(json.dumps(config))
    (halfway / "result.json").unlink()
    launch(halfway, *extra, "--resume")
    again = load_file(halfway / "last.safetensors")
    assert whole.keys() == again.keys()
    for key in whole:
        assert whole[key].equal(again[key]), key
