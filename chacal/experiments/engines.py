"""What runs the jobs of a sweep: on this machine, or on a cluster (`ray_engine.py`).

An engine keeps nothing that its death would lose: what is done, what failed and how far a run is
lies in the run folders. So it can be stopped, killed and exchanged for another at any time.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chacal.experiments.apart import Asked, perform_apart
from chacal.experiments.job import Job, describe_error, perform, record_failure
from chacal.experiments.progress import Progress
from chacal.training.distributed import LostProcess
from chacal.training.runs import Interrupted
from chacal.training.torchrun import rank, under_torchrun

STOPPING = "stopping: the cells that run finish a step and save"


class Engine(Protocol):
    """Performs jobs, each at most once, whoever else is at the same folder."""

    def perform(
        self, pending: Sequence[Job], runs: Path, show: Progress
    ) -> Iterator[tuple[Job, str]]:
        """Perform jobs in folders below `runs`; yields each with why it failed, or "".

        However it is left, no job runs on.
        """


@dataclass(frozen=True)
class Local:
    """This machine: one job after another in this process, or several in processes of their own.

    A thread waits for each of those. A pool of processes would lose every job that runs with the
    first that is killed for its memory, and pass what one job left in a process on to the next.
    """

    jobs: int = 1

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}; expected at least 1")
        if self.jobs > 1 and under_torchrun():
            raise ValueError(
                f"jobs is {self.jobs} under torchrun; expected 1, whose processes share it"
            )

    def perform(
        self, pending: Sequence[Job], runs: Path, show: Progress
    ) -> Iterator[tuple[Job, str]]:
        """One at a time, or `jobs` at once."""
        if self.jobs > 1:
            with terminable():
                yield from self._beside(pending, runs, show)
            return
        for job in pending:
            show.started(job.id)
            yield job, perform_here(job, runs / job.id)

    def _beside(
        self, pending: Sequence[Job], runs: Path, show: Progress
    ) -> Iterator[tuple[Job, str]]:
        stop = threading.Event()

        def one(job: Job) -> str:
            show.started(job.id)
            asked = Asked(job=job.to_json(), folder=runs / job.id, command=sys.argv)
            return perform_apart(asked, stop)

        with ThreadPoolExecutor(self.jobs) as pool:
            futures = {pool.submit(one, job): job for job in pending}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            finally:
                if not all(future.done() for future in futures):
                    show.note(STOPPING)
                stop.set()
                pool.shutdown(cancel_futures=True)


def perform_here(job: Job, folder: Path) -> str:
    """Perform a job in this process; why it failed, or ""."""
    try:
        perform(job, folder)
    except (Interrupted, LostProcess):
        raise
    except Exception as error:  # whatever it is, the others go on
        why = describe_error(error)
        if not rank():
            record_failure(folder, why)
        return why
    return ""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that jobs are stopped before we are."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
