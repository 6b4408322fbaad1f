"""What a run with texts over several processes must be, told before anything is made."""

from __future__ import annotations

from chacal.operators import parse_operator
from chacal.parallel import check_shardable
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.distributed import Group
from chacal.training.torchrun import under_torchrun


def check_context(config: RunConfig) -> None:
    """Processes to share texts, a model of ours, and operators that can be shared."""
    ranks = config.train.context_parallel
    if ranks == 1:
        return
    if not under_torchrun():
        raise ValueError(
            f"context_parallel is {ranks}; expected processes to share sequences: start it with "
            f"torchrun --nproc-per-node {ranks} -m chacal train ..."
        )
    if not isinstance(config.model, ModelConfig):
        raise ValueError(
            f"context_parallel is {ranks} with a transformers model; expected one of chacal's own "
            f"layers"
        )
    for text in config.model.operators:
        check_shardable(parse_operator(text))
    if config.task.length < ranks:
        raise ValueError(
            f"context_parallel is {ranks}; expected at most {config.task.length}, the tokens of a "
            f"sequence"
        )


def check_batch(settings: TrainConfig, group: Group) -> None:
    """Rows of a batch for every process, or for all that share them, in every part."""
    if settings.batch_size % (group.data_world * settings.accumulate):
        sharing = f" groups of {group.context}" if group.context > 1 else ""
        raise ValueError(
            f"batch_size is {settings.batch_size}; expected a multiple of "
            f"{group.data_world}{sharing} processes times {settings.accumulate} parts"
        )
