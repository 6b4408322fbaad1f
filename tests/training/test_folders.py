"""A run's folder: one process at a time, nothing lost before something is won, full disks told."""

import builtins
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from called import TINY, chacal, refused

from chacal.training import checkpoint, lock, loop, replace, runs
from chacal.training.lock import LOCK, alone

HOLD = """
import sys, time
from pathlib import Path
from chacal.training.lock import alone
with alone(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != LOCK}


@pytest.fixture
def held(run):
    """The run while another process is at it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield run, process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("how", [(), ("--resume",), ("--force",)])
def test_a_second_run_says_who_is_at_the_folder(held, how):
    run, process = held
    before = files(run)
    done = chacal(*TINY, "--out", run, *how)
    refused(done, f"{run} is in use by process {process.pid} on", "since", "UTC", "--out")
    assert files(run) == before
    assert json.loads((run / LOCK).read_bytes())["pid"] == process.pid


def test_the_lock_of_a_dead_process_holds_nobody_up(held):
    run, process = held
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (run / LOCK).exists()
    done = chacal(*TINY, "--out", run, "--force")
    assert done.returncode == 0, done.stderr
    assert not (run / LOCK).exists()


def test_reading_needs_no_lock(held):
    assert chacal("eval", held[0], "--examples", "8").returncode == 0


def test_a_sweeps_job_waits(held):
    run, process = held
    killer = subprocess.Popen(
        [sys.executable, "-c", f"import os, time; time.sleep(1); os.kill({process.pid}, 9)"]
    )
    begun = time.monotonic()
    with alone(run, wait=True):
        assert time.monotonic() - begun > 0.2
        assert json.loads((run / LOCK).read_bytes())["pid"] == os.getpid()
    killer.wait()


def test_a_lock_is_not_taken_twice_however_it_is_passed_on(tmp_path):
    # who waits holds a file that is gone when it is let go; it must not count
    folder = tmp_path / "run"
    with alone(folder, wait=False):
        with pytest.raises(ValueError, match="is in use"), alone(folder, wait=False):
            pass
        assert (folder / LOCK).exists()
    assert not folder.exists()  # it got nothing


# a folder that machines share

ELSEWHERE = """
import fcntl, sys, time
from pathlib import Path
from chacal.training import lock
lock.BEAT, lock.LEASE = 0.2, 2.0
lock._boot = lambda: "another machine"
if "no-flock" in sys.argv:  # as where one machine sees nothing of another's
    def flock(*args):
        raise OSError
    fcntl.flock = flock
with lock.alone(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Hold a folder as from another machine."""
    monkeypatch.setattr(lock, "LEASE", 2.0)
    started = []

    def hold(*how):
        process = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE, str(tmp_path / "run"), *how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return tmp_path / "run", process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["flock", "no-flock"])
def test_a_run_on_another_machine_is_refused_or_waited_for(elsewhere, how):
    folder, process = elsewhere(how)
    expected = f"is in use by process {process.pid} on"
    with pytest.raises(ValueError, match=expected), alone(folder, wait=False):
        pass
    mine = alone(folder, wait=True)
    waits = threading.Thread(target=mine.__enter__, daemon=True)
    waits.start()
    waits.join(3.0)  # longer than a lease
    assert waits.is_alive(), "it beats, so it lives"
    process.kill()
    waits.join(30)
    assert not waits.is_alive()
    assert json.loads((folder / LOCK).read_bytes())["pid"] == os.getpid()
    mine.__exit__(None, None, None)


def test_a_machine_that_died_holds_a_lock_for_a_lease_and_no_longer(elsewhere, capsys):
    folder, process = elsewhere("no-flock")
    process.kill()
    process.wait()
    begun = time.monotonic()
    with alone(folder, wait=False):
        assert time.monotonic() - begun > 1.9
        assert json.loads((folder / LOCK).read_bytes())["pid"] == os.getpid()
    assert f"process {process.pid} on" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_of_many_who_find_a_dead_lock_one_takes_it(elsewhere):
    folder, process = elsewhere("no-flock")
    process.kill()
    process.wait()
    inside, most = [], []

    def take():
        with alone(folder, wait=True):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=take) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 12
    assert not list(folder.iterdir())


def test_a_machine_that_was_cut_off_writes_no_more_when_it_is_back(elsewhere):
    folder, process = elsewhere("no-flock")
    process.send_signal(signal.SIGSTOP)
    with alone(folder, wait=True):
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 1
        assert f"was taken over by process {os.getpid()} on" in process.stderr.read()
        assert json.loads((folder / LOCK).read_bytes())["pid"] == os.getpid()


def test_a_process_that_is_stopped_on_this_machine_keeps_its_lock(held, monkeypatch):
    monkeypatch.setattr(lock, "LEASE", 0.1)
    run, process = held
    process.send_signal(signal.SIGSTOP)
    for _ in range(3):
        with pytest.raises(ValueError, match="is in use"), alone(run, wait=False):
            pass
        time.sleep(0.2)


def test_what_is_left_of_a_lock_is_no_file_of_others(run):
    (run / f"{LOCK}.0123456789abcdef").write_text("{}")
    assert chacal(*TINY, "--out", run, "--force").returncode == 0


def test_only_the_first_of_torchruns_processes_takes_it(held, monkeypatch):
    def reached(*args, **options):
        raise RuntimeError("past the lock")

    monkeypatch.setattr(loop, "start", reached)
    monkeypatch.setattr(loop, "rank", lambda: 1)
    with pytest.raises(RuntimeError, match="past the lock"):
        chacal(*TINY, "--out", held[0])
    monkeypatch.setattr(loop, "rank", lambda: 0)
    refused(chacal(*TINY, "--out", held[0]), "is in use")


# what is left of a run


def test_a_folder_with_only_a_temporary_file(tmp_path):
    run = tmp_path / "run"
    for how, code in (((), 2), (("--resume",), 0), (("--force",), 0)):
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        (run / ".config.json.123").write_text('{"ta')
        done = chacal(*TINY, "--out", run, *how)
        assert done.returncode == code, done.stderr
        if code:
            refused(done, "killed at its start (.config.json.123)", "--resume or --force")
        assert (run / ".config.json.123").exists() == bool(code)
        assert (run / "result.json").exists() == (not code)


@pytest.mark.parametrize("config", [None, "", '{"task": 5}', "[" * 10_000])
def test_a_folder_whose_config_is_gone_or_damaged(run, config):
    (run / "config.json").unlink()
    if config is not None:
        (run / "config.json").write_text(config)
    before = files(run)
    refused(chacal(*TINY, "--out", run), "what is left of a run", "config.json", "--force")
    refused(chacal(*TINY, "--out", run, "--resume"), run, "config.json")
    assert files(run) == before
    done = chacal(*TINY, "--out", run, "--force", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "config.json").read_text())["train"]["seed"] == 3
    assert not (run / replace.REPLACED).exists()


def test_files_of_others_are_never_replaced(run):
    (run / "config.json").unlink()
    (run / "thesis.tex").write_text("years of work")
    before = files(run)
    refused(chacal(*TINY, "--out", run, "--force"), "holds other files (thesis.tex)")
    assert files(run) == before


# replacing a run


def test_a_run_that_fails_before_it_has_anything_leaves_the_old_one(run, monkeypatch):
    before = files(run)

    def fail(*args, **options):
        raise ValueError("no such luck")

    monkeypatch.setattr(loop._Loop, "one_step", fail)
    refused(chacal(*TINY, "--out", run, "--force", "--seed", "3"), "no such luck")
    assert files(run) == before
    assert not (run / replace.REPLACED).exists()
    # and one that fails later has taken its place
    monkeypatch.undo()
    monkeypatch.setattr(loop._Loop, "finish", fail)
    refused(chacal(*TINY, "--out", run, "--force", "--seed", "3"), "no such luck")
    assert json.loads((run / "config.json").read_text())["train"]["seed"] == 3
    assert not (run / "result.json").exists()
    monkeypatch.undo()
    assert chacal(*TINY, "--out", run, "--resume", "--seed", "3").returncode == 0


class Killed(BaseException):
    """As kill -9: nothing after it is done."""


@pytest.mark.parametrize("moment", range(14))
def test_no_moment_of_a_kill_loses_the_old_run(run, monkeypatch, moment):
    """A kill before any of the moves, writes and unlinks that replace a run; then --force again."""
    before = files(run)
    count = 0

    def killed(call):
        def counted(*args, **options):
            nonlocal count
            count += 1
            if count > moment:
                raise Killed
            return call(*args, **options)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed(os.replace))
        patch.setattr(runs, "put_back", killed(replace.put_back))
        patch.setattr(loop._Loop, "one_step", killed(loop._Loop.one_step))
        with pytest.raises(Killed):
            chacal(*TINY, "--out", run, "--force", "--seed", "3")
    config = run / "config.json"
    replaced = config.exists() and json.loads(config.read_text())["train"]["seed"] == 3
    if not (replaced and (run / "last.safetensors").exists()):
        # the new run has nothing: one that fails at once brings the old one back
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_Loop", lambda *args: (_ for _ in ()).throw(ValueError("no")))
            refused(chacal(*TINY, "--out", run, "--force", "--seed", "4"), "no")
        assert files(run) == before
    assert chacal(*TINY, "--out", run, "--force", "--seed", "5").returncode == 0
    assert sorted(files(run)) == sorted(before)


# a full disk


class Full:
    """A file on a disk that takes `room` bytes more, as the kernel says it."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        self.file.write(data[: self.room])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "last.safetensors"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_full_disk_names_the_file_and_how_to_go_on(finished, tmp_path, monkeypatch, name, at):
    run = tmp_path / "run"
    count = 0

    def full(path, *args, **options):
        nonlocal count
        file = builtins.open(path, *args, **options)  # noqa: SIM115 - the caller closes it
        if name not in str(path):
            return file
        count += 1
        return Full(file, 20) if count >= at else file

    with monkeypatch.context() as patch:
        patch.setattr(runs, "open", full, raising=False)
        done = chacal(*TINY, "--out", run)
    if name == "config.json" and at == 2:  # it is written once
        assert done.returncode == 0
        return
    refused(done, run / name, "No space left on device", f"--resume --out {run}")
    done = chacal(*TINY, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(run, finished)


def test_a_full_disk_while_replacing_brings_the_old_run_back(run, monkeypatch):
    before = files(run)

    def full(path, *args, **options):
        return Full(builtins.open(path, *args, **options), 20)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "open", full, raising=False)
        done = chacal(*TINY, "--out", run, "--force", "--seed", "3")
    refused(done, run / "config.json", "No space left", "the run that was there is back", "--force")
    assert files(run) == before


def assert_same(run, other):
    one, two = (checkpoint.load_checkpoint(folder / "last.safetensors") for folder in (run, other))
    assert one[0].keys() == two[0].keys()
    assert all(torch.equal(one[0][key], two[0][key]) for key in one[0])
    lines = [
        [
            {**json.loads(line), "seconds": 0}
            for line in (f / "metrics.jsonl").read_text().splitlines()
        ]
        for f in (run, other)
    ]
    assert lines[0] == lines[1]
