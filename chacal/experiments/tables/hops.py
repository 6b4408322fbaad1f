"""tab:hops: a pretrained model that follows chains of assignments, by the number of hops.

The table is ours. It asks when a resolvent helps a model that people already have: the same text,
steps and rates for all, with ordinary attention, with a γ per head that learns in one layer, in
four or in all, and with the model cut to its first layers: how many of them is one resolvent worth?
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from chacal._depth import nearest
from chacal.experiments.cells import Cell, Evaluation
from chacal.experiments.scales import Scale
from chacal.experiments.table import Found, Table
from chacal.experiments.tables._arithmetic import DOUBLINGS, by_doublings, mean_of
from chacal.experiments.text_scales import TEXT_SCALES
from chacal.report.drawings import Line, LinePlot, Panel
from chacal.report.results import EXACT_MATCH, LOSS, ByGroup
from chacal.training.config import RunConfig
from chacal.training.transformers_model import TransformersConfig, layers_of

FEW = 20
"""Questions below which a group has no point: its share would be chance."""

FAR = 4
"""Hops that a few layers of ordinary attention do not follow."""

COUNTS: dict[int | str, str] = {1: "one", 4: "four"}

LEARNED = "chacal,gamma=learn:0.5"
FROM_ZERO = "chacal,gamma=learn"
WINDOW = "window@64,gamma=learn:0.5"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model, fine-tuned.

    Attributes:
        operator: of the patched layers.
        patched: where they are, as shares of the depth; none for an unpatched model, "all" for all.
        first: how many of the model's layers there are; 0 for all.
        longer: whether it is tested on longer texts than it was trained on.
        rate: of AdamW, if not the scale's.
        harder: whether names are pairs of words, of several tokens each, with noise in between.
    """

    operator: str = "dense"
    patched: tuple[float, ...] | str = ()
    first: int = 0
    longer: bool = False
    rate: float = 0.0
    harder: bool = False

    @property
    def mechanism(self) -> str:
        """As in "γ from 0.5 in one"."""
        start = {LEARNED: "γ from 0.5", FROM_ZERO: "γ from 0", WINDOW: "window of 64, γ from 0.5"}
        if self.operator == "dense":
            return "dense"
        count = self.patched if isinstance(self.patched, str) else len(self.patched)
        return f"{start[self.operator]} in {COUNTS.get(count, count)}"

    @property
    def label(self) -> str:
        """As in "first 8 layers, γ from 0.5 in one"."""
        model = f"first {self.first} layers" if self.first else "whole model"
        rate = f", AdamW {self.rate:g}" if self.rate else ""
        texts = ", pairs as names and noise" * self.harder + ", longer texts" * self.longer
        return f"{model}, {self.mechanism}{rate}{texts}"

    def layers(self, depth: int, free: Sequence[int]) -> list[int]:
        """The patched layers of a model of so many: of those that can be, the nearest ones."""
        if self.patched == "all":
            return list(free)
        return sorted(nearest(free, [float(share) for share in self.patched], depth))

    @property
    def varied(self) -> bool:
        """Whether the model, its training or its texts are other than those of the first rows."""
        return bool(self.first or self.rate or self.harder)

    @property
    def plain(self) -> Row:
        """The same with ordinary attention, which it is held against."""
        return dataclasses.replace(self, operator="dense", patched=())


MIDDLE = (0.5,)
FOUR = (0.34, 0.47, 0.6, 0.74)
"""Of 30 layers: 10, 14, 18 and 22."""

RATES = (1e-4, 4e-4)
"""Beside the scale's 2e-4: whether the comparison is one of rates."""

KINDS = (
    Row(),
    Row(operator=LEARNED, patched=MIDDLE),
    Row(operator=LEARNED, patched=FOUR),
    Row(operator=FROM_ZERO, patched=FOUR),
    Row(operator=WINDOW, patched=FOUR),
    Row(operator=LEARNED, patched="all"),
    Row(operator=FROM_ZERO, patched="all"),
    *(
        Row(operator=operator, patched=patched, first=first)
        for first in (4, 8, 16)
        for operator, patched in (("dense", ()), (LEARNED, MIDDLE), (FROM_ZERO, MIDDLE))
    ),
    *(
        Row(operator=operator, patched=patched, first=first)
        for first in (16, 24)
        for operator, patched in (("dense", ()), (LEARNED, FOUR))
    ),
    *(
        Row(operator=operator, patched=patched, rate=rate)
        for rate in RATES
        for operator, patched in (("dense", ()), (LEARNED, FOUR), (FROM_ZERO, FOUR))
    ),
    *(
        Row(operator=operator, patched=patched, harder=True)
        for operator, patched in (("dense", ()), (LEARNED, FOUR), (FROM_ZERO, FOUR))
    ),
)


class HopsTable(Table[Row]):
    """tab:hops."""

    name = "tab:hops"
    title = "A pretrained model on chains of assignments, by the number of hops"
    place = 15
    metrics = (EXACT_MATCH, LOSS)
    by_group = (
        ByGroup(
            metric="exact_match",
            by="hops",
            text="Share of questions that are right, by how many assignments stand between a name "
            "and its value.",
        ),
    )
    given = ("pretrained",)

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Every model on texts as it was trained on, and the whole ones on longer texts too."""
        size = TEXT_SCALES[scale.name]
        model = size.hops_model
        if scale.given.pretrained is not None:
            model = dataclasses.replace(model, pretrained=scale.given.pretrained)
        depth, free = _layers(model.pretrained, size.hops_depth)
        test = Evaluation(examples=size.hops_examples, batch_size=size.hops_train.batch_size)
        longer = dataclasses.replace(test, settings=(f"statements={size.hops_longer}",))
        cells: list[Cell[Row]] = []
        for row in KINDS:
            cut = _cut(model, row, depth, free)
            if cut is None:
                continue
            task = dataclasses.replace(size.hops, tokenizer=model.pretrained)
            if row.harder:
                half = max(task.min_statements, task.statements // 2)
                names = "pairs" if task.tokenizer else task.names
                task = dataclasses.replace(task, statements=half, names=names, noise=0.5)
            settings = size.hops_train
            if row.rate:
                settings = dataclasses.replace(settings, lr=row.rate)
            run = RunConfig(task=task, model=cut, train=settings)
            if any(cell.run == run for cell in cells):
                continue  # of a model with few layers that can be patched, four are all
            cells.append(self.cell(row, run, test))
            if not row.varied:
                cells.append(self.cell(dataclasses.replace(row, longer=True), run, longer))
        return cells

    def seeds(self, scale: Scale) -> int:
        """The scale's on text."""
        return TEXT_SCALES[scale.name].text_seeds

    def note(self, scale: Scale) -> str:
        """What the scale reduces."""
        return TEXT_SCALES[scale.name].hops_note

    def findings(self, found: Sequence[Found[Row]]) -> list[str]:
        """Each patched model against the same model with ordinary attention."""
        right = mean_of(found, "exact_match")
        far = {of.row: _far(of) for of in found}
        said = []
        for row in right:
            if row.operator == "dense" or row.plain not in right:
                continue
            said.append(
                f"{row.label}: {100 * right[row]:.1f} % right, dense {100 * right[row.plain]:.1f} "
                f"%; from {FAR} hops on {_told(far[row])}, dense {_told(far[row.plain])}."
            )
        return said

    def line_plots(self, found: Sequence[Found[Row]]) -> list[LinePlot]:
        """Right answers against hops: of whole models on three kinds of text, and of cut ones."""
        whole = {
            "as trained": lambda row: not (row.varied or row.longer),
            "longer texts": lambda row: row.longer,
            "pairs, noise": lambda row: row.harder,
        }
        cut = {
            f"first {first}": lambda row, first=first: row.first == first
            for first in sorted({of.row.first for of in found} - {0})
        }
        few = f"groups of fewer than {FEW} questions left out"
        kinds = (
            ("hops", f"Right answers by the number of hops ({few}).", whole),
            ("first", f"The same of a model cut to its first layers ({few}).", cut),
        )
        plots = []
        for name, text, panels in kinds:
            drawn = tuple(
                Panel(title=title, across="hops", lines=lines, ticks=DOUBLINGS)
                for title, fits in panels.items()
                if (lines := _lines([of for of in found if fits(of.row)]))
            )
            if drawn:
                plots.append(
                    LinePlot(name=f"exact_match/{name}", text=text, up="right (%)", panels=drawn,
                             percent=True, height=4.6)
                )  # fmt: skip
        return plots


def _lines(found: Sequence[Found[Row]]) -> tuple[Line, ...]:
    """One for every mechanism that was asked enough at some number of hops."""
    return tuple(
        Line(name=of.row.mechanism, x=tuple(at), y=tuple(100 * y for y in at.values()),
             plain=of.row.operator == "dense")
        for of in found
        if (at := by_doublings(of, "exact_match", "hops", FEW))
    )  # fmt: skip


def _far(of: Found[Row]) -> float | None:
    """The share that is right of all questions with at least FAR hops."""
    sizes = of.result.group_sizes("hops")
    there = {
        hops: figure.mean
        for hops, figure in of.result.broken_down("exact_match", "hops").items()
        if hops >= FAR and sizes.get(hops)
    }
    count = sum(sizes[hops] for hops in there)
    return sum(share * sizes[hops] for hops, share in there.items()) / count if count else None


def _told(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def _layers(pretrained: str | None, depth: int) -> tuple[int, tuple[int, ...]]:
    """How many layers the model has, and which can be patched; of one elsewhere, the scale's."""
    known = None if pretrained is None else layers_of(pretrained)
    return known or (depth, tuple(range(depth)))


def _cut(
    model: TransformersConfig, row: Row, depth: int, free: Sequence[int]
) -> TransformersConfig | None:
    """The model of a row: its first layers, or all, and which of them are patched.

    None where the model is no deeper than that, or none of these layers can be patched.
    """
    if row.first >= depth:
        return None
    kept = row.first or depth
    chosen = row.layers(kept, [i for i in free if i < kept])
    if row.operator != "dense" and not chosen:
        return None
    every = len(chosen) in (0, kept)
    layers = "all" if every else "+".join(map(str, chosen))
    model = dataclasses.replace(model, operator=row.operator, layers=layers)
    if model.pretrained:
        return dataclasses.replace(model, first_layers=row.first)
    return dataclasses.replace(model, depth=kept)


TABLE = HopsTable()
