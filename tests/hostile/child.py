"""One command in a process of its own, that can neither fill the memory nor go on for ever.

The process is a fork of this one, in which everything is imported: a fresh Python would take
seconds, and thousands are wanted. It has one more gigabyte than it starts with, so a size that
should have been refused ends as a traceback and not with the machine. Whoever is still at work
after a while is interrupted, as with Ctrl-C; whoever goes on then, hangs.
"""

import contextlib
import gc
import importlib
import io
import os
import pkgutil
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
import warnings
from functools import cache
from typing import NamedTuple

import chacal
from chacal.commands.cli import main

PATIENCE = 1.5
"""Seconds until Ctrl-C."""

MERCY = 20.0
"""Seconds from there until a process counts as hanging: one large product may take a while."""

ROOM = 1 << 30
"""Bytes that a command may take."""

LONGEST = 2000
"""Characters of a message."""

CLEAN = (0, 1, 2, 130)


LOST = re.compile(r"Exception ignored in:? [^\n]*\nTraceback.*?^KeyboardInterrupt\b", re.M | re.S)
"""Python loses an interrupt that comes while a weak reference is cleared, and says so."""


PROGRESS = re.compile(r".*  step \d+/\d+  loss .*")
"""A step that was shown before a command failed."""


class Ended(NamedTuple):
    """What came of a command."""

    code: int | None
    """None: it had to be killed."""
    stdout: str
    stderr: str


class Found(AssertionError):
    """Something that a user should not have seen; `mark` is the same for the same fault."""

    def __init__(self, what: str, mark: str) -> None:
        super().__init__(what)
        self.mark = mark


@cache
def prepare() -> None:
    """Import what the commands would import, once for all forks."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", MPLBACKEND="agg")
    for name in ("tokenizers", "matplotlib.pyplot", "transformers", "torch._dynamo"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module in pkgutil.walk_packages(chacal.__path__, "chacal."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()  # or a collection in a fork would copy all of it


def run_line(args: list[str], cwd: str, stdin: bytes = b"", patience: float = PATIENCE) -> Ended:
    """`chacal ARGS` in a folder."""
    prepare()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _given(stdin) as told:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks beside threads, which wait
            pid = os.fork()
        if not pid:
            _become(args, cwd, told.fileno(), out.fileno(), err.fileno())
        code = _wait(pid, patience)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(code, *texts)


def judge(ended: Ended, what: str) -> None:
    """Raise `Found` unless the command ended as commands may."""
    text = f"{ended.stdout[-300:]}\n{ended.stderr[-3000:]}".strip()
    if ended.code is None:
        raise Found(f"{what}\nhangs; it was interrupted, then killed\n{text}", f"hang {what[:40]}")
    said = LOST.sub("", ended.stdout + ended.stderr)
    if ended.code not in CLEAN or "Traceback" in said:
        raise Found(f"{what}\nexit code {ended.code}\n{text}", fault(ended))
    if ended.code == 2:
        every = [line for line in ended.stderr.splitlines() if line.strip()]
        lines = [line for line in every if not PROGRESS.fullmatch(line)]
        if not lines:
            raise Found(f"{what}\nexit code 2 without a word", "silent")
        if len(lines) > 1 and not lines[0].startswith("Usage:"):
            raise Found(f"{what}\nmore than one line\n{text}", "lines " + lines[0][:60])
        if len(lines[0]) > LONGEST:
            raise Found(f"{what}\n{len(lines[0])} characters\n{text[:300]}", "long message")


def fault(ended: Ended) -> str:
    """The kind of a traceback and the last place in our own code."""
    places = re.findall(r'chacal/([\w/]+\.py)", line (\d+)', ended.stderr)
    kinds = re.findall(
        r"^([A-Za-z_.]+(?:Error|Exception|Interrupt|Panic\w*))\b", ended.stderr, re.M
    )
    kind = kinds[-1] if kinds else "no exception"
    return f"{kind} at {':'.join(places[-1]) if places else '?'} (exit code {ended.code})"


@contextlib.contextmanager
def _given(stdin: bytes):
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        yield file


def _become(args: list[str], cwd: str, *files: int) -> None:
    """In the fork: be the command, and never come back."""
    code = 99
    try:
        os.setsid()
        os.chdir(cwd)
        gc.callbacks.clear()  # hypothesis has one, in which a Ctrl-C would be lost
        for number, file in enumerate(files):
            os.dup2(file, number)
        # as Python opens them itself
        sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False), "utf-8", "strict")
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), "utf-8", "strict")
        sys.stderr = io.TextIOWrapper(
            os.fdopen(2, "wb", 0, closefd=False), "utf-8", "backslashreplace", write_through=True
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warnings.simplefilter("ignore")
        _limit()
        sys.argv = ["chacal", *args]
        # what multiprocessing starts must not import the tests again
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:  # whatever a user would see the traceback of
            code = 98
            traceback.print_exc()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _limit() -> None:
    if sys.platform == "linux":  # elsewhere the limit is not kept
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, now + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _wait(pid: int, patience: float) -> int | None:
    """The exit code; what the command started is ended with it."""
    started, pause = time.monotonic(), 0.001
    ask = patience  # when to interrupt it, and again: an interrupt can be `LOST`
    try:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            passed = time.monotonic() - started
            if passed > patience + MERCY:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None
            if passed > ask:
                os.kill(pid, signal.SIGINT)
                ask += MERCY / 2
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
