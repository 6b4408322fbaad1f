"""However a command ends, it says so in one line that a person can read."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest
import torch

from chacal._echo import MOST_SAID, one_line, shown
from chacal.commands import cli
from chacal.tasks.stories import parse_story
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.loop import train

ENDLESS = [
    "train", "chains", "--blocks", "4", "--block-size", "4", "--width", "16", "--heads", "2",
    "--batch-size", "8", "--steps", str(10**7), "--eval-every", str(10**7), "--eval-examples",
    "16", "--checkpoint-every", "5", "--log-every", "1",
]  # fmt: skip


def wait_for(what, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not what() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it was stopped"


@pytest.mark.parametrize("gap", [0.0, 0.002, 0.05])
def test_ctrl_c_twice_at_a_terminal(tmp_path, gap):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "chacal", *ENDLESS, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    wait_for((tmp_path / "run" / "last.safetensors").exists, process)
    process.send_signal(signal.SIGINT)
    time.sleep(gap)
    process.send_signal(signal.SIGINT)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # so Linux tells that the other end is closed
        pass
    os.close(ours)
    # the second may come when all is said
    assert process.wait(60) in (130, -signal.SIGINT)
    text = said.decode().replace("\x1b[?25h", "")  # which shows the cursor again
    assert "Traceback" not in text
    last = text.strip().splitlines()[-1]
    assert last.startswith("chacal: ")
    assert "--resume" in last


def test_ctrl_c_outside_the_steps_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("chacal.training.loop._Loop.finish", stop)
    with pytest.raises(
        Exception, match=r"interrupted; the last checkpoint is kept.*--resume --out"
    ):
        train(tiny(), tmp_path / "run", quiet=True)


def tiny(**settings):
    from chacal.tasks import Chains

    sizes = {"steps": 2, "batch_size": 4, "eval_examples": 4, "test_examples": 4}
    return RunConfig(
        task=Chains(blocks=3, block_size=4),
        model=ModelConfig(width=8, heads=2),
        train=TrainConfig(**sizes, **settings),
    )


@pytest.fixture
def half(tmp_path):
    """A run that was stopped before its test."""
    train(tiny(), tmp_path / "run", quiet=True)
    (tmp_path / "run" / "result.json").unlink()
    return tmp_path / "run"


WEIGHT = "optimizer.embed.weight.exp_avg"


def foreign(tensors):
    tensors["optimizer.foo.exp_avg"] = tensors.pop(WEIGHT)


def unknown_state(tensors):
    tensors["optimizer.embed.weight.momentum"] = tensors.pop(WEIGHT)


def missing(tensors):
    del tensors[WEIGHT]


def misshapen(tensors):
    tensors[WEIGHT] = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (foreign, r"optimizer\.foo\.exp_avg is of no weight"),
        (unknown_state, r"optimizer\.embed\.weight\.momentum is of no weight"),
        (missing, r"optimizer\.embed\.weight\.exp_avg is missing"),
        (misshapen, r"has shape \(2, 3\) and torch.float32; expected"),
    ],
)
def test_a_foreign_state_of_the_optimiser_is_named(half, damage, words):
    from chacal.training.checkpoint import load_checkpoint, save_checkpoint

    tensors, progress = load_checkpoint(half / "last.safetensors")
    damage(tensors)
    save_checkpoint(half / "last.safetensors", tensors, progress)
    with pytest.raises(ValueError, match=words):
        train(tiny(), half, resume=True, quiet=True)


def test_what_is_echoed_is_cut():
    long = "The key " + "is " * 400_000
    with pytest.raises(ValueError, match="expected a period at the end") as error:
        parse_story(long, 7)
    assert len(str(error.value)) < 1000
    assert "1,200,007 characters" in str(error.value)
    assert shown("short\n") == r"'short\n'"
    assert shown(list(range(10**5))).startswith("[0, 1, 2,")
    assert len(shown(list(range(10**5)))) < 400


def test_a_message_is_one_line_that_no_terminal_obeys():
    assert one_line("a\n  b\x1b[2Jc") == r"a b\x1b[2Jc"
    assert len(one_line("x" * 10**6)) < MOST_SAID + 100
    kept = one_line("begin " + "x" * 10**6 + "; expected less")
    assert kept.startswith("begin")
    assert kept.endswith("expected less")


def command(capsys, monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["chacal", *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ("track", "The key " + "is " * 10**5),
        ("train", "x" * 10**6),
        ("train", "chains", "--operator", "x" * 10**6),
        ("train", "chains", "--steps", "9" * 10**5),
        ("train", "chains", "--positions", "x" * 10**6),
        ("bench", "ops", "window@" + "9" * 4000),
        ("reproduce", "tab:" + "x" * 10**6),
        ("eval", "x/" * 10**5),
    ],
    ids=lambda args: " ".join(args)[:30],
)
def test_long_arguments_are_not_echoed_whole(args, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, said = command(capsys, monkeypatch, *args)
    assert code == 2
    assert said.count("\n") == 1
    assert len(said) < MOST_SAID + 100


@pytest.mark.parametrize(
    ("error", "one"),
    [
        (MemoryError("Unable to allocate 512. GiB for an array"), True),
        (OverflowError("int too big to convert"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to\n..."), True),
        (RuntimeError("CUDA out of memory. Tried"), True),
        (RuntimeError("a fault of our own"), False),
    ],
)
def test_an_allocator_s_error_is_one_line(error, one, capsys, monkeypatch):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr("chacal.commands.bench.bench_operators", fail)
    if one:
        code, said = command(capsys, monkeypatch, "bench", "ops")
        assert code == 2
        assert said.startswith("chacal: memory ran out: ")
        assert said.count("\n") == 1
    else:
        with pytest.raises(RuntimeError, match="a fault of our own"):
            command(capsys, monkeypatch, "bench", "ops")


def test_the_survivor_of_a_killed_process_says_so(tmp_path):
    """Without torchrun itself, whose own report would stand around it."""
    out = tmp_path / "run"
    common = {
        **os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "chacal", *ENDLESS, "--out", str(out)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        wait_for((out / "last.safetensors").exists, ranks[0])
        ranks[1].kill()
        _, said = ranks[0].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 2, said
    assert "Traceback" not in said
    ours = [line for line in said.splitlines() if line.startswith("chacal: ")]
    assert len(ours) == 1
    assert "rank 1 of this run ended: " in ours[0]
    assert "--resume" in ours[0]


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
