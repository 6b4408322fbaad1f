"""resolvent.c as a library of this machine: compiled at first use, kept in the cache folder.

A library is kept under a hash of the source, the compiler, its options and the processor, so that
a cache that several machines share holds one for each. It takes a second or three, once. Without a
compiler, with CHACAL_NATIVE=0 in the environment and on Windows there is none.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from chacal._files import cache_folder

SOURCE = Path(__file__).with_name("resolvent.c")

OPTIONS = ("-O3", "-std=gnu11", "-shared", "-fPIC")
THIS_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())
"""The first of these that the compiler takes; on ARM some take only the second."""

PATIENCE = 120
"""Seconds after which a compiler is given up."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled source, or None; why there is none is told once, if it ought to be there."""
    if os.environ.get("CHACAL_NATIVE") == "0" or sys.platform == "win32":
        return None
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(compiled(compiler)))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        warnings.warn(
            f"{shlex.join(compiler)} did not make chacal's library for this processor ({error}), "
            "so exact ChaCAL runs as plain PyTorch, 1.1 to 3 times as long; expected gcc or clang. "
            "CHACAL_NATIVE=0 in the environment keeps it from trying",
            stacklevel=2,
        )
        return None


def find_compiler() -> tuple[str, ...] | None:
    """CC of the environment, as make has it, or the first C compiler that is there."""
    if asked := shlex.split(os.environ.get("CC", "")):
        return tuple(asked)
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else (found,)


def compiled(
    compiler: Sequence[str], options: Sequence[str] = OPTIONS, folder: Path | None = None
) -> Path:
    """The library's file, made if it is not there.

    Args:
        compiler: its command.
        options: what it is given beside the files and the processor.
        folder: where libraries are kept; None is the cache folder, or one of this process if that
            cannot be written to.

    Raises:
        ValueError: with the first line of what the compiler said.
    """
    parts = (SOURCE.read_text(encoding="utf-8"), *compiler, *options, *_processor())
    mark = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = _folder() if folder is None else folder
    path = folder / f"resolvent-{mark}.so"
    if path.exists():
        return path
    said = ""
    with tempfile.TemporaryDirectory(dir=folder) as room:
        made = Path(room, path.name)
        for processor in THIS_PROCESSOR:
            command = [*compiler, *options, *processor, "-o", str(made), str(SOURCE)]
            done = subprocess.run(
                [*command, "-lm", "-lpthread"], capture_output=True, text=True, timeout=PATIENCE
            )
            if done.returncode == 0:
                os.replace(made, path)  # whole or not at all, whoever else is making it
                return path
            said = said or next(iter(done.stderr.strip().splitlines()), f"exit {done.returncode}")
    raise ValueError(said)


def _folder() -> Path:
    try:
        folder = cache_folder() / "native"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    except (OSError, RuntimeError):  # no home
        pass
    return _own_folder()


@functools.cache
def _own_folder() -> Path:
    """A folder of this process, where the cache folder cannot be written to or is another's."""
    folder = tempfile.mkdtemp(prefix="chacal-native-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """What machine code may depend on."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    kinds = ("model name", "flags", "Features", "CPU part", "isa")
    first = dict.fromkeys(line for line in lines if line.startswith(kinds))
    return (platform.machine(), platform.processor(), *first)
