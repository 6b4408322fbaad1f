"""The C files of this folder as a library of this machine: compiled at first use, kept in a cache.

A library is kept under a hash of the source, the compiler, its options, the C library and the
processor, so that a cache that several machines share holds one for each. It ends with a hash of
itself, since half of one would end the process that loads it. Compiling takes some seconds, once;
where the cache folder cannot be written to or is open to others, once a process. Without a
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
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from chacal._files import cache_folder

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))

OPTIONS = ("-O3", "-std=gnu11", "-shared", "-fPIC")
THIS_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())
"""The first of these that the compiler takes; on ARM some take only the second."""

PATIENCE = 120
"""Seconds after which a compiler is given up."""


def library() -> ctypes.CDLL | None:
    """The compiled source, or None; why there is none is told once, if it ought to be there."""
    made = _made()
    if isinstance(made, str):
        _say(made)
        return None
    return made


@functools.cache
def _made() -> ctypes.CDLL | str | None:
    """The library, or what is to be said of why there is none."""
    if os.environ.get("CHACAL_NATIVE") == "0" or sys.platform == "win32":
        return None
    told = "CC of the environment"
    try:
        compiler = find_compiler()
        if compiler is None:
            return None
        told = shlex.join(compiler)
        return load(compiler)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return (
            f"{told} made no library for this processor ({error}), so ChaCAL runs as plain "
            "PyTorch, 1.2 to 3 times as long; expected gcc or clang. CHACAL_NATIVE=0 in the "
            "environment keeps chacal from trying"
        )


def _say(message: str, said: set[str] = set()) -> None:  # noqa: B006, one for the process
    if message not in said:
        said.add(message)
        warnings.warn(message, stacklevel=3)


def find_compiler() -> tuple[str, ...] | None:
    """CC of the environment, as make has it, or the first C compiler that is there."""
    if asked := shlex.split(os.environ.get("CC", "")):
        return tuple(asked)
    if sys.platform == "darwin":
        tools = subprocess.run(["xcode-select", "-p"], capture_output=True)
        if tools.returncode:
            return None  # cc is there, and would open a window that offers to install it
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else (found,)


def load(compiler: Sequence[str]) -> ctypes.CDLL:
    """The library of the cache folder; one of this process, if what lies there is no good."""
    try:
        return ctypes.CDLL(str(compiled(compiler)))
    except OSError:
        return ctypes.CDLL(str(compiled(compiler, folder=_own_folder())))


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
    texts = (file.read_text(encoding="utf-8") for file in SOURCES)
    parts = "\0".join((*texts, *compiler, *options, *_compiler(compiler[0]), *_processor()))
    mark = hashlib.sha256(parts.encode()).hexdigest()[:16]
    folder = _folder() if folder is None else folder
    path = folder / f"chacal-{mark}.so"
    if _is_whole(path):
        return path
    said, files = "", [str(file) for file in SOURCES if file.suffix == ".c"]
    with tempfile.TemporaryDirectory(dir=folder) as room:
        made = Path(room, path.name)
        for processor in THIS_PROCESSOR:
            command = [*compiler, *options, *processor, "-o", str(made), *files, "-lm", "-lpthread"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=PATIENCE,
            )  # fmt: skip
            if done.returncode == 0:
                _seal(made)
                os.replace(made, path)  # whole or not at all, whoever else is making it
                return path
            said = said or next(iter(done.stderr.strip().splitlines()), f"exit {done.returncode}")
    raise ValueError(said)


def _seal(path: Path) -> None:
    """Add a hash, which loaders pass over, and see to it that all is on the disk."""
    with path.open("r+b") as file:
        mark = hashlib.sha256(file.read()).digest()
        file.write(mark)
        file.flush()
        os.fsync(file.fileno())


def _is_whole(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data[:-32]).digest() == data[-32:]


def _folder() -> Path:
    """The cache folder, if nobody else may write to it."""
    try:
        folder = cache_folder() / "native"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_ = folder.lstat()
        ours = is_.st_uid == os.getuid() and not is_.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if stat.S_ISDIR(is_.st_mode) and ours and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # no home
        pass
    return _own_folder()


@functools.cache
def _own_folder() -> Path:
    """A folder of this process."""
    folder = tempfile.mkdtemp(prefix="chacal-native-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _compiler(name: str) -> tuple[str, ...]:
    """Which compiler and which C library it is."""
    path = Path(shutil.which(name) or name).resolve()
    at = path.stat() if path.exists() else None
    version = "" if at is None else f"{at.st_size} {at.st_mtime_ns}"
    return (str(path), version, *platform.libc_ver())


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """What machine code may depend on."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    kinds = ("model name", "flags", "Features", "CPU part", "isa", "cpu")
    first = dict.fromkeys(line for line in lines if line.partition(":")[0].strip() in kinds)
    return (platform.machine(), platform.processor(), *first)
