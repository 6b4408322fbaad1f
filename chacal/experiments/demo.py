"""`chacal demo`: one layer learns to follow 15 hops, and ordinary attention cannot.

Four one-layer models, alike but for the operator, learn the paper's Toy task (16 blocks of 8
tokens, every token a pointer into the block before). Where a chain has more hops than a layer can
make, the best guess is one value in eight.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from chacal._extras import install
from chacal.commands.console import console
from chacal.tasks import Chains
from chacal.training.config import RunConfig, defaults
from chacal.training.display import clock
from chacal.training.loop import train
from chacal.training.runs import Interrupted, RunFolder

OPERATORS = {
    "dense": "ordinary attention",
    "block@32": "Block-ChaCAL, 4 blocks",
    "window@16": "window resolvent",
    "chacal": "exact ChaCAL",
}
STEPS = 200
TARGET = 0.9995
SHOWN = (0, 1, 2, 4, 8, 15)


def demo_config(operator: str, seed: int) -> RunConfig:
    """One layer of the operator on chains at the paper's size."""
    model, settings = defaults("chains")
    return RunConfig(
        task=Chains(),
        model=dataclasses.replace(model, operators=(operator,)),
        train=dataclasses.replace(
            settings, steps=STEPS, seed=seed, eval_every=25, eval_examples=128, target=TARGET,
            checkpoint_every=STEPS, test_examples=1024,
        ),
    )  # fmt: skip


def run_demo(out: Path, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Train the four, print the table, draw the picture; the results by operator."""
    screen = console()
    task = Chains()
    screen.print(f"Learning {task.describe()}, one layer each, at most {STEPS} steps.\n")
    begun = time.monotonic()
    results = {}
    for operator, meaning in OPERATORS.items():
        try:
            results[operator] = train(
                demo_config(operator, seed), out / operator,
                force=_is_demo(out / operator, operator), label=f"{meaning:<24}",
            )  # fmt: skip
        except Interrupted:  # a run can be resumed; four that take a minute are made again
            raise Interrupted("the demo is stopped; the same command starts it again") from None
    screen.print(demo_table(results))
    screen.print(f"\nAll of it in {clock(time.monotonic() - begun)}.", end=" ")
    picture = _draw(results, out / "demo.png")
    screen.print(f"The picture: {picture}" if picture else f"For a picture, {install('plot')}.")
    screen.print(
        "\nWhat to try next:\n"
        '  chacal track "The camera is in Box F. Move the contents of Box F to Box B."\n'
        f"  chacal inspect {out / 'chacal'}          what its attention looks like\n"
        "  chacal train boxes --help              a task in English\n"
        "  chacal bench ops                       what an operator costs"
    )
    return results


def _is_demo(path: Path, operator: str) -> bool:
    """Whether a folder holds an earlier demo's run, which a new one may replace."""
    if not (path / "config.json").exists():
        return False
    there = RunFolder(path).config()
    return there == demo_config(operator, there.train.seed)


def demo_table(results: dict[str, dict[str, Any]]) -> Table:
    """Accuracy by number of hops, and what it took."""
    table = Table(title="Accuracy by hops", title_justify="left", box=None, pad_edge=False)
    for column in ("one layer of", *(f"{d} hops" for d in SHOWN), "all", "steps", "time"):
        table.add_column(column, justify="left" if column == "one layer of" else "right")
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


def _draw(results: dict[str, dict[str, Any]], path: Path) -> Path | None:
    from chacal.report.curves import draw_curves, has_matplotlib

    if not has_matplotlib():
        return None
    depth = range(16)
    curves = {
        OPERATORS[operator]: [result["test"][f"accuracy/depth={d:02d}"] for d in depth]
        for operator, result in results.items()
    }
    return draw_curves(
        path,
        list(depth),
        curves,
        title="One layer, chains of up to 15 hops",
        across="hops to follow",
        up="accuracy",
        level=(1 / 8, "guessing"),
    )
