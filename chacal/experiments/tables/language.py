"""tab:lm_all: from scratch with every layer replaced; fine-tuned with one and with all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from chacal.experiments.cells import Cell
from chacal.experiments.scales import Scale
from chacal.experiments.table import Printed, Table
from chacal.experiments.tables._on_text import (
    CHACAL,
    DENSE,
    EFFICIENT,
    ONE_LAYER,
    Mechanism,
    block,
    language,
    whole_text,
)
from chacal.experiments.text_scales import TEXT_SCALES
from chacal.report.results import PERPLEXITY, PERPLEXITY_PER_WORD
from chacal.training.config import RunConfig
from chacal.training.transformers_model import TransformersConfig

GAMMAS = (0.1, 0.5, 0.9)
"""γ at which one layer of a pretrained model is patched, and measured before it is trained."""

SCRATCH, PRETRAINED = "From scratch", "Pretrained, as it is"
PATCHED, ONE, ALL = (
    "One layer patched, not trained",
    "Fine-tuned, one layer",
    "Fine-tuned, all layers",
)

MECHANISMS = (
    DENSE,
    CHACAL,
    *(block(divisor) for divisor in (2, 3, 4)),
    *(block(divisor, leaks=True) for divisor in (2, 3, 4)),
    *EFFICIENT,
)
"""From scratch, and in all layers of a pretrained model."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A mechanism in a setting; γ is told where it is what the row is about."""

    setting: str
    mechanism: Mechanism = DENSE
    gamma: float | None = None

    @property
    def label(self) -> str:
        """As in "Fine-tuned, one layer: ChaCAL, γ=0.1"."""
        if self.setting == PRETRAINED:
            return self.setting
        gamma = "" if self.gamma is None else f", γ={self.gamma}"
        return f"{self.setting}: {self.mechanism.label}{gamma}"


TUNED = (
    Row(setting=PRETRAINED),
    *(Row(setting=PATCHED, mechanism=CHACAL, gamma=gamma) for gamma in GAMMAS),
    *(Row(setting=ONE, mechanism=CHACAL, gamma=gamma) for gamma in GAMMAS),
    *(
        Row(setting=ONE, mechanism=mechanism)
        for mechanism in (block(3), block(3, leaks=True), *EFFICIENT)
    ),
    *(Row(setting=ALL, mechanism=mechanism) for mechanism in MECHANISMS),
)


PAPER: dict[Row, Printed] = {
    Row(setting=PRETRAINED): {"perplexity": 23.78},
    Row(setting=ALL, mechanism=DENSE): {"perplexity": 20.15},
    Row(setting=ALL, mechanism=CHACAL): {"perplexity": 21.46},
    Row(setting=ALL, mechanism=block(2)): {"perplexity": 22.60},
    Row(setting=ALL, mechanism=block(3)): {"perplexity": 22.08},
    Row(setting=ALL, mechanism=block(4)): {"perplexity": 22.60},
    Row(setting=SCRATCH, mechanism=DENSE): {"perplexity": 16.46},
    Row(setting=SCRATCH, mechanism=CHACAL): {"perplexity": 17.57},
    Row(setting=SCRATCH, mechanism=block(2)): {"perplexity": 15.96},
    Row(setting=SCRATCH, mechanism=block(3)): {"perplexity": 15.64},
    Row(setting=SCRATCH, mechanism=block(4)): {"perplexity": 15.18},
}
"""What the paper prints."""


class LanguageTable(Table[Row]):
    """tab:lm_all."""

    name = "tab:lm_all"
    title = "Language modelling, from scratch and fine-tuned, attention replaced"
    place = 10
    caption = (
        "perplexity per token of GPT-2's tokenizer at n = 1024, on OpenWebText (fine-tuned) and "
        "WikiText-103 (from scratch); no seeds or spread. Of another text or another tokenizer "
        "nothing can be compared with them"
    )
    metrics = (PERPLEXITY, PERPLEXITY_PER_WORD)
    given = ("train_file", "valid_file", "tokenizer", "pretrained")
    paper = PAPER

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """From scratch first, then of a pretrained model."""
        size, given = TEXT_SCALES[scale.name], scale.given
        text = language(size.text, given, given.tokenizer or size.text.tokenizer)
        cells = []
        for mechanism in MECHANISMS:
            run = RunConfig(
                task=text,
                model=size.text_model.with_operators((mechanism.text(size),)),
                train=size.text_train,
            )
            row = Row(setting=SCRATCH, mechanism=mechanism)
            cells.append(self.cell(row, run, whole_text(run.train)))
        model = size.tuned_model
        if given.pretrained is not None:
            model = TransformersConfig(pretrained=given.pretrained)
        tuned = language(size.tuned_text, given, model.pretrained or size.tuned_text.tokenizer)
        for row in TUNED:
            gamma = size.tuned_gamma if row.gamma is None else row.gamma
            untrained = row.setting in (PRETRAINED, PATCHED)
            run = RunConfig(
                task=tuned,
                model=dataclasses.replace(
                    model,
                    operator=row.mechanism.text(size, gamma),
                    layers="all" if row.setting in (PRETRAINED, ALL) else str(ONE_LAYER),
                ),
                train=dataclasses.replace(size.tuned_train, steps=0)
                if untrained
                else size.tuned_train,
            )
            cells.append(self.cell(row, run, whole_text(run.train)))
        return cells

    def seeds(self, scale: Scale) -> int:
        """The scale's on text."""
        return TEXT_SCALES[scale.name].text_seeds

    def note(self, scale: Scale) -> str:
        """The scale's on text."""
        return TEXT_SCALES[scale.name].text_note


TABLE = LanguageTable()
