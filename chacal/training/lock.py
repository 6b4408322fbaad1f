"""One process at a time in a run's folder: a second one would mix its metrics with the first's.

The lock is a file that only one process can make, on one machine or on many that share the folder.
Whether its maker still lives is told

- on one machine by the kernel, whose lock is on the file too. That of a process that died holds
  nobody up, however it died; that of one that is stopped (Ctrl-Z) holds for as long as it likes.
- between machines by a beat: the maker touches the file every few seconds. Who finds no beat for
  a whole `LEASE`, by its own clock, takes it for dead. The maker looks at each beat whether the
  lock is still its own, and ends at once where it is not: a machine that was cut off for longer
  than the lease does not write beside the one that went on.

What the file says is for people, too: who is at it.
"""

from __future__ import annotations

import errno
import json
import os
import random
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from chacal._files import parse_json
from chacal._plain import member

LOCK = ".lock"

BEAT = 5.0
"""Seconds between two signs of life."""

LEASE = 60.0
"""Seconds without one, after which the lock of another machine holds no more."""

LOOK = 0.2
"""Seconds between two looks at a lock that is waited for."""


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
    path = folder / LOCK
    file, text = _take(path, wait)
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(file, path, text, ended), daemon=True, name="lock")
    beat.start()
    try:
        yield
    finally:
        ended.set()
        beat.join()
        # removed while it is held; who waits for it finds that it is the lock no more
        with suppress(FileNotFoundError):
            if path.read_bytes() == text:
                path.unlink()
        if new:
            with suppress(OSError):  # it holds a run now
                folder.rmdir()
        file.close()


def _take(path: Path, wait: bool) -> tuple[IO[bytes], bytes]:
    """Make the lock's file, once nobody else has it; the file, and what it says."""
    watch = _Watch()
    looked = time.monotonic()
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), "r+b", 0)
        except FileNotFoundError:  # the one before took its folder away just now
            continue
        except PermissionError as error:
            # sshfs says so, for a moment, of a file that another machine has just made
            if error.errno != errno.EPERM or time.monotonic() - looked > LEASE:
                raise
            time.sleep(LOOK)
            continue
        except FileExistsError:
            looked = time.monotonic()
            try:
                with open(path, "r+b") as theirs:
                    if not _take_away(theirs, path, watch, wait):
                        time.sleep(random.uniform(LOOK / 2, LOOK))
            except FileNotFoundError:  # it is gone already
                pass
            continue
        _flock(file, shared=False, block=True)
        me = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "boot": _boot(),
            "key": secrets.token_hex(8),
        }
        text = json.dumps(me).encode()
        try:
            return file, text[: os.write(file.fileno(), text)]
        except OSError:  # a full disk holds no run up here
            return file, b""


def _take_away(file: IO[bytes], path: Path, watch: _Watch, wait: bool) -> bool:
    """Take away a lock whose maker is dead; whether it is gone."""
    free = _flock(file, shared=True, block=False)
    held = free is False
    text = file.read(1000)
    owner = _owner(text)
    ours = (owner.get("boot"), owner.get("host")) == (_boot(), socket.gethostname())
    if not (free and ours) and (held or not watch.is_silent(file, text, told=not wait)):
        if not wait and (held or watch.beats):
            raise ValueError(
                f"{path.parent} is in use by {_who(owner)}; expected a folder that no run is "
                f"writing (wait for it, or give another --out)"
            )
        return False
    # of those on this machine who found it dead, only one passes here
    if _flock(file, shared=False, block=False) is False or not _is_at(file, path):
        return False
    aside = path.with_name(f"{LOCK}.{secrets.token_hex(8)}")
    os.rename(path, aside)
    if not _is_at(file, aside):
        # another machine was quicker by a moment, and this is its lock
        with suppress(FileExistsError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)
    return True


class _Watch:
    """Whether the lock of another machine shows signs of life. Clocks are never compared."""

    def __init__(self) -> None:
        self.beats = False
        self._seen: tuple[Any, ...] | None = None
        self._since = 0.0

    def is_silent(self, file: IO[bytes], text: bytes, *, told: bool) -> bool:
        """Look at it once; whether it did not change for a whole lease."""
        seen = (text, os.fstat(file.fileno()).st_mtime_ns)
        if seen != self._seen:
            self.beats = self._seen is not None and self._seen[0] == text
            if self._seen is None and told:
                print(
                    f"chacal: {file.name} is of {_who(_owner(text))}; looking for {LEASE:g} s "
                    f"whether that still lives",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since > LEASE


def _beat(file: IO[bytes], path: Path, text: bytes, ended: threading.Event) -> None:
    """Show signs of life; end this process if another took it for dead all the same."""
    while not ended.wait(BEAT):
        try:
            os.utime(file.fileno())
            there = path.read_bytes()
        except OSError:  # no answer, or another is about to make its own: the next beat tells
            continue
        if there != text:
            print(
                f"chacal: {path.parent} was taken over by {_who(_owner(there))}, which heard "
                f"nothing of this process for {LEASE:g} s; this one ends and writes no more",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            os._exit(1)  # nothing milder is sure to write nothing


def _flock(file: IO[bytes], *, shared: bool, block: bool) -> bool | None:
    """The kernel's lock: whether we have it; None on a file system that has none."""
    import fcntl

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind if block else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _boot() -> str:
    """Of this machine since it was started; "" where it has no such number."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether the file that we hold is the one that others will find."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(text: bytes) -> dict[str, Any]:
    """Who made a lock; empty if it has only just been made, or by nobody of ours."""
    try:
        data = parse_json(text, LOCK)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _who(owner: dict[str, Any]) -> str:
    try:
        pid, host, since = (
            member(owner, name, kind, LOCK)
            for name, kind in (("pid", int), ("host", str), ("since", str))
        )
    except ValueError:
        return "another process"
    return f"process {pid} on {host} since {since}"
