"""`chacal demo`: its table, and where to go from there."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from chacal._extras import install
from chacal.commands.console import command, console, plain_table
from chacal.experiments.demo import PATCHED, Demo, Plan, run_demo, small, tuned
from chacal.training.display import clock

STORY = "The camera is in Box F. Move the contents of Box F to Box B."


def show_demo(out: Path, seed: int, pretrained: str | None, steps: int | None) -> None:
    """Train the demo's models, and print what came of it."""
    screen = console()
    if pretrained is None:
        if steps is not None:
            raise ValueError(f"steps is {steps} without --pretrained; expected both or neither")
        plan = small(seed)
        told = "one layer each"
        onward: tuple[tuple[str, tuple[str, ...]], ...] = (
            ("a story for a model that is trained already", ("track", STORY)),
            ("what attention looks like", ("inspect", str(out / "chacal"))),
            ("a task in English", ("train", "boxes", "--help")),
            ("what an operator costs", ("bench", "ops")),
        )
    else:
        plan = tuned(pretrained, seed, steps)
        told = f"by {pretrained}, as it is and with a learned γ in four layers"
        onward = (
            ("what came out, by hops, on longer texts",
             ("eval", str(out / PATCHED), "--set", "statements=96")),
            ("your own text", ("train", "labelled", "--help")),
            ("the whole comparison", ("reproduce", "tab:hops", "--pretrained", pretrained)),
        )  # fmt: skip
    config = next(iter(plan.models.values()))[1]
    screen.print(
        f"Learning {config.task.describe()}, {told}, at most {config.train.steps} steps.\n",
        soft_wrap=True,
    )
    demo = run_demo(plan, out)
    screen.print(_table(plan, demo))
    screen.print(f"\nAll of it in {clock(demo.seconds)}.", end=" ")
    screen.print(
        f"The picture: {demo.picture}" if demo.picture else f"For a picture, {install('plot')}."
    )
    screen.print("\nWhat to try next:")
    for meaning, arguments in onward:
        # a line that the terminal broke could not be pasted
        screen.print(f"  # {meaning}\n  {command(*arguments)}", soft_wrap=True)


def _table(plan: Plan, demo: Demo) -> Table:
    """Right answers by number of hops, and what it took."""
    columns = ("model", *(f"{d} hops" for d in plan.shown), "all", "steps", "time")
    table = plain_table(columns, "Right answers by hops")
    for operator, (name, _) in plan.models.items():
        result, by = demo.results[operator], demo.shares[operator]
        table.add_row(
            name,
            *(f"{100 * by[d]:.1f} %" if d in by else "–" for d in plan.shown),
            f"{100 * result['test'][plan.measure[0]]:.2f} %",
            str(result["steps"]),
            clock(result["seconds"]),
        )
    return table
