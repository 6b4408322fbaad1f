"""Ctrl-C as a request: what runs comes to a place where nothing is lost, and stops there."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """Asked to stop in the middle of an evaluation."""


@contextmanager
def stop_gently() -> Iterator[list[bool]]:
    """The first Ctrl-C (or SIGTERM) asks for a stop; a second one stops at once.

    A run stops after its step, an evaluation after its batch.
    """
    asked: list[bool] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: nobody presses Ctrl-C on us
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
