"""One process at a time in a run's folder: a second one would mix its metrics with the first's.

The lock is the kernel's, on a file in the folder, so that of a process that died holds nobody up,
however it died. What the file says is for people: who is at it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from chacal._files import parse_json
from chacal._plain import member

LOCK = ".lock"


@contextmanager
def alone(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold a folder's lock; a folder that is made for it and gets nothing is taken away again.

    Args:
        folder: of a run, or where one will be.
        wait: whether a process that holds it is waited for; it is told of and refused otherwise.
    """
    try:
        import fcntl  # noqa: F401 - only whether it is there
    except ImportError:  # no such locks on this system: one run at a time is up to the user
        yield
        return
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected a folder that is not there yet")
    new = not folder.exists()
    file = _take(folder, wait)
    try:
        yield
    finally:
        # removed while it is held; who waits for it finds that it is the lock no more
        (folder / LOCK).unlink(missing_ok=True)
        if new:
            with suppress(OSError):  # it holds a run now
                folder.rmdir()
        file.close()


def _take(folder: Path, wait: bool) -> IO[bytes]:
    import fcntl

    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
        except FileNotFoundError:  # the one before took its folder away just now
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise ValueError(
                    f"{folder} is in use by {_who(file.read(1000))}; expected a folder that no "
                    f"run is writing (wait for it, or give another --out)"
                ) from None
        except OSError:  # a file system without locks
            return file
        if _is_at(file, path):
            break
        file.close()
    me = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    with suppress(OSError):  # a full disk holds no run up here
        file.truncate(0)
        file.write(json.dumps(me).encode())
        file.flush()
    return file


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether the file that we hold is the one that others will find."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _who(text: bytes) -> str:
    try:
        data = parse_json(text, LOCK)
        pid, host, since = (
            member(data, name, kind, LOCK)
            for name, kind in (("pid", int), ("host", str), ("since", str))
        )
    except ValueError:  # it has only just begun
        return "another process"
    return f"process {pid} on {host} since {since}"
