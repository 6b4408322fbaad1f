"""tab:scrolls: BART as it is, fine-tuned, and with its first decoder layer replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chacal.experiments.cells import Cell, Evaluation
from chacal.experiments.scales import Given, Scale
from chacal.experiments.table import Printed, Table
from chacal.experiments.text_scales import TEXT_SCALES
from chacal.report.results import Metric
from chacal.tasks import Scrolls
from chacal.training.config import RunConfig
from chacal.training.transformers_model import TransformersConfig

DATA = {
    "gov_report": "GovReport",
    "narrative_qa": "NarrativeQA",
    "contract_nli": "ContractNLI",
}
"""The data sets of the paper's table."""

NEW = "none"
"""Given in the place of a pretrained encoder-decoder, where there is none to be had."""

ZERO_SHOT, STANDARD, MODIFIED = "zero-shot", "FT (standard)", "FT (modified)"
TREATMENTS = {
    ZERO_SHOT: "dense",
    STANDARD: "dense",
    MODIFIED: "block/3,values=rows",
    "FT (modified, exact ChaCAL)": "chacal",
}
"""What is done to the model, and the operator of its first decoder layer."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A data set of SCROLLS, and what is done to the model."""

    dataset: str
    treatment: str

    @property
    def label(self) -> str:
        """As in "GovReport: zero-shot"."""
        return f"{DATA[self.dataset]}: {self.treatment}"


def _row(dataset: str, treatment: str) -> Row:
    return Row(dataset=dataset, treatment=treatment)


def _rouge(one: float, two: float, longest: float, mean: float) -> Printed:
    return {"rouge1": one, "rouge2": two, "rougeL": longest, "rouge": mean}


PAPER: dict[Row, Printed] = {
    _row("gov_report", ZERO_SHOT): _rouge(29.68, 10.84, 16.32, 16.99),
    _row("gov_report", STANDARD): _rouge(48.18, 23.55, 29.26, 31.64),
    _row("gov_report", MODIFIED): _rouge(38.46, 11.52, 20.12, 20.43),
    _row("narrative_qa", ZERO_SHOT): {"f1": 2.39},
    _row("narrative_qa", STANDARD): {"f1": 11.63},
    _row("narrative_qa", MODIFIED): {"f1": 7.86},
    _row("contract_nli", ZERO_SHOT): {"em": 30.63},
    _row("contract_nli", STANDARD): {"em": 59.38},
    _row("contract_nli", MODIFIED): {"em": 36.72},
}
"""What the paper prints."""


class ScrollsTable(Table[Row]):
    """tab:scrolls."""

    name = "tab:scrolls"
    title = "SCROLLS with BART, the first decoder self-attention layer replaced"
    place = 12
    caption = (
        "BART-base, 1024 tokens in, the whole validation sets, n//3; no seeds or spread. Of "
        "shorter inputs, fewer rows or a smaller model nothing can be compared with them"
    )
    metrics = (
        Metric(name="rouge1", title="ROUGE-1"),
        Metric(name="rouge2", title="ROUGE-2"),
        Metric(name="rougeL", title="ROUGE-L"),
        Metric(name="rouge", title="ROUGE-GM"),
        Metric(name="f1", title="F1"),
        Metric(name="em", title="EM"),
    )
    given = ("data", "tokenizer", "pretrained")
    paper = PAPER

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Every data set that is there, in every treatment."""
        size, given = TEXT_SCALES[scale.name], scale.given
        model = size.scrolls_model
        if given.pretrained == NEW:
            model = TransformersConfig(architecture="bart", width=128, heads=4, depth=3)
        elif given.pretrained is not None:
            model = TransformersConfig(pretrained=given.pretrained)
        there = _there(given)
        if not there:
            raise ValueError(
                f"--data is {given.data!r} and holds none of {', '.join(DATA)}; expected a folder "
                f"with one of them, each with train.jsonl and validation.jsonl"
            )
        cells = []
        for dataset in there:
            task: Scrolls = dataclasses.replace(
                size.scrolls,
                dataset=dataset,
                data=given.data or size.scrolls.data,
                tokenizer=given.tokenizer or model.pretrained,
            )
            epoch = -(-task.train_rows // size.scrolls_train.batch_size)
            steps = min(epoch, size.scrolls_steps or epoch)
            tuned = (
                size.scrolls_new
                if given.pretrained == NEW
                else dataclasses.replace(size.scrolls_train, steps=steps, warmup=-(-steps // 10))
            )
            as_it_is = dataclasses.replace(tuned, steps=0, warmup=0)
            for treatment, operator in TREATMENTS.items():
                run = RunConfig(
                    task=task,
                    model=dataclasses.replace(model, operator=operator, layers="paper:scrolls"),
                    train=as_it_is if treatment == ZERO_SHOT else tuned,
                )
                test = Evaluation(examples=1, batch_size=8)
                cells.append(self.cell(_row(dataset, treatment), run, test))
        return cells

    def seeds(self, scale: Scale) -> int:
        """The scale's on text."""
        return TEXT_SCALES[scale.name].text_seeds

    def note(self, scale: Scale) -> str:
        """The scale's, whether the model is pretrained, and what was not there."""
        size, given = TEXT_SCALES[scale.name], scale.given
        note, new = size.scrolls_note, size.scrolls_new
        if given.pretrained == NEW:
            note += (
                f"; NOT pretrained: BART of 3 + 3 layers, width 128, new weights, and so "
                f"{new.steps} steps of {new.batch_size} at {new.lr:g}"
            )
        missing = [name for dataset, name in DATA.items() if dataset not in _there(given)]
        return note + (f"; {', '.join(missing)} not in the folder, not run" if missing else "")


def _there(given: Given) -> list[str]:
    """The data sets that a folder has; the hub has all."""
    return [name for name in DATA if given.data is None or (Path(given.data) / name).is_dir()]


TABLE = ScrollsTable()
