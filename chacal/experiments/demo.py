"""What `chacal demo` shows: models that are alike but for the operator, and the hops they follow.

Small: four models of one layer learn the paper's Toy task (16 blocks of 8 tokens, every token a
pointer into the block before). Where a chain has more hops than a layer can make, the best guess is
one value in eight.

Pretrained: a model of other people's, fine-tuned on chains of assignments as it is and with a γ per
head in four of its layers, by the recipe of tab:hops.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chacal.experiments.text_scales import TEXT_SCALES
from chacal.tasks import Chains, Variables
from chacal.tasks.base import group_of
from chacal.training.config import RunConfig, defaults
from chacal.training.loop import train
from chacal.training.runs import Interrupted, RunFolder
from chacal.training.transformers_model import TransformersConfig

OPERATORS = {
    "dense": "ordinary attention",
    "block@32,values=rows": "Block-ChaCAL, 4 blocks",
    "window@16": "window resolvent",
    "chacal": "exact ChaCAL",
}
STEPS = 200
TARGET = 0.9995

PATCHED = "chacal,gamma=learn:0.5"
TUNED = {"dense": "as it is", PATCHED: "a learned γ in four layers"}
TEXTS = 96
FEW = 20
"""Questions below which a number of hops has no share: it would be chance."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Models to compare.

    Attributes:
        models: operator -> what a person calls it, and the run.
        measure: the metric, and what it is told by.
        shown: numbers of hops that have a column in the table.
        title: of the picture.
        guessing: what needs no understanding, as a share.
        resumes: whether a run that was stopped goes on; otherwise it is made again.
    """

    models: dict[str, tuple[str, RunConfig]]
    measure: tuple[str, str]
    shown: tuple[int, ...]
    title: str
    guessing: float
    resumes: bool


def small(seed: int) -> Plan:
    """One layer of each operator on chains at the paper's size."""
    return Plan(
        models={op: (name, demo_config(op, seed)) for op, name in OPERATORS.items()},
        measure=("accuracy", "depth"),
        shown=(0, 1, 2, 4, 8, 15),
        title="One layer, chains of up to 15 hops",
        guessing=1 / 8,
        resumes=False,
    )


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


def tuned(pretrained: str, seed: int, steps: int | None = None) -> Plan:
    """A pretrained model, fine-tuned with and without."""
    recipe = TEXT_SCALES["cpu"]
    task = dataclasses.replace(recipe.hops, tokenizer=pretrained)
    settings = dataclasses.replace(recipe.hops_train, seed=seed, test_examples=TEXTS)
    if steps is not None:
        settings = dataclasses.replace(
            settings, steps=steps, eval_every=min(steps, settings.eval_every),
            warmup=min(steps, settings.warmup),
        )  # fmt: skip
    models = {}
    for operator, name in TUNED.items():
        model = TransformersConfig(pretrained=pretrained, operator=operator, layers="middle")
        models[operator] = name, RunConfig(task=task, model=model, train=settings)
    return Plan(
        models=models,
        measure=("exact_match", "hops"),
        shown=(0, 1, 2, 3, 4, 6, 8),
        title="A pretrained model, fine-tuned on chains of assignments",
        guessing=1 / task.chains,
        resumes=True,
    )


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What came of it.

    Attributes:
        results: by operator, what result.json holds.
        shares: by operator, the share that is right by the number of hops.
        seconds: all of it.
        picture: None without matplotlib.
    """

    results: dict[str, dict[str, Any]]
    shares: dict[str, dict[int, float]]
    seconds: float
    picture: Path | None


def run_demo(plan: Plan, out: Path) -> Demo:
    """Train the models, and draw the picture if it can be drawn."""
    begun = time.monotonic()
    results = {}
    for operator, (name, config) in plan.models.items():
        folder = out / operator
        try:
            results[operator] = _run(plan, config, folder, f"{name:<26}")
        except Interrupted:
            then = "goes on with it" if plan.resumes else "starts it again"
            raise Interrupted(f"the demo is stopped; the same command {then}") from None
    seconds = time.monotonic() - begun
    enough = _asked_often(config)
    shares = {op: _by_hops(plan, result["test"], enough) for op, result in results.items()}
    return Demo(
        results=results, shares=shares, seconds=seconds,
        picture=_draw(plan, shares, out / "demo.png"),
    )  # fmt: skip


def _run(plan: Plan, config: RunConfig, folder: Path, label: str) -> dict[str, Any]:
    there = RunFolder(folder).config() if (folder / "config.json").exists() else None
    if plan.resumes and there == config:
        return train(config, folder, resume=True, label=label)
    return train(config, folder, force=_is_demo(there, config), label=label)


def _is_demo(there: RunConfig | None, config: RunConfig) -> bool:
    """Whether a folder holds an earlier demo's run, which a new one may replace."""
    if there is None:
        return False
    alike = dataclasses.replace(config.train, seed=there.train.seed)
    return there == dataclasses.replace(config, train=alike)


def _asked_often(config: RunConfig) -> set[int] | None:
    """The numbers of hops that the test asks for at least `FEW` times; None for all of them."""
    settings, counts = config.train, Counter[int]()
    if not isinstance(config.task, Variables):
        return None
    for index, first in enumerate(range(0, settings.test_examples, settings.batch_size)):
        size = min(settings.batch_size, settings.test_examples - first)
        batch = config.task.batch("test", settings.seed, index, size)
        counts.update(batch.info["hops"].flatten().tolist())
    return {hops for hops, count in counts.items() if count >= FEW}


def _by_hops(plan: Plan, test: dict[str, float], enough: set[int] | None) -> dict[int, float]:
    groups = {group_of(name): value for name, value in test.items()}
    return {
        group.at: value
        for group, value in groups.items()
        if group is not None
        and group[:2] == plan.measure
        and (enough is None or group.at in enough)
    }


def _draw(plan: Plan, shares: dict[str, dict[int, float]], path: Path) -> Path | None:
    from chacal.report.curves import draw_curves, has_matplotlib

    if not has_matplotlib():
        return None
    hops = sorted(set.union(*(set(by) for by in shares.values())))
    return draw_curves(
        path,
        hops,
        {plan.models[operator][0]: [by[h] for h in hops] for operator, by in shares.items()},
        title=plan.title,
        across="hops to follow",
        up="right answers",
        level=(plan.guessing, "guessing"),
    )
