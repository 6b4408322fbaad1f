"""A job in a process of its own, which takes down nobody with it, and ends with who started it.

What engines with several jobs at once share: one calls this in a thread, the other on a node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from chacal.experiments.job import failure_file, record_failure
from chacal.experiments.records import read_failure
from chacal.training.runs import Interrupted

GRACE = 300.0
"""Seconds that a stopped job has to finish its step and save."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A job as its process is told of it: plain data that goes to another machine too.

    Attributes:
        job: as `Job.to_json` has it.
        folder: of the run.
        command: that a person gave; run folders tell it.
        threads: that it computes with.
        environment: what is changed of the environment.
        cwd: where paths of the user's own begin; "" for here.
    """

    job: Mapping[str, Any]
    folder: Path
    command: Sequence[str]
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""


def perform_apart(asked: Asked, stop: threading.Event) -> str:
    """Perform a job; why it failed, or "".

    Args:
        asked: the job.
        stop: set to have it finish its step, save and end. KeyboardInterrupt does the same.

    Raises:
        Interrupted: it was stopped.
    """
    with tempfile.TemporaryFile("w+") as errors, _start(asked, errors) as process:
        try:
            while process.poll() is None and not stop.wait(0.1):
                pass
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
        if stop.is_set():
            raise Interrupted
        return _why(process.wait(), asked.folder, errors)


def _start(asked: Asked, errors: IO[str]) -> subprocess.Popen[str]:
    """The job's process; Ctrl-C reaches it through us only."""
    sober = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "chacal.experiments.job"],
        stdin=subprocess.PIPE, stdout=errors, stderr=errors, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": str(asked.threads), **sober, **asked.environment},
        cwd=asked.cwd or None,
    )  # fmt: skip
    assert process.stdin is not None  # as it was asked for
    told = {"job": asked.job, "folder": str(asked.folder), "command": list(asked.command)}
    try:
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()  # and left open: its end tells the job that we are gone
    except BrokenPipeError:  # it died at once; its exit code and last words tell why
        pass
    return process


def _why(code: int, folder: Path, errors: IO[str]) -> str:
    """Why a job's process failed; "" if it did not. One that died leaves its last words."""
    if code == 0:
        return ""
    if code == 130:
        raise Interrupted
    if code != 1 or not failure_file(folder).exists():
        errors.seek(0)
        said = errors.read().strip()[-300:]
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        record_failure(folder, f"its process ended with {how}" + (f": {said}" if said else ""))
    return read_failure(failure_file(folder))
