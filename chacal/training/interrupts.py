"""Ctrl-C in a run: the first asks for a stop after the step, a second one stops at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chacal.training.runs import Interrupted, RunFolder


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


@contextmanager
def told_how_to_go_on(out: str | Path) -> Iterator[None]:
    """A second Ctrl-C, or one outside the steps, loses only what came after the checkpoint."""
    try:
        yield
    except KeyboardInterrupt:
        if not RunFolder(out).last.exists():
            raise
        raise Interrupted(
            f"interrupted; the last checkpoint is kept: go on with --resume --out {out}"
        ) from None
