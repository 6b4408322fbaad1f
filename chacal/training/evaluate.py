"""A model's metrics on a split of a task."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chacal._echo import shown
from chacal._files import parse_json
from chacal._plain import from_plain, to_plain
from chacal.tasks import Task
from chacal.tasks.base import IGNORE, Totals, group_of
from chacal.tasks.stored import sample
from chacal.training.checkpoint import load_weights
from chacal.training.config import ModelConfig, RunConfig
from chacal.training.distributed import Group
from chacal.training.memory import check_evaluation
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
    sampled: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """The task's metrics over `examples` generated examples, or over those that a split has.

    The last batch of generated examples is cut, so exactly `examples` of them count. A stored split
    counts as a whole, or if `sampled` by so many of its examples, the same ones for every run
    (`count_examples`). Batches are dealt out to the ranks of `group`, or to those that share texts;
    after each turn `report` is told how many examples are done, and of how many; where answers are
    generated, also after each of their tokens. It may raise to stop.

    Losses are teacher-forced: of every asked token given the true ones before it. So are the
    predictions of a causal model. Of a model with an operator that sees later tokens they are what
    it generates (`decode_freely`), where the task has an answer that is generated: it could read
    the true one off its inputs. What it says with the true answer before it stands beside, as in
    `exact_match_teacher_forced`.
    """
    was_training = model.training
    model.eval()
    plain = plain_model(model)
    could_read_off = task.generates and not all(op.causal for op in plain.operators)
    total = count_examples(task, split, examples, sampled)
    stored = task.stored(split)
    rows = None if stored is None else sample(split, stored, total)
    batches = -(-total // batch_size)
    totals: Totals = {}
    forced_totals: Totals = {}
    for turn in range(0, batches, group.data_world):
        # a rank whose turn has no batch runs along uncounted: sharded layers need every rank
        index = min(turn + group.data_rank, batches - 1)
        first, last = index * batch_size, min(total, (index + 1) * batch_size)
        batch = (
            task.batch(split, seed, index, last - first)
            if rows is None
            else task.pick(split, rows[first:last])
        )
        tokens, targets = (
            torch.from_numpy(x).to(group.device) for x in (batch.tokens, batch.targets)
        )
        guesses, losses = _forced(model, tokens, targets, group, bf16)
        forced = guesses
        if task.inputs:  # an encoder-decoder answers in its own words
            guesses = plain.answer(tokens)
        elif task.free_running or could_read_off:
            guesses = decode_freely(
                model, tokens, targets, task.padding, group, bf16,
                between=functools.partial(report, min(turn * batch_size, total), total),
            )  # fmt: skip
        if index == turn + group.data_rank and group.counts:
            _add(totals, task.count(guesses.cpu().numpy(), losses, batch))
            if could_read_off:
                _add(forced_totals, task.count(forced.cpu().numpy(), losses, batch))
        report(min((turn + group.data_world) * batch_size, total), total)
    model.train(was_training)
    metrics = task.summarise(group.add(totals))
    if could_read_off:
        for name, value in task.summarise(group.add(forced_totals)).items():
            if name != "loss" and "/" not in name:
                metrics[f"{name}_teacher_forced"] = value
    # a breakdown such as "exact_match/updates=07" comes after the figures it breaks down
    return dict(sorted(metrics.items(), key=lambda item: _order(item[0])))


def count_examples(task: Task, split: str, examples: int, sampled: bool) -> int:
    """How many examples an evaluation has.

    Args:
        task: whose.
        split: which.
        examples: how many are wanted; 0 for all of a stored split.
        sampled: whether that number holds for stored splits too.
    """
    stored = task.stored(split)
    if stored is not None:
        return min(examples, stored) if sampled and examples else stored
    if not examples:
        raise ValueError(
            f"examples of {split} are all, and {task.name} makes them without end; expected a "
            f"number"
        )
    return examples


def examples_of(config: RunConfig) -> dict[str, int]:
    """How many examples the evaluations of a run have, by split."""
    settings, wanted = config.train, {"valid": "eval_examples", "test": "test_examples"}
    return {
        split: count_examples(config.task, split, getattr(settings, field), settings.sampled)
        for split, field in wanted.items()
        if split in config.task.splits
    }


def _forced(
    model: nn.Module, tokens: Tensor, targets: Tensor, group: Group, bf16: bool
) -> tuple[Tensor, np.ndarray]:
    """What is predicted after the true tokens, and its losses; both of the targets' shape."""
    with group.share(tokens.shape[1]) as share:
        guesses, losses = _own(model, share.take(tokens), share.take(targets), bf16)
        return share.join(guesses), share.join(losses).cpu().numpy()


def _own(model: nn.Module, tokens: Tensor, targets: Tensor, bf16: bool) -> tuple[Tensor, Tensor]:
    """The same of this process's part of the tokens."""
    places = asked_places(model, targets != IGNORE)
    scores = compute_scores(model, tokens, bf16, places)
    if places is None:
        return scores.argmax(-1), token_losses(scores, targets)
    guesses = torch.zeros_like(targets)
    guesses[:, places] = scores.argmax(-1)
    losses = torch.zeros(targets.shape, device=targets.device)
    losses[:, places] = token_losses(scores, targets[:, places])
    return guesses, losses


def _add(totals: Totals, counted: Totals) -> None:
    for name, (total, count) in counted.items():
        before = totals.get(name, (0.0, 0.0))
        totals[name] = (before[0] + total, before[1] + count)


def _order(name: str) -> tuple[str, float]:
    """Figures first, in the task's order; then breakdowns, by name and number."""
    group = group_of(name)
    return ("", 0.0) if group is None else (f"{group.metric}/{group.by}", float(group.at))


def decode_freely(
    model: nn.Module,
    tokens: Tensor,
    targets: Tensor,
    padding: int,
    group: Group,
    bf16: bool,
    between: Callable[[], None] = lambda: None,
) -> Tensor:
    """The answers that a model generates: each token after its own ones before, greedily.

    Every token that answers is blanked, and answers are fed back one at a time. So no true answer
    is seen, while n and the blocks that it is cut into stay as in training. A token counts as it
    was first said: later ones may change the mind of a model that sees them.

    Args:
        model: maps tokens to scores.
        tokens: (B, n).
        targets: (B, n); the token after an asked position is its true answer, or padding.
        padding: the token of a blank.
        group: whose ranks take as many passes as the one with the longest answers.
        bf16: whether scores are computed in bfloat16 autocast.
        between: called after each token on all ranks: an answer of hundreds takes a while, and
            whoever wants to stop is heard there.

    Returns:
        (B, n) tokens, those of positions that are not asked without meaning.
    """
    asked = targets != IGNORE
    turn, count = asked.cumsum(-1), asked.sum(-1)
    tokens = tokens.masked_fill(_next(asked), padding)
    guesses = torch.zeros_like(targets)
    done = 0
    while group.any(done < int(count.max())):
        now = asked & (turn == done + 1)
        with group.share(tokens.shape[1]) as share:
            some = share.take(now)
            places = asked_places(model, some)
            own = torch.zeros_like(some, dtype=guesses.dtype)
            scores = compute_scores(model, share.take(tokens), bf16, places)
            own[:, slice(None) if places is None else places] = scores.argmax(-1)
            said = share.join(own)
        guesses = torch.where(now, said, guesses)
        # what is said at a position is the token of the next one
        tokens = torch.where(_next(now), said.roll(1, dims=1), tokens)
        done += 1
        between()
    return guesses


def _next(places: Tensor) -> Tensor:
    """(B, n) marks, each moved to the position after it."""
    moved = places.roll(1, dims=1)
    moved[:, 0] = False
    return moved


def compute_scores(
    model: nn.Module, tokens: Tensor, bf16: bool, places: Tensor | None = None
) -> Tensor:
    """Class scores in float32, computed in bfloat16 autocast if asked; at `places` (m,), or all."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=bf16):
        return (model(tokens) if places is None else model(tokens, places)).float()


def asked_places(model: nn.Module, asked: Tensor) -> Tensor | None:
    """(m,) positions at which some row is asked, if the model can be asked for them alone.

    None where scores are to be of all positions. A vocabulary of 50,000 makes the difference: its
    scores cost as much as a quarter of a small model.
    """
    if not getattr(plain_model(model), "selects", False):
        return None
    places = asked.any(0).nonzero()[:, 0]
    return None if len(places) in (0, asked.shape[1]) else places


def plain_model(model: nn.Module) -> Any:
    """The model without what DDP puts around it."""
    return model.module if hasattr(model, "module") else model


def token_losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood of every target, 0 where nothing is asked; targets' shape."""
    losses = F.cross_entropy(
        scores.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="none"
    )
    return losses.reshape(targets.shape)


def load_run(
    path: str | Path,
    *,
    operators: tuple[str, ...] | None = None,
    qk_norm: float | None = None,
) -> tuple[Any, RunFolder]:
    """A trained model, optionally with other operators in its layers (the weights fit any).

    Args:
        path: its folder.
        operators: one for each layer; None for those of training.
        qk_norm: temperature in all layers; None for that of training.
    """
    run = RunFolder.open(path)
    config = run.config()
    if operators is not None:
        if len(operators) != len(config.model.operators):
            raise ValueError(
                f"operators are {', '.join(operators)}; expected {len(config.model.operators)}, "
                f"one for each layer of {run.path}"
            )
        config = dataclasses.replace(config, model=config.model.with_operators(operators))
    if qk_norm is not None:
        if not isinstance(config.model, ModelConfig) or config.model.qk_norm is None:
            raise ValueError(
                f"qk_norm is {qk_norm}; expected a run that was trained with QK-norm, and "
                f"{run.path} was not"
            )
        config = dataclasses.replace(
            config, model=dataclasses.replace(config.model, qk_norm=qk_norm)
        )
    check_evaluation(config)
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
        raise ValueError(f"setting is {shown(text)}; expected FIELD=VALUE")
    try:
        return name, parse_json(value, name)
    except ValueError:
        return name, value
