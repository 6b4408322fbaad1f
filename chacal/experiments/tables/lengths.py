"""tab:lm_length_sweep: trained at N and at N/4, tested at N/4, N/2 and N."""

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
    WINDOW,
    Mechanism,
    block,
    language,
    whole_text,
)
from chacal.experiments.text_scales import TEXT_SCALES
from chacal.report.results import PERPLEXITY, PERPLEXITY_PER_WORD
from chacal.training.config import RunConfig

MECHANISMS = (block(3), block(3, leaks=True), DENSE, CHACAL, WINDOW)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A mechanism; the lengths are parts of N: 4 stands for N/4."""

    mechanism: Mechanism
    trained: int
    tested: int

    @property
    def label(self) -> str:
        """As in "ChaCAL, trained at N/4, tested at N"."""
        trained, tested = (
            "N" if part == 1 else f"N/{part}" for part in (self.trained, self.tested)
        )
        return f"{self.mechanism.label}, trained at {trained}, tested at {tested}"


def _row(trained: int, tested: int) -> Row:
    return Row(mechanism=block(3), trained=trained, tested=tested)


PAPER: dict[Row, Printed] = {
    _row(1, 4): {"perplexity": 21.98},
    _row(1, 2): {"perplexity": 17.99},
    _row(1, 1): {"perplexity": 15.64},
    _row(4, 4): {"perplexity": 13.33},
    _row(4, 2): {"perplexity": 28.79},
    _row(4, 1): {"perplexity": 51.42},
}
"""What the paper prints."""


class LengthsTable(Table[Row]):
    """tab:lm_length_sweep."""

    name = "tab:lm_length_sweep"
    title = "Language modelling, trained and tested at different lengths"
    place = 11
    caption = (
        "Block-ChaCAL n//3 on WikiText-103, perplexity per token of GPT-2's tokenizer; N is its "
        "1024. Of another text nothing can be compared with them"
    )
    metrics = (PERPLEXITY, PERPLEXITY_PER_WORD)
    given = ("train_file", "valid_file", "tokenizer")
    paper = PAPER

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Each mechanism trained twice and tested three times."""
        size, given = TEXT_SCALES[scale.name], scale.given
        text = language(size.text, given, given.tokenizer or size.text.tokenizer)
        n = text.window
        cells = []
        for mechanism in MECHANISMS:
            for trained in (1, 4):
                # as many tokens in a step, whatever their windows
                train = dataclasses.replace(
                    size.text_train, batch_size=trained * size.text_train.batch_size
                )
                # trained at N, it is the run of tab:lm_all; shorter, it must be told of N
                model = dataclasses.replace(size.text_model, positions=0 if trained == 1 else n)
                run = RunConfig(
                    task=dataclasses.replace(text, window=n // trained),
                    model=model.with_operators((mechanism.text(size),)),
                    train=train,
                )
                for tested in (4, 2, 1):
                    row = Row(mechanism=mechanism, trained=trained, tested=tested)
                    settings = () if tested == trained else (f"window={n // tested}",)
                    cells.append(self.cell(row, run, whole_text(train, settings)))
        return cells

    def seeds(self, scale: Scale) -> int:
        """The scale's on text."""
        return TEXT_SCALES[scale.name].text_seeds

    def note(self, scale: Scale) -> str:
        """The scale's on text, and what N is."""
        size = TEXT_SCALES[scale.name]
        return f"{size.text_note}; here N = {size.text.window}"


TABLE = LengthsTable()
