"""What a person sees of a sweep: cells done, running and left, and how long it may take."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from chacal._files import parse_json
from chacal._plain import member
from chacal.experiments.job import Job
from chacal.training.display import clock

RUNS_SHOWN = 6


class Progress:
    """Lines when piped; a few that stay in place on a terminal."""

    def __init__(
        self,
        name: str,
        total: int,
        done: int,
        runs: Path,
        pending: Sequence[Job],
        curves: Sequence[str] = (),
        *,
        quiet: bool = False,
    ) -> None:
        self.name, self.total, self.done, self.failed = name, total, done, 0
        self._runs, self._quiet = runs, quiet
        # a step costs about as much as the model has layers
        self._steps = {job.id: max(1, job.run.train.steps) for job in pending}
        self._work = {job.id: self._steps[job.id] * len(job.run.model.operators) for job in pending}
        self._finished = 0.0
        self._curves, self._measured = list(curves), list[float]()
        self._running: dict[str, tuple[str, float]] = {}
        # what an earlier sweep did of a run says nothing of our pace
        self._before = {job.id: self._share(job.id) for job in pending}
        self._begun = time.monotonic()
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._live: Live | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Progress:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=1
            )
            self._live.start()
        elif self.done:
            self.note(f"{self.done} of {self.total} cells are there already")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, name: str, label: str = "") -> None:
        """A cell is being run."""
        with self._lock:
            self._running[name] = (label or name, time.monotonic())

    def ended(self, name: str, why: str) -> None:
        """A cell is done, or failed for a reason."""
        with self._lock:
            label, begun = self._running.pop(name)
            # a run that failed did only its share of the work, and leaves none
            share = self._share(name) if why else 1.0
            self._finished += self._work.pop(name, 0) * max(0, share - self._before.get(name, 0))
            if name in self._curves:
                self._curves.remove(name)
                self._measured.append(time.monotonic() - begun)
            if why:
                self.failed += 1
            else:
                self.done += 1
        took = clock(time.monotonic() - begun)
        how = f"FAILED: {why}" if why else f"done in {took}"
        self.note(f"{self._count()}  {label}  {how}")

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(f"{self.name}  {text}")
        else:
            print(f"{self.name}  {text}", file=sys.stderr, flush=True)

    def left(self) -> float | None:
        """Seconds until the end at the pace so far; None before anything is known.

        Runs are judged by their steps; a curve takes as long as those before it did.
        """
        with self._lock:
            shares = {
                n: self._share(n) if n in self._running else b for n, b in self._before.items()
            }
            work = dict(self._work)
            finished = self._finished
            curves, measured = len(self._curves), list(self._measured)
        finished += sum(work[n] * (shares[n] - self._before[n]) for n in work)
        ahead = sum(work[n] * (1 - shares[n]) for n in work)
        elapsed = time.monotonic() - self._begun - sum(measured)
        unknown = (ahead and not finished) or (curves and not measured)
        if unknown or not (ahead or curves):
            return None
        on_runs = elapsed * ahead / finished if ahead else 0.0
        return on_runs + (curves * sum(measured) / len(measured) if curves else 0.0)

    def _count(self) -> str:
        left = self.left()
        text = f"{self.done} of {self.total} done"
        if self.failed:
            text += f", {self.failed} failed"
        text += f", {len(self._running)} running"
        text += f", {self.total - self.done - self.failed - len(self._running)} left"
        return text + (f", about {clock(left)} to go" if left is not None else "")

    def _share(self, name: str) -> float:
        """How much of a run is done, by the last line of its metrics."""
        try:
            with open(self._runs / name / "metrics.jsonl", "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - 4096))
                lines = file.read().decode(errors="replace").splitlines()
            step = member(parse_json(lines[-1], name), "step", int, name)
            return min(1.0, max(0, step) / self._steps[name])
        except (OSError, IndexError, ValueError):
            return 0.0

    def _render(self) -> Text:
        text = Text(f"{self.name}  {self._count()}")
        with self._lock:
            running = list(self._running.items())
        for name, (label, begun) in running[:RUNS_SHOWN]:
            share = f"{100 * self._share(name):3.0f} %" if name in self._steps else ""
            text.append(f"\n  {label}  {share}  {clock(time.monotonic() - begun)}", style="dim")
        return text
