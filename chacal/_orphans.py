"""A process that was started to help another ends with it, however that one ended.

A parent that is killed tells nobody. But the system closes its end of every pipe, and a thread that
waits at the other end sees it, on every system.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

GRACE = 10.0
"""Seconds that an orphan has to finish its step and save."""


def end_after(parent_ended: Callable[[], object], grace: float = GRACE) -> None:
    """End this process once `parent_ended` returns, which is called in a thread of its own.

    It is asked as by SIGTERM first, which a run that trains answers by saving its last step.
    """

    def watch() -> None:
        parent_ended()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def end_with_input(number: int = 0) -> None:
    """End this process once the pipe at its standard input is closed; nothing else is read."""

    def closed() -> None:
        # not sys.stdin: a thread that waits in it cannot be left behind at the end
        while os.read(number, 4096):
            pass

    end_after(closed)
