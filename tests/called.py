"""The command called in this process: importing torch again for each call would take the time."""

import contextlib
import io
import sys
from typing import NamedTuple

import pytest

from chacal.commands.cli import main

TINY = [
    "train", "chains", "--blocks", "3", "--block-size", "4", "--width", "16", "--heads", "2",
    "--batch-size", "8", "--steps", "6", "--eval-every", "2", "--checkpoint-every", "2",
    "--eval-examples", "8", "--test-examples", "16", "--log-every", "1",
]  # fmt: skip


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def chacal(*args):
    """What a person sees of the command."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["chacal", *map(str, args)])
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Done(code, out.getvalue(), err.getvalue())


def refused(done, *words):
    """Exit code 2 and one line, with these words in it."""
    assert done.returncode == 2, done
    lines = [line for line in done.stderr.splitlines() if line.startswith("chacal: ")]
    assert len(lines) == 1, done.stderr
    assert done.stderr.rstrip().endswith(lines[0]), done.stderr
    for word in map(str, words):
        assert word in lines[0], done.stderr
