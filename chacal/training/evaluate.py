"""A model's metrics on a split of a task."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chacal._plain import from_plain, to_plain
from chacal.tasks import Task
from chacal.tasks.base import IGNORE, Totals
from chacal.training.checkpoint import load_weights
from chacal.training.distributed import Group
from chacal.training.runs import RunFolder


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    *,
    split: str,
    seed: int,
    examples: int,
    batch_size: int,
    group: Group,
    bf16: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """The task's metrics over `examples` generated examples, or over all that a split has.

    The last batch of generated examples is cut, so exactly `examples` of them count. Batches are
    dealt out to the ranks of `group`.
    """
    was_training = model.training
    model.eval()
    stored = task.batches(split, batch_size)
    batches = stored if stored is not None else -(-examples // batch_size)
    totals: Totals = {}
    for turn in range(0, batches, group.world):
        # a rank whose turn has no batch runs along uncounted: sharded layers need every rank
        index = min(turn + group.rank, batches - 1)
        size = batch_size if stored is not None else min(batch_size, examples - index * batch_size)
        batch = task.batch(split, seed, index, size)
        targets = torch.from_numpy(batch.targets).to(group.device)
        scores = compute_scores(model, torch.from_numpy(batch.tokens).to(group.device), bf16)
        losses = token_losses(scores, targets)
        if task.free_running:
            scores = free_running(model, torch.from_numpy(batch.tokens), targets, bf16)
        guesses = scores.argmax(-1)
        if task.inputs:  # an encoder-decoder answers in its own words
            plain: Any = model.module if hasattr(model, "module") else model
            guesses = plain.answer(torch.from_numpy(batch.tokens).to(group.device))
        if index == turn + group.rank:
            counted = task.count(guesses.cpu().numpy(), losses.cpu().numpy(), batch)
            for name, (total, count) in counted.items():
                before = totals.get(name, (0.0, 0.0))
                totals[name] = (before[0] + total, before[1] + count)
        report(min(turn + group.world, batches), batches)
    model.train(was_training)
    metrics = task.summarise(group.add(totals))
    # a breakdown such as "exact_match/updates=07" comes after the figures it breaks down
    return dict(sorted(metrics.items(), key=lambda item: _order(item[0])))


def _order(name: str) -> tuple[str, float]:
    """Figures first, in the task's order; then breakdowns, by name and number."""
    label, _, value = name.partition("=")
    if "/" not in name:
        return "", 0.0
    return label, float(value) if value.replace(".", "").isdigit() else 0.0


def free_running(model: nn.Module, tokens: Tensor, targets: Tensor, bf16: bool) -> Tensor:
    """Scores where each asked token sees the model's own answers before it, not the true ones.

    The asked positions of a row are one run; its answer is fed back a token at a time.
    """
    tokens = tokens.to(targets.device).clone()
    asked = targets != IGNORE
    first, count = asked.int().argmax(-1), asked.sum(-1)
    rows = torch.arange(len(tokens), device=tokens.device)
    scores = compute_scores(model, tokens, bf16)
    for j in range(int(count.max()) - 1):
        at = first + j
        going = j + 1 < count
        tokens[rows[going], at[going] + 1] = scores.argmax(-1)[rows[going], at[going]]
        scores = compute_scores(model, tokens, bf16)
    return scores


def compute_scores(model: nn.Module, tokens: Tensor, bf16: bool) -> Tensor:
    """Class scores in float32, computed in bfloat16 autocast if asked."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=bf16):
        return model(tokens).float()


def token_losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood of every target, 0 where nothing is asked; targets' shape."""
    losses = F.cross_entropy(
        scores.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="none"
    )
    return losses.reshape(targets.shape)


def load_run(
    path: str | Path, *, operators: tuple[str, ...] | None = None
) -> tuple[Any, RunFolder]:
    """A trained model, optionally with other operators in its layers (the weights fit any)."""
    run = RunFolder.open(path)
    config = run.config()
    if operators is not None:
        if len(operators) != len(config.model.operators):
            raise ValueError(
                f"operators are {', '.join(operators)}; expected {len(config.model.operators)}, "
                f"one for each layer of {run.path}"
            )
        config = dataclasses.replace(config, model=config.model.with_operators(operators))
    model = config.build(weights=False)
    load_weights(model, run.best)
    return model.eval(), run


def override(task: Task, settings: dict[str, Any]) -> Task:
    """The task with some fields changed, checked as a run's configuration is."""
    return from_plain(type(task), {**to_plain(task), **settings}, "task")


def setting(text: str) -> tuple[str, Any]:
    """ "min_updates=10" -> ("min_updates", 10)."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"setting is {text!r}; expected FIELD=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
