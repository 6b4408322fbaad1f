"""`chacal train`: a run's configuration from what was given on the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from chacal.commands.options import choose_operators, collect, given_options, refuse_options
from chacal.tasks import TASKS
from chacal.tasks.tokenizers import is_path
from chacal.training.config import ModelConfig, RunConfig, TrainConfig, defaults, fine_tuning
from chacal.training.transformers_model import TransformersConfig

TOLD = {"boxes": "boxes-text"}
"""The task that tells one's examples in plain words, where it is another."""


OF_PRETRAINED = ("first_layers", "lora", "freeze")
"""Options of a model that has pretrained weights."""


def is_text(name: str) -> bool:
    """Whether a task's examples can be told to a pretrained model, through its tokenizer."""
    # tasks are dataclasses, which their base class alone is not
    fields = dataclasses.fields(TASKS[TOLD.get(name, name)])  # type: ignore[arg-type]
    return any(field.name == "tokenizer" for field in fields)


def run_config(name: str, values: dict[str, Any]) -> RunConfig:
    """The run that the options of `chacal train NAME` ask for."""
    values = {**values, "sampled": True}
    pretrained = values.get("pretrained")
    if pretrained is None:
        for field in OF_PRETRAINED:
            if values.get(field):
                raise ValueError(
                    f"{field} is {values[field]!r}, and there are no pretrained weights; expected "
                    f"--pretrained with it"
                )
    elif is_path(pretrained) and not Path(pretrained).exists():
        raise ValueError(
            f"pretrained is {pretrained!r}, which is not there; expected a folder, a GGUF file or "
            f"a hub name"
        )
    task: Any = _task(name, values, pretrained)
    if pretrained is not None:
        return RunConfig(task=task, model=_pretrained(values), train=_fine_tuning(values))
    model, _ = defaults(name)
    values["operators"] = choose_operators(
        values["operators"], values["operator"], values["layers"], model.operators
    )
    return RunConfig(
        task=task, model=collect(ModelConfig, values), train=collect(TrainConfig, values)
    )


def _task(name: str, values: dict[str, Any], pretrained: str | None) -> Any:
    kind = TASKS[name]
    data = values.get("data") if name == "boxes" else None
    if data:
        refuse_options(kind, "they describe generated stories, and --data reads its own")
        kind = TASKS["boxes-files"]
    elif pretrained is not None:
        kind = TASKS[TOLD.get(name, name)]
    own = dict(values)
    if pretrained is not None and own.get("tokenizer") is None:
        own["tokenizer"] = pretrained
    return collect(kind, own)


def _pretrained(values: dict[str, Any]) -> TransformersConfig:
    refuse_options(ModelConfig, "a pretrained model has its own; --operator fills its --layers")
    return TransformersConfig(
        operator=values["operator"] or "dense",
        layers=values["layers"] or "all",
        pretrained=values["pretrained"],
        **{name: values[name] for name in OF_PRETRAINED},
    )


def _fine_tuning(values: dict[str, Any]) -> TrainConfig:
    """What was given, and for the rest what suits pretrained weights."""
    given = {name: values[name] for name in ("sampled", *given_options(TrainConfig))}
    return dataclasses.replace(fine_tuning(), **given)
