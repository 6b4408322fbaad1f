"""What a person sees of a run: a live bar on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Display:
    """Progress of one run; silent unless `visible`."""

    def __init__(self, label: str, steps: int, metric: str, *, visible: bool = True) -> None:
        self.label, self.steps, self.metric = label, steps, metric
        self.visible = visible
        self.console = Console(stderr=True, highlight=False, markup=False)
        self.live = visible and self.console.is_terminal
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._last = -1.0
        self._best = ""

    def __enter__(self) -> Display:
        if self.live:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=self.console,
            )
            self._progress.start()
            self._bar = self._progress.add_task(self.label, total=self.steps, state="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def step(self, step: int, loss: float, tokens_per_second: float, left: float) -> None:
        """One step is done."""
        if not self.visible:
            return
        state = f"loss {loss:.4f}{self._best}  {tokens_per_second:,.0f} tok/s  {clock(left)} left"
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=step, state=state)
        elif time.monotonic() - self._last > 10:
            self._last = time.monotonic()
            self.note(f"{self.label}  step {step}/{self.steps}  {state}")

    def evaluated(self, step: int, value: float, best: bool) -> None:
        """An evaluation is done."""
        if not self.visible:
            return
        self._best = f"  {self.metric} {value:.4f}"
        if not self.live:
            self._last = time.monotonic()
            self.note(
                f"{self.label}  step {step}/{self.steps}  {self.metric} {value:.4f}"
                + ("  (best)" if best else "")
            )

    def evaluation(self, split: str) -> Callable[[int, int], None]:
        """What an evaluation reports to: examples done, and of how many."""
        begun = time.monotonic()

        def report(done: int, total: int) -> None:
            if not self.visible:
                return
            state = f"{split} {done:,}/{total:,} examples"
            if done:
                left = (time.monotonic() - begun) / done * (total - done)
                state += f"  {clock(left)} left"
            if self._progress is not None and self._bar is not None:
                self._progress.update(self._bar, state=state)
            elif time.monotonic() - max(begun, self._last) > 10 and done < total:
                self._last = time.monotonic()
                self.note(f"{self.label}  {state}")

        return report

    def note(self, text: str) -> None:
        """A line that stays."""
        if self.visible:
            if self.live:
                self.console.print(text)
            else:
                print(text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
