"""The paper's tables on code and text: as in `tables.py`, functions that only declare cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from chacal.experiments.cells import Cell, Evaluation, Table
from chacal.experiments.scales import Given, Scale
from chacal.experiments.text_scales import TEXT_SCALES, TextScale
from chacal.tasks import Code, Labelled
from chacal.training.config import ModelConfig, RunConfig
from chacal.training.decoders import DecoderConfig

ONE_LAYER = 1
"""The paper's "layer 2", counted from 0."""


def copilot(scale: Scale) -> Table:
    """tab:copilot_results: our programs, or texts and labels of your own; layer 2 replaced."""
    size, given = TEXT_SCALES[scale.name], scale.given
    given.refuse_but("tab:copilot_results", "train_file", "valid_file", "tokenizer", "pretrained")
    rows = {"Transformer": "dense", "ChaCAL": "chacal"}
    rows |= {f"Block-ChaCAL n//{j}": f"block/{j}" for j in (2, 3, 4)}
    rows |= efficient(size)
    task, model = _code_task(size, given), size.code_model
    if given.pretrained is not None:
        model = DecoderConfig(pretrained=given.pretrained, layers="paper:code")
    note = size.code_note
    if given.train_file or given.pretrained:
        note = f"{scale.name}, with data or a model of the user's own: as told below"
    return Table(
        name="tab:copilot_results",
        metrics=("accuracy", "loss"),
        cells=tuple(
            Cell(
                row=row,
                run=RunConfig(task=task, model=in_layer_2(model, operator), train=size.code_train),
                evaluation=Evaluation(
                    examples=size.code_examples, batch_size=min(64, size.code_train.batch_size)
                ),
            )
            for row, operator in rows.items()
        ),
        seeds=scale.seeds or 3,
        note=note,
    )


def efficient(size: TextScale) -> dict[str, str]:
    """Rows of the operators of our own, and of fixed patterns."""
    return {
        "Window resolvent": f"window@{2 * size.tile}",
        "Pooled resolvent": f"pooled@{size.tile},near=1",
        "Routed resolvent": f"routed@{size.tile},routes=2,parts=3",
        "Pattern of powers": "pattern,offsets=powers",
    }


def in_layer_2(model: ModelConfig | DecoderConfig, operator: str) -> ModelConfig | DecoderConfig:
    """The model with the operator in its second layer only."""
    if isinstance(model, DecoderConfig):
        return dataclasses.replace(model, operator=operator)
    operators = tuple(
        operator if i == ONE_LAYER else text for i, text in enumerate(model.operators)
    )
    return model.with_operators(operators)


def _code_task(size: TextScale, given: Given) -> Code | Labelled:
    tokenizer = given.tokenizer or given.pretrained or size.code.tokenizer
    if given.train_file is None and given.valid_file is None:
        return dataclasses.replace(size.code, tokenizer=tokenizer)
    if given.train_file is None or given.valid_file is None:
        raise ValueError("one of --train-file and --valid-file is given; expected both, or none")
    return Labelled(
        train_file=given.train_file,
        valid_file=given.valid_file,
        test_file=given.valid_file,
        tokenizer=tokenizer,
        max_tokens=size.code.max_tokens,
    )


ON_TEXT: dict[str, Callable[[Scale], Table]] = {"tab:copilot_results": copilot}
"""Tables that take data and models of the user's own."""
