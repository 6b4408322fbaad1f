"""`make fuzz`: hostile command lines, damaged files and special tensors, with new seeds each time.

It goes on until Ctrl-C, or for so many seconds. What is found is made as small as hypothesis can,
and printed once, as a line to paste into `found.py`, whose cases the suite tries always.
"""

import argparse
import collections
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # cases.py

from child import Found, judge, prepare, run_line
from damage import Stock
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from lines import Line, furnish, lines
from special import cases, try_case

KINDS = ("lines", "files", "tensors")
MINUTE = 60
"""Seconds between two counts."""

SHRINKS = 40
"""Tries to make a fault smaller that fail again: each may take a second."""

ROUND = {"lines": 20, "files": 20, "tensors": 200}
"""Examples of a seed; then it is another kind's turn."""


def try_line(line: Line) -> str:
    """Run a command line in a folder with things in it, judge; its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "deep" / "within"  # so that .. is ours as well
        work.mkdir(parents=True)
        furnish(work)
        ended = run_line(list(line.args), str(work), line.stdin)
    judge(ended, repr(line))
    return f"exit {ended.code}"


class Tries:
    """What is tried, of each kind, and how often it ended how."""

    def __init__(self, home: Path, kinds: tuple[str, ...] = KINDS) -> None:
        prepare()
        self.of: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], str]]] = {}
        if "lines" in kinds:
            self.of["lines"] = lines(), try_line
        if "files" in kinds:
            stock = Stock(home)
            self.of["files"] = stock.edits(), stock.try_edit
        if "tensors" in kinds:
            self.of["tensors"] = cases(), try_case
        self.ends = {kind: collections.Counter[str]() for kind in self.of}
        self.found: dict[str, str] = {}

    def round(self, kind: str, number: int, count: int) -> None:
        """So many examples of a kind; what is new is kept in `found`."""
        strategy, attempt = self.of[kind]
        failed: dict[str, Found] = {}

        def check(example: Any) -> None:
            if (known := failed.get(repr(example))) is not None:
                raise known
            if len(failed) >= SHRINKS:
                return
            try:
                self.ends[kind][attempt(example)] += 1
            except Found as fault:
                self.ends[kind]["FOUND"] += 1
                # one fault at a time is made small, and a known one is passed over
                others = {other.mark for other in failed.values()} - {fault.mark}
                if others or f"{kind}: {fault.mark}" in self.found:
                    return
                failed[repr(example)] = fault
                raise

        quiet = settings(
            max_examples=count, database=None, deadline=None, print_blob=False,
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
            # an edit of a file is small as it is
            phases=[Phase.generate] if kind == "files" else [Phase.generate, Phase.shrink],
        )  # fmt: skip
        try:
            seed(number)(quiet(given(strategy)(check)))()
        except Found as fault:
            self.found[f"{kind}: {fault.mark}"] = str(fault)

    def counts(self) -> str:
        """A line for each kind."""
        return "\n".join(
            f"{kind}: {sum(ends.values())} tried ({', '.join(f'{n} {e}' for e, n in ends.items())})"
            for kind, ends in self.ends.items()
        )


def main() -> None:
    """Until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then stop")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, help="of the first round [any]")
    asked = parser.parse_args()
    number = secrets.randbits(32) if asked.seed is None else asked.seed
    print(f"first seed {number}; Ctrl-C ends it", flush=True)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tries = Tries(home, tuple(asked.kinds))
        end = time.monotonic() + asked.seconds
        told, next_counts = 0, time.monotonic() + MINUTE
        try:
            while time.monotonic() < end:
                for kind in tries.of:
                    tries.round(kind, number, ROUND[kind])
                    for mark, text in list(tries.found.items())[told:]:
                        print(f"\n# {mark} (seed {number}); to paste into found.py:\n{text}")
                    told = len(tries.found)
                    sys.stdout.flush()
                number += 1
                if time.monotonic() >= next_counts:
                    print(tries.counts(), flush=True)
                    next_counts = time.monotonic() + MINUTE
        except KeyboardInterrupt:
            pass
        print(f"\n{tries.counts()}\n{len(tries.found)} faults found")
        for mark in tries.found:
            print(f"  {mark}")
    sys.exit(1 if tries.found else 0)


if __name__ == "__main__":
    main()
