"""A run as a value: what is learned, by which model, and how; strict to and from JSON.

A field that is new must be `added` (`_plain.py`), or the folders of all earlier runs change their
names and their configurations cannot be read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from chacal._echo import shown
from chacal._plain import added, from_plain, to_plain
from chacal.bench.timing import check_threads
from chacal.nn.attention import ROTARY_BASE
from chacal.nn.transformer import EMBED_STD, POSITIONS, Transformer
from chacal.operators import former_text, parse_operator, spelled_out
from chacal.tasks import TASKS, Task
from chacal.tasks.base import option
from chacal.training.stored_tasks import former_form, read_task, write_task
from chacal.training.transformers_model import (
    KIND,
    MOST_LAYERS,
    TransformersConfig,
    check_wholes,
)

SCHEDULES = ("constant", "linear", "cosine")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A `chacal.nn.Transformer`, but for what the task decides."""

    operators: tuple[str, ...] = option(("chacal",), "operator of each layer, first to last")
    width: int = option(128, "width of the model")
    heads: int = option(4, "attention heads")
    mlp_ratio: float = option(4.0, "width of the feed-forward part over the model's; 0 for none")
    positions: str = option("rotary", f"how order is told: {', '.join(POSITIONS)}")
    qk_norm: float | None = option(2.0, "temperature of QK-norm; none for plain scores")
    dropout: float = option(0.0, "dropout on every sublayer's output")
    learn_gamma: bool = option(False, "learn γ per head")
    embed_std: float = added(EMBED_STD, help="how large the numbers of an embedding are at first")
    rotary_base: float = added(
        ROTARY_BASE, help="of rotary positions: pair i turns by base^(-2i/d)"
    )

    def __post_init__(self) -> None:
        _refuse_infinite(self)
        for text in dict.fromkeys(self.operators):
            parse_operator(text)
        object.__setattr__(self, "operators", tuple(map(spelled_out, self.operators)))
        check_wholes(self, ("width", "heads"), least=1)
        if len(self.operators) > MOST_LAYERS:
            raise ValueError(
                f"operators are {len(self.operators)}; expected at most {MOST_LAYERS}, one for "
                f"each layer"
            )
        if not 0 <= self.mlp_ratio < 1e4:
            raise ValueError(f"mlp_ratio is {self.mlp_ratio}; expected a number of at least 0")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; expected a share in [0, 1)")
        if not self.embed_std > 0:
            raise ValueError(f"embed_std is {self.embed_std}; expected a positive number")
        if not self.rotary_base >= 1:
            raise ValueError(f"rotary_base is {self.rotary_base}; expected a number of at least 1")
        if self.rotary_base != ROTARY_BASE and self.positions not in ("rotary", "first"):
            raise ValueError(
                f"rotary_base is {self.rotary_base:g} with positions={self.positions}; expected "
                f"positions=rotary or first, or no base"
            )

    @property
    def pretrained(self) -> None:
        """None: such a model's weights are always new."""
        return None

    def with_operators(self, operators: tuple[str, ...]) -> ModelConfig:
        """The same model with other operators in its layers."""
        return dataclasses.replace(self, operators=operators)

    def build(self, task: Task, *, weights: bool = True) -> Transformer:
        """The model, with fresh weights from torch's random state."""
        return Transformer(
            vocab_size=task.vocab_size,
            num_classes=task.num_classes,
            symbols=task.symbols,
            max_length=task.length,
            period=task.period,
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
        )

    def describe(self) -> str:
        """One line for a person."""
        return f"{len(self.operators)} layer(s), width {self.width}, {self.heads} head(s)"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How it is learned."""

    steps: int = option(1000, "optimiser steps; 0 measures the weights as they are")
    batch_size: int = option(64, "sequences per step, over all processes")
    accumulate: int = option(1, "parts that a step's batch is computed in, to save memory")
    lr: float = option(1e-3, "peak learning rate of AdamW")
    warmup: int = option(0, "steps over which the learning rate rises")
    schedule: str = option("constant", f"how it then falls: {', '.join(SCHEDULES)}")
    decay: float = option(1.0, "share of the steps, at the end, over which it falls")
    final_lr: float = option(0.0, "share of the peak that is left at the end of the fall")
    weight_decay: float = option(0.01, "of AdamW")
    beta2: float = option(0.999, "of AdamW")
    clip: float = option(1.0, "largest norm of the gradient; 0 for no limit")
    bf16: bool = option(False, "compute in bfloat16 autocast (the operators stay in float32)")
    seed: int = option(0, "of the weights and of the examples")
    init: str | None = option(None, "run folder whose best weights to start from")
    eval_every: int = option(100, "steps between evaluations on the valid split")
    eval_examples: int = option(512, "sequences of an evaluation; all (0): of a stored split, all")
    test_examples: int = option(2048, "sequences of the final test, in the same way")
    checkpoint_every: int = option(100, "steps between checkpoints to resume from")
    log_every: int = option(10, "steps between lines of metrics.jsonl")
    target: float | None = option(None, "stop early once the task's metric is this good")
    threads: int = option(1, "CPU threads per process; 0 leaves it to torch")
    device: str = option("auto", f"where: {', '.join(DEVICES)}")
    fsdp: bool = option(False, "shard the model with FSDP2 (under torchrun)")
    sampled: bool = added(
        False, help="whether these numbers hold for stored splits too, as a fixed sample; else all"
    )
    context_parallel: int = added(
        1, help="processes that share each sequence (under torchrun), a part of its tokens each"
    )
    gamma_lr: float = added(1e-2, help="peak learning rate of γ, where an operator has gamma=learn")

    def __post_init__(self) -> None:
        _refuse_infinite(self)
        counts = ("batch_size", "accumulate", "eval_every", "checkpoint_every", "log_every")
        check_wholes(self, (*counts, "context_parallel"), least=1)
        check_wholes(self, ("steps", "warmup", "seed", "eval_examples", "test_examples"), least=0)
        check_threads(self.threads, least=0)
        for name in ("clip", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")
        for name in ("lr", "gamma_lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a positive number")
        if not 0 < self.beta2 < 1:
            raise ValueError(f"beta2 is {self.beta2}; expected a number in (0, 1)")
        for name in ("decay", "final_lr"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a share in [0, 1]")
        for name, choices in (("schedule", SCHEDULES), ("device", DEVICES)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {shown(getattr(self, name))}; expected one of {', '.join(choices)}"
                )
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate is {self.accumulate}; expected a divisor of batch_size "
                f"{self.batch_size}"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run."""

    task: Task
    model: ModelConfig | TransformersConfig
    train: TrainConfig

    def build(self, *, weights: bool = True) -> Any:
        """The model; `weights` is false where others are loaded into it at once."""
        return self.model.build(self.task, weights=weights)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` takes back."""
        kind = {"kind": KIND} if isinstance(self.model, TransformersConfig) else {}
        return {
            "task": write_task(self.task),
            "model": {**kind, **to_plain(self.model)},
            "train": to_plain(self.train),
        }

    def identity(self) -> dict[str, Any]:
        """What the run's folder is named by: `to_json`, in the words that were there first.

        So a run that was stored before its task was renamed (`stored_tasks.py`), or before its
        operators had more options (`operators/notation.py`), is found again.
        """
        data = self.to_json()
        return {
            **data,
            "task": former_form(self.task),
            "model": _operators(data["model"], former_text),
        }

    @classmethod
    def from_json(cls, data: Any) -> RunConfig:
        """The run that plain data describes, or a ValueError that names what is wrong."""
        if not isinstance(data, dict) or set(data) != {"task", "model", "train"}:
            raise ValueError("the configuration is not of a run; expected task, model and train")
        model: Any = _operators(data["model"], partial(spelled_out, stored=True))
        made: type[ModelConfig] | type[TransformersConfig] = ModelConfig
        if isinstance(model, dict) and model.get("kind") == KIND:
            made, model = TransformersConfig, {k: v for k, v in model.items() if k != "kind"}
        return cls(
            task=read_task(data["task"]),
            model=from_plain(made, model, "model"),
            train=from_plain(TrainConfig, data["train"], "train"),
        )


def _refuse_infinite(part: ModelConfig | TrainConfig) -> None:
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} is {value}; expected a finite number")


def _operators(model: Any, change: Callable[[str], str]) -> Any:
    """A model's plain data with the texts of its operators changed; what is none is left alone."""
    if not isinstance(model, dict):
        return model
    new = dict(model)
    if isinstance(one := model.get("operator"), str):
        new["operator"] = change(one)
    if isinstance(many := model.get("operators"), list):
        new["operators"] = [change(text) if isinstance(text, str) else text for text in many]
    return new


def defaults(task: str) -> tuple[ModelConfig, TrainConfig]:
    """A model and a training that learn the task of that name on a CPU (docs/findings.md)."""
    if task in ("chains", "properties"):
        return ModelConfig(positions="factorised"), TrainConfig(
            steps=300, batch_size=32, eval_every=50, eval_examples=256, test_examples=10_000,
            checkpoint_every=50,
        )  # fmt: skip
    if task in ("boxes", "boxes-padded", "boxes-text", "boxes-files", "boxes-forms"):
        return ModelConfig(operators=("dense", "chacal")), TrainConfig(
            steps=2400, batch_size=32, warmup=50, schedule="linear", decay=0.3
        )
    if task == "language":
        return ModelConfig(operators=("chacal", "chacal"), qk_norm=None), TrainConfig(
            steps=2000, batch_size=16, warmup=100, schedule="cosine", eval_every=200
        )
    if task == "code":
        return ModelConfig(operators=("dense", "chacal", "dense", "dense")), TrainConfig(
            steps=3000, batch_size=64, warmup=100, schedule="linear", decay=0.3, eval_every=250
        )
    if task == "labelled":
        return ModelConfig(operators=("dense", "chacal", "dense", "dense")), TrainConfig(
            steps=1000, batch_size=16, warmup=50, schedule="linear"
        )
    if task in ("variables", "variables-ruler"):
        return ModelConfig(operators=("dense", "chacal")), TrainConfig(
            steps=2400, batch_size=32, warmup=50, schedule="linear", decay=0.3
        )
    if task == "variables-symbols":
        return ModelConfig(
            operators=("local@2", "chacal,gamma=learn:0.2"), positions="none", heads=2,
            mlp_ratio=1.0, embed_std=1.0,
        ), TrainConfig(
            steps=1200, batch_size=16, lr=2e-3, warmup=50, schedule="linear", decay=0.3,
        )  # fmt: skip
    if task == "noise":
        return ModelConfig(operators=("chacal", "chacal"), width=64), TrainConfig(
            steps=1500, batch_size=32, eval_every=250
        )
    raise ValueError(f"task is {shown(task)}; expected one of {', '.join(TASKS)}")


def fine_tuning() -> TrainConfig:
    """A training that suits a pretrained model, in some hundred steps of a CPU."""
    return TrainConfig(
        steps=240, batch_size=4, lr=2e-4, warmup=20, schedule="linear", decay=0.3, final_lr=0.05,
        weight_decay=0.0, beta2=0.98, eval_every=60, eval_examples=48, test_examples=96,
        checkpoint_every=60,
    )  # fmt: skip
