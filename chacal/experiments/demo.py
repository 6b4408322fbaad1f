"""What `chacal demo` shows: one layer learns to follow 15 hops, and ordinary attention cannot.

Four one-layer models, alike but for the operator, learn the paper's Toy task (16 blocks of 8
tokens, every token a pointer into the block before). Where a chain has more hops than a layer can
make, the best guess is one value in eight.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chacal.tasks import Chains
from chacal.training.config import RunConfig, defaults
from chacal.training.loop import train
from chacal.training.runs import Interrupted, RunFolder

OPERATORS = {
    "dense": "ordinary attention",
    "block@32,values=rows": "Block-ChaCAL, 4 blocks",
    "window@16": "window resolvent",
    "chacal": "exact ChaCAL",
}
STEPS = 200
TARGET = 0.9995


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


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What came of it."""

    results: dict[str, dict[str, Any]]
    """By operator, what result.json holds."""
    seconds: float
    picture: Path | None
    """None without matplotlib."""


def run_demo(out: Path, seed: int = 0) -> Demo:
    """Train the four, and draw the picture if it can be drawn."""
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
    seconds = time.monotonic() - begun
    return Demo(results=results, seconds=seconds, picture=_draw(results, out / "demo.png"))


def _is_demo(path: Path, operator: str) -> bool:
    """Whether a folder holds an earlier demo's run, which a new one may replace."""
    if not (path / "config.json").exists():
        return False
    there = RunFolder(path).config()
    return there == demo_config(operator, there.train.seed)


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
