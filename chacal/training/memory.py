"""What a run needs of memory at least: its weights, what trains them, and what a batch passes on.

The one estimate for all that makes a model, by arithmetic on a configuration alone, so that a size
is refused before anything of it is made. Every term is a part of what is really held, so the sum
stays below it; what the operators and the allocator take besides is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from chacal._memory import check_fits
from chacal.operators import parse_operator
from chacal.tasks import Task
from chacal.training.config import ModelConfig, RunConfig
from chacal.training.transformers_model import TransformersConfig

FLOAT = 4
"""Bytes of a weight and of an activation."""

WHOLE = 8
"""Bytes of a token and of a target."""

KEPT = 6
"""Vectors of the model's width, at least, that a layer keeps of a token for the backward pass: its
input, q, k, v, what attention gave, and the input of the feed-forward part."""

LAYER = 4096
"""Bytes, at least, of a layer's own objects in Python."""


class Sizes(NamedTuple):
    """Of a model; what is not known without reading its files is 0."""

    layers: int
    width: int
    hidden: int
    heads: int
    positions: int


def sizes_of(model: ModelConfig | TransformersConfig, task: Task) -> Sizes:
    """A model's sizes on a task."""
    if isinstance(model, ModelConfig):
        places = {"learned": task.length, "factorised": task.length // (task.period or 1)}
        layers, positions = len(model.operators), places.get(model.positions, 0)
    elif model.pretrained is not None:
        return Sizes(0, 0, 0, 0, 0)
    else:
        layers, positions = model.depth, max(model.positions, task.length)
    hidden = round(model.width * model.mlp_ratio)
    return Sizes(layers, model.width, hidden, model.heads, positions)


def weight_count(model: ModelConfig | TransformersConfig, task: Task) -> int:
    """Weights, at least: embeddings, projections, feed-forward parts; one row for each class."""
    made = sizes_of(model, task)
    rows = task.vocab_size + made.positions
    if isinstance(model, ModelConfig):  # a transformers model may share them with the embedding
        rows += task.symbols * task.num_classes
    layer = 4 * made.width**2 + 2 * made.width * made.hidden
    return rows * made.width + made.layers * layer


def weight_bytes(model: ModelConfig | TransformersConfig, task: Task) -> int:
    """What a model takes that is only there."""
    return FLOAT * weight_count(model, task) + LAYER * sizes_of(model, task).layers


def batch_bytes(
    model: ModelConfig | TransformersConfig, task: Task, sequences: int, *, learning: bool = False
) -> int:
    """What a batch takes on its way through a model, at least.

    Args:
        model: whose layers it passes.
        task: whose rows it has.
        sequences: of the batch.
        learning: whether every layer's part is kept for the backward pass, or only one at a time.
    """
    made = sizes_of(model, task)
    n = task.usual_length
    layers = made.layers if learning else 1
    layer = KEPT * made.width + made.hidden * (2 if learning else 1)
    matrices = [_matrix(text, n, made) for text in model.operators]
    held = sum(matrices) if learning else max(matrices)
    scores = task.symbols * task.num_classes * (2 if learning else 1)
    answered = n - task.inputs  # an encoder's tokens have none
    return sequences * FLOAT * (n * (layers * layer + held) + answered * scores)


def token_bytes(task: Task, sequences: int) -> int:
    """What the tokens and targets of a batch take, before a model sees any of them."""
    return 2 * WHOLE * sequences * task.usual_length * task.symbols


def check_training(config: RunConfig, device: torch.device, processes: int = 1) -> None:
    """Raise if the memory cannot hold a run that trains: one step's part, or one evaluation."""
    settings, model, task = config.train, config.model, config.task
    # AdamW has two moments of every weight, and there is a gradient
    weights = (FLOAT * 4 * weight_count(model, task)) // (processes if settings.fsdp else 1)
    part = -(-settings.batch_size // (settings.accumulate * processes))
    step = batch_bytes(model, task, part, learning=bool(settings.steps))
    if settings.bf16:
        step //= 2
    check_fits(
        _told(config, settings.batch_size, settings.accumulate),
        weights
        + LAYER * sizes_of(model, task).layers
        + step
        + token_bytes(task, settings.batch_size),
        "smaller sizes, or a batch in more parts (--accumulate)",
        _memory_of(device),
    )


def check_evaluation(config: RunConfig, batch_size: int = 1, device: str = "cpu") -> None:
    """Raise if the memory cannot hold a model and a batch of its task."""
    needed = weight_bytes(config.model, config.task)
    needed += batch_bytes(config.model, config.task, batch_size)
    needed += token_bytes(config.task, batch_size)
    check_fits(_told(config, batch_size), needed, "smaller sizes", _memory_of(torch.device(device)))


def _memory_of(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None


def _told(config: RunConfig, batch_size: int, parts: int = 1) -> str:
    model, task = config.model, config.task
    in_parts = f" in {parts} parts" if parts > 1 else ""
    return (
        f"{task.name} of {task.length} tokens and {task.vocab_size} symbols in batches of "
        f"{batch_size}{in_parts}, by {model.describe()},"
    )


def _matrix(text: str, n: int, made: Sizes) -> int:
    """Numbers per token of the matrices that an operator forms as a whole."""
    heads = max(1, made.heads)
    return heads * parse_operator(text).formed(n, made.width // heads)
