"""A run goes on bit for bit, whenever and however it was stopped."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from chacal.tasks import Chains
from chacal.training.config import RunConfig, defaults
from chacal.training.loop import train
from chacal.training.runs import Interrupted

ARGS = [
    "train", "chains", "--blocks", "4", "--block-size", "4", "--width", "16", "--heads", "2",
    "--batch-size", "8", "--steps", "200", "--eval-every", "50", "--eval-examples", "16",
    "--test-examples", "32", "--checkpoint-every", "7", "--dropout", "0.1", "--log-every", "5",
    "--warmup", "5", "--schedule", "cosine",
]  # fmt: skip


def chacal(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "chacal", *args], capture_output=True, text=True, **options
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing stops."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    done = chacal(*ARGS, "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


def metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return lines


def assert_same(run, whole):
    for name in ("last", "best"):
        ours, theirs = (load_file(folder / f"{name}.safetensors") for folder in (run, whole))
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert ours[key].equal(theirs[key]), f"{name}: {key}"
    assert metrics(run) == metrics(whole)
    results = [json.loads((folder / "result.json").read_text()) for folder in (run, whole)]
    assert results[0]["test"] == results[1]["test"]


@pytest.mark.parametrize(
    ("stop", "after"),
    [(signal.SIGINT, 10), (signal.SIGTERM, 25), (signal.SIGKILL, 5), (signal.SIGKILL, 60)],
)
def test_a_stopped_run_resumes_bit_for_bit(whole, tmp_path, stop, after):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "chacal", *ARGS, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    log = out / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and f'"step": {after},' in log.read_text():
            process.send_signal(stop)
            break
        time.sleep(0.002)
    _, errors = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.fail("the run ended before it was stopped; make it longer")
    if stop != signal.SIGKILL:
        assert process.returncode == 130
        assert "--resume" in errors
    assert not (out / "result.json").exists()
    done = chacal(*ARGS, "--out", str(out), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(out, whole)


def test_half_written_files_are_never_read(whole, tmp_path):
    out = tmp_path / "run"
    done = chacal(*ARGS, "--out", str(out))
    assert done.returncode == 0
    # what a crash during a write leaves: a file beside, and a cut line of metrics
    (out / "result.json").unlink()
    (out / ".last.safetensors.123").write_bytes((out / "last.safetensors").read_bytes()[:1000])
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"step": 200, "los')
    done = chacal(*ARGS, "--out", str(out), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(out, whole)


def test_a_run_that_reached_its_target_is_not_trained_on(tmp_path):
    args = [*ARGS, "--target", "0.2", "--out", str(tmp_path / "run")]
    assert chacal(*args).returncode == 0
    whole = json.loads((tmp_path / "run" / "result.json").read_text())
    assert whole["stopped"] == "target"
    assert whole["steps"] < 200
    (tmp_path / "run" / "result.json").unlink()  # as a kill during the final test leaves it
    assert chacal(*args, "--resume").returncode == 0
    again = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}


def test_a_finished_run_is_kept(whole):
    before = {p.name: os.stat(p).st_mtime_ns for p in whole.iterdir()}
    again = chacal(*ARGS, "--out", str(whole))
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    assert "--force" in again.stderr
    resumed = chacal(*ARGS, "--out", str(whole), "--resume")
    assert resumed.returncode == 0
    assert before == {p.name: os.stat(p).st_mtime_ns for p in whole.iterdir()}


def test_resuming_another_configuration_is_refused(whole):
    done = chacal(*ARGS, "--lr", "0.5", "--out", str(whole), "--resume")
    assert done.returncode == 2
    assert "train.lr is 0.5 and was 0.001" in done.stderr


def test_force_replaces_a_run_but_nothing_else(tmp_path):
    small = [*ARGS, "--steps", "2", "--out", str(tmp_path / "run")]
    assert chacal(*small).returncode == 0
    assert chacal(*small, "--seed", "1", "--force").returncode == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["seed"] == 1
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter1.tex").write_text("years of work")
    done = chacal(*ARGS, "--out", str(other), "--force")
    assert done.returncode == 2
    assert "holds other files" in done.stderr
    assert (other / "chapter1.tex").read_text() == "years of work"
    (other / "config.json").write_text('{"model_type": "gpt2"}')
    done = chacal(*ARGS, "--out", str(other), "--force")
    assert done.returncode == 2
    assert "holds other files" in done.stderr
    assert (other / "config.json").read_text() == '{"model_type": "gpt2"}'


def test_a_run_may_start_from_the_weights_of_another(whole, tmp_path):
    out = tmp_path / "next"
    # longer sequences, another seed, and no step that matters
    more = ["--seed", "3", "--steps", "1", "--lr", "1e-12", "--warmup", "0", "--weight-decay", "0"]
    done = chacal(*ARGS, *more, "--init", str(whole), "--out", str(out))
    assert done.returncode == 0, done.stderr
    before, after = (load_file(run / "best.safetensors") for run in (whole, out))
    for key in before:
        assert before[key].sub(after[key]).abs().max() < 1e-9
    assert json.loads((out / "config.json").read_text())["train"]["init"] == str(whole)


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(whole, tmp_path):
    out = tmp_path / "next"
    done = chacal(*ARGS, "--width", "32", "--init", str(whole), "--out", str(out))
    assert done.returncode == 2
    assert "is of another model" in done.stderr
    done = chacal(*ARGS, "--init", str(tmp_path / "nothing"), "--out", str(out))
    assert done.returncode == 2
    assert "nothing" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("split", ["valid", "test"])
def test_ctrl_c_in_an_evaluation_loses_nothing(tmp_path, monkeypatch, split):
    model, settings = defaults("chains")
    config = RunConfig(
        task=Chains(blocks=3, block_size=4),
        model=dataclasses.replace(model, width=16, heads=2, dropout=0.1),
        train=dataclasses.replace(
            settings, steps=6, batch_size=4, eval_every=3, eval_examples=40, test_examples=40,
            checkpoint_every=100, log_every=1,
        ),
    )  # fmt: skip
    train(config, tmp_path / "whole", quiet=True)
    made = []

    def pressed(self, which, seed, step, size, whole=Chains.batch):
        if which == split:
            made.append(step)
            if len(made) == 4:
                os.kill(os.getpid(), signal.SIGINT)
        return whole(self, which, seed, step, size)

    with monkeypatch.context() as patch:
        patch.setattr(Chains, "batch", pressed)
        with pytest.raises(Interrupted, match="--resume --out"):
            train(config, tmp_path / "run", quiet=True)
    assert len(made) == 4, "it stops after the batch, not after the evaluation"
    assert not (tmp_path / "run" / "result.json").exists()
    train(config, tmp_path / "run", resume=True, quiet=True)
    assert_same(tmp_path / "run", tmp_path / "whole")
