"""`chacal demo`: its table, and where to go from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from chacal._extras import install
from chacal.commands.console import command, console, plain_table
from chacal.experiments.demo import OPERATORS, STEPS, run_demo
from chacal.tasks import Chains
from chacal.training.display import clock

SHOWN = (0, 1, 2, 4, 8, 15)
STORY = "The camera is in Box F. Move the contents of Box F to Box B."


def show_demo(out: Path, seed: int) -> None:
    """Train the demo's models, and print what came of it."""
    screen = console()
    screen.print(f"Learning {Chains().describe()}, one layer each, at most {STEPS} steps.\n")
    demo = run_demo(out, seed)
    screen.print(_table(demo.results))
    screen.print(f"\nAll of it in {clock(demo.seconds)}.", end=" ")
    screen.print(
        f"The picture: {demo.picture}" if demo.picture else f"For a picture, {install('plot')}."
    )
    screen.print("\nWhat to try next:")
    for meaning, arguments in (
        ("a story for a model that is trained already", ("track", STORY)),
        ("what attention looks like", ("inspect", str(out / "chacal"))),
        ("a task in English", ("train", "boxes", "--help")),
        ("what an operator costs", ("bench", "ops")),
    ):
        # a line that the terminal broke could not be pasted
        screen.print(f"  # {meaning}\n  {command(*arguments)}", soft_wrap=True)


def _table(results: dict[str, dict[str, Any]]) -> Table:
    """Accuracy by number of hops, and what it took."""
    columns = ("one layer of", *(f"{d} hops" for d in SHOWN), "all", "steps", "time")
    table = plain_table(columns, "Accuracy by hops")
    for operator, result in results.items():
        test = result["test"]
        table.add_row(
            OPERATORS[operator],
            *(f"{100 * test[f'accuracy/depth={d:02d}']:.1f} %" for d in SHOWN),
            f"{100 * test['accuracy']:.2f} %",
            str(result["steps"]),
            clock(result["seconds"]),
        )
    return table
