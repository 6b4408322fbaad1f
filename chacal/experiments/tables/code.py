"""tab:copilot_results: our programs, or texts and labels of your own; only layer 2 replaced.

The paper's data set is not identified: no figure of it may stand beside ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from chacal.experiments.cells import Cell, Evaluation
from chacal.experiments.scales import Given, Scale
from chacal.experiments.table import Table
from chacal.experiments.tables._on_text import (
    CHACAL,
    EFFICIENT,
    ONE_LAYER,
    Mechanism,
    block,
    has_files,
)
from chacal.experiments.text_scales import TEXT_SCALES, TextScale
from chacal.report.results import ACCURACY, LOSS
from chacal.tasks import Code, Labelled
from chacal.training.config import ModelConfig, RunConfig
from chacal.training.transformers_model import TransformersConfig

ROWS = (
    Mechanism(name="Transformer", operator="dense"),
    CHACAL,
    *(block(divisor) for divisor in (2, 3, 4)),
    *EFFICIENT,
)


class CodeTable(Table[Mechanism]):
    """tab:copilot_results."""

    name = "tab:copilot_results"
    title = "Code: the value of a variable at the end of a program, only layer 2 replaced"
    place = 13
    caption = (
        "of a data set that it does not identify (no citation, labels or sizes); they are not of "
        "these programs, and are not shown"
    )
    metrics = (ACCURACY, LOSS)
    given = ("train_file", "valid_file", "tokenizer", "pretrained")

    def cells(self, scale: Scale) -> Sequence[Cell[Mechanism]]:
        """Every mechanism in the second layer."""
        size, given = TEXT_SCALES[scale.name], scale.given
        task, model = _task(size, given), size.code_model
        if given.pretrained is not None:
            model = TransformersConfig(pretrained=given.pretrained, layers="paper:code")
        test = Evaluation(
            examples=size.code_examples, batch_size=min(64, size.code_train.batch_size)
        )
        runs = {
            row: RunConfig(
                task=task, model=in_layer_2(model, row.text(size)), train=size.code_train
            )
            for row in ROWS
        }
        return [self.cell(row, run, test) for row, run in runs.items()]

    def note(self, scale: Scale) -> str:
        """The scale's, or that it is not ours."""
        given = scale.given
        if given.train_file or given.pretrained:
            return f"{scale.name}, with data or a model of the user's own"
        return TEXT_SCALES[scale.name].code_note


def in_layer_2(
    model: ModelConfig | TransformersConfig, operator: str
) -> ModelConfig | TransformersConfig:
    """The model with the operator in its second layer only."""
    if isinstance(model, TransformersConfig):
        return model.with_operators((operator,))
    operators = tuple(
        operator if i == ONE_LAYER else text for i, text in enumerate(model.operators)
    )
    return model.with_operators(operators)


def _task(size: TextScale, given: Given) -> Code | Labelled:
    tokenizer = given.tokenizer or given.pretrained or size.code.tokenizer
    if not has_files(given):
        return dataclasses.replace(size.code, tokenizer=tokenizer)
    return Labelled(
        train_file=given.train_file or "",
        valid_file=given.valid_file or "",
        test_file=given.valid_file,
        tokenizer=tokenizer,
        max_tokens=size.code.max_tokens,
    )


TABLE = CodeTable()
