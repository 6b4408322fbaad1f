"""tab:kim_schuster: a pretrained model fine-tuned on their stories, in the splits of their paper.

Kim and Schuster (2023) fine-tune T5-base and draw curves over the number of operations that change
a box. They print no figures but one: with at most two operations in training, "more than 45 %" of
longer stories are right.

With `--data`, the folder of their data sets, these are read. Without, stories of the same forms are
made here (`tasks/boxes_forms.py`), and AmbiRef, which has no such form, is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chacal.experiments.cells import Cell, Evaluation
from chacal.experiments.scales import Given, Scale
from chacal.experiments.table import Found, Table
from chacal.experiments.tables._arithmetic import mean_of
from chacal.experiments.text_scales import SMOLLM
from chacal.report.drawings import Line, LinePlot, Panel
from chacal.report.results import ACCURACY, EXACT_MATCH, ByGroup
from chacal.tasks import BoxesFiles, BoxesForms
from chacal.training.config import RunConfig, TrainConfig, fine_tuning
from chacal.training.transformers_model import TransformersConfig, every_layer


@dataclass(frozen=True, kw_only=True)
class Split:
    """How their paper divides training and test.

    Attributes:
        name: theirs.
        folder: of its files.
        text: what is different.
        train: the file of the training, where it has a name of its own.
        fields: of `BoxesForms` that divide generated stories alike; None where none do.
    """

    name: str
    folder: str
    text: str
    train: str = "train-t5.jsonl"
    fields: tuple[tuple[str, Any], ...] | None = ()


SPLITS = (
    Split(name="Base", folder="boxes_nso_exp2_max3", text="the same form in training and test"),
    Split(
        name="NumOps", folder="boxes_nso_numops_trainlen=2_exp2_max3",
        text="at most 2 operations in training", fields=(("train_operations", 2),),
    ),
    Split(
        name="AltForms", folder="boxes_nso_exp2_max3_alt_forms_train",
        text="other words and other things in training", train="train-disjoint-vocab-t5.jsonl",
        fields=(("train_form", "alternative"),),
    ),
    Split(
        name="MoveContents", folder="boxes_nso_exp2_max3_move_contents",
        text="\"Move the contents of Box 1\" in both", fields=(("form", "contents"),),
    ),
    Split(
        name="AmbiRef", folder="boxes_nso_exp2_max3_pragmatics",
        text="adjectives left out where the box tells which is meant", fields=None,
    ),
)  # fmt: skip
"""In the order of their paper."""

DENSE, FROM_ZERO, SOME_FROM_ZERO, SOME_FROM_HALF = (
    "dense",
    "γ learned from 0, all layers",
    "γ learned from 0, some layers",
    "γ learned from 0.5, some layers",
)
SOME = "middle"
"""Which layers "some" are, in the words of `patch`."""

OPERATORS = {
    DENSE: ("dense", "all"),
    FROM_ZERO: ("chacal,gamma=learn", "all"),
    SOME_FROM_ZERO: ("chacal,gamma=learn", SOME),
    SOME_FROM_HALF: ("chacal,gamma=learn:0.5", SOME),
}
"""What stands in the patched layers, and which they are."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large everything is.

    Attributes:
        task: the generated stories.
        model: what is fine-tuned.
        train: how.
        examples: of the test set.
        seeds: of every cell.
        note: what is reduced.
        together: whether their lines on one story are one text to train on.
    """

    task: BoxesForms
    model: TransformersConfig
    train: TrainConfig
    examples: int
    seeds: int
    note: str
    together: bool = False


SIZES = {
    "smoke": Size(
        task=BoxesForms(boxes=2, operations=3),
        model=TransformersConfig(width=16, heads=2, depth=2),
        train=TrainConfig(
            steps=2, batch_size=2, eval_every=2, eval_examples=4, test_examples=4,
            checkpoint_every=2, sampled=True,
        ),
        examples=32,
        seeds=1,
        note="SMOKE: a few steps of a tiny model that is not pretrained. No figure means anything",
    ),
    "cpu": Size(
        task=BoxesForms(boxes=5, operations=8),
        model=TransformersConfig(pretrained=SMOLLM),
        train=dataclasses.replace(
            fine_tuning(), steps=120, bf16=True, eval_every=120, eval_examples=32,
            test_examples=32, sampled=True,
        ),
        examples=256,
        seeds=1,
        note="cpu: SmolLM2-135M, 120 steps of 4 texts, AdamW 2e-4, bfloat16, 256 test examples; of "
        "their files a text is a story that all its boxes are asked of; generated stories have 5 "
        "boxes and at most 8 operations",
        together=True,
    ),
    "paper": Size(
        task=BoxesForms(),
        model=TransformersConfig(pretrained=SMOLLM),
        train=dataclasses.replace(
            fine_tuning(), steps=11_262, batch_size=8, lr=1e-4, warmup=500, eval_every=1000,
            eval_examples=1024, test_examples=1024, checkpoint_every=1000, sampled=True,
        ),
        examples=10_000,
        seeds=3,
        note="paper: SmolLM2-135M (theirs: T5-base), 11,262 steps of 8, which is one epoch of "
        "90,090 examples, AdamW 1e-4, 10,000 test examples",
    ),
}  # fmt: skip
"""By the names of `scales.SCALES`."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A split, and what stands in the patched layers."""

    split: str
    operator: str

    @property
    def label(self) -> str:
        """As in "NumOps: dense"."""
        return f"{self.split}: {self.operator}"


class KimSchusterTable(Table[Row]):
    """tab:kim_schuster."""

    name = "tab:kim_schuster"
    title = "Kim and Schuster's stories, fine-tuned: what a box holds, by operations that change it"
    place = 14
    caption = (
        "none: the splits are those of Kim and Schuster (2023), who fine-tune T5-base and draw "
        "curves: nearly all right on Base, more than 45 % even of long stories on NumOps, slightly "
        "worse than Base on AmbiRef and MoveContents, much worse on AltForms"
    )
    metrics = (EXACT_MATCH, ACCURACY)
    by_group = (
        ByGroup(
            metric="exact_match",
            by="numops",
            text="Exact match (%) by how many operations changed the box.",
        ),
    )
    given = ("data", "pretrained", "tokenizer")

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Every split that is there, with every operator."""
        size, given = SIZES[scale.name], scale.given
        model = size.model
        if given.pretrained is not None:
            model = TransformersConfig(pretrained=given.pretrained)
        splits = _there(given)
        if not splits:
            folders = ", ".join(split.folder for split in SPLITS)
            raise ValueError(f"--data is {given.data!r} and holds none of {folders}; expected some")
        test = Evaluation(examples=size.examples, batch_size=16)
        cells = []
        for split in splits:
            task = _task(split, size, given, given.tokenizer or model.pretrained)
            for name, (operator, layers) in OPERATORS.items():
                where = every_layer(model.pretrained) if layers == "all" else layers
                patched = dataclasses.replace(model, operator=operator, layers=where)
                run = RunConfig(task=task, model=patched, train=size.train)
                cells.append(self.cell(Row(split=split.name, operator=name), run, test))
        return cells

    def seeds(self, scale: Scale) -> int:
        """The table's own."""
        return SIZES[scale.name].seeds

    def note(self, scale: Scale) -> str:
        """The scale's, whose stories they are, and what was not there."""
        size, given = SIZES[scale.name], scale.given
        there = _there(given)
        missing = [split.name for split in SPLITS if split not in there]
        whose = "stories made here, NOT theirs" if given.data is None else "their files"
        parts = [size.note, whose, "some layers: four of the middle"]
        parts += [f"a model of the user's own: {given.pretrained}"] if given.pretrained else []
        parts += [f"not there, not run: {', '.join(missing)}"] if missing else []
        parts += [f"{split.name}: {split.text}" for split in there]
        return "; ".join(parts)

    def findings(self, found: Sequence[Found[Row]]) -> list[str]:
        """Of every split, what the patched model has more or less than the dense one."""
        right = mean_of(found, "exact_match")
        told = []
        for split in SPLITS:
            dense = right.get(Row(split=split.name, operator=DENSE))
            others = {
                name: right[row]
                for name in (FROM_ZERO, SOME_FROM_ZERO, SOME_FROM_HALF)
                if (row := Row(split=split.name, operator=name)) in right
            }
            if dense is not None and others:
                each = [f"{name} {100 * (own - dense):+.1f}" for name, own in others.items()]
                told.append(
                    f"{split.name}: dense {100 * dense:.1f} % exact; in points against it: "
                    f"{'; '.join(each)}."
                )
        return told

    def line_plots(self, found: Sequence[Found[Row]]) -> list[LinePlot]:
        """Exact match against operations, a panel for each split."""
        panels = []
        for split in SPLITS:
            lines = []
            for of in (of for of in found if of.row.split == split.name):
                shares = of.result.broken_down("exact_match", "numops")
                if shares:
                    y = tuple(100 * figure.mean for figure in shares.values())
                    lines.append(Line(name=of.row.operator, x=tuple(shares), y=y))
            if lines:
                panels.append(Panel(title=split.name, across="operations", lines=tuple(lines)))
        if not panels:
            return []
        return [
            LinePlot(
                name="operations",
                text="Exact match against the number of operations that changed the box.",
                up="exact match (%)",
                panels=tuple(panels),
            )
        ]


def _there(given: Given) -> list[Split]:
    """The splits whose files are in the folder; without one, those that can be made."""
    if given.data is None:
        return [split for split in SPLITS if split.fields is not None]
    return [split for split in SPLITS if (Path(given.data) / split.folder).is_dir()]


def _task(split: Split, size: Size, given: Given, tokenizer: str | None) -> BoxesFiles | BoxesForms:
    if given.data is None:
        fields: dict[str, Any] = dict(split.fields or ())
        return dataclasses.replace(size.task, tokenizer=tokenizer, **fields)
    folder = Path(given.data) / split.folder
    return BoxesFiles(
        data=str(folder), tokenizer=tokenizer, train_name=split.train, together=size.together
    )


TABLE = KimSchusterTable()
