"""fig:length: chains of assignments, learned in short texts and asked for in long ones.

The table is ours. Which layer still follows a chain where the text is sixty times as long as any it
was trained on, and what does it cost there? Tests have as many assignments as training, and noise
for the rest, so that what grows is the distance and not the number of names.

The first layer is the same for all and local: it sees a token and the one before it, so that
nothing in it changes with n and its time does not count. Positions are told in two rows only, which
ask whether rotary ones carry as far as none.

Exact ChaCAL is also trained once and run as others: what a subquadratic operator finds of what the
weights ask for is then seen without what it does to learning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from chacal.experiments.cells import Cell, Evaluation
from chacal.experiments.scales import Scale
from chacal.experiments.table import Found, Table
from chacal.experiments.tables._arithmetic import DOUBLINGS, by_doublings, points
from chacal.report.drawings import Line, LinePlot, Panel
from chacal.report.results import ACCURACY, EXACT_MATCH, SECONDS, ByGroup
from chacal.tasks import VariableSymbols
from chacal.training.config import ModelConfig, RunConfig, TrainConfig

FIRST = "local@2"
HOPS = 32
"""Most hops of a test."""

SHORT = 16384
"""Longer texts are fewer, in proportion: the time of two of them grows as that of many short."""

TEMPERATURE = 4.0
"""Of QK-norm in a test. Training has 2, where names are learned soonest; but a row's weights are
spread over n keys, and what is sharp enough among a thousand is lost among sixteen thousand."""

GAMMA = "gamma=learn:0.2"
"""Of all resolvents. At 0.9 nine tenths of what a row receives came over more than one hop, noise
while no name is looked up yet: a trial was still guessing after 380 steps, where one from 0.3 had
learned 128 names after 300 (docs/history.md)."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the experiment is.

    Attributes:
        task: what is trained on.
        train: how.
        width: of the model, which has 2 heads.
        tests: values of n.
        most: the longest n of layers that are quadratic and not exact ChaCAL.
        examples: texts of a test, one at a time.
        questions: of a test's text.
        note: what of it is reduced.
    """

    task: VariableSymbols
    train: TrainConfig
    width: int
    tests: tuple[int, ...]
    most: int
    examples: int
    questions: int
    note: str


SIZES = {
    "smoke": Size(
        task=VariableSymbols(
            n=64, statements=12, questions=4, hops=4, curriculum_hold=5, curriculum_steps=5
        ),
        train=TrainConfig(
            steps=20, batch_size=8, eval_every=20, eval_examples=16, test_examples=16,
            checkpoint_every=10,
        ),
        width=16,
        tests=(64, 128),
        most=64,
        examples=4,
        questions=4,
        note="SMOKE: a few steps of tiny models, to see that everything runs",
    ),
    "cpu": Size(
        task=VariableSymbols(
            n=1024, statements=100, chains=2, hops=16, questions=16, names=128,
            curriculum_hold=800, curriculum_steps=25,
        ),
        train=TrainConfig(
            steps=1200, batch_size=16, lr=2e-3, warmup=50, eval_examples=16, test_examples=32,
        ),
        width=128,
        tests=(1024, 2048, 4096, 16384, 65536),
        most=16384,
        examples=8,
        questions=96,
        note="cpu: n = 64 to 1,024, 100 assignments in 2 chains of up to 16 hops, 128 names, 1,200 "
        "steps of 16, width 128, 2 heads, AdamW 2e-3, no positions but in the rotary rows (exact "
        "ChaCAL); 8 texts of 96 questions (2 of 65,536 tokens), up to 32 hops",
    ),
    "paper": Size(
        task=VariableSymbols(
            n=1024, statements=200, chains=2, hops=16, questions=16, names=256,
            curriculum_hold=2000, curriculum_steps=200,
        ),
        train=TrainConfig(
            steps=20_000, batch_size=64, lr=1e-3, warmup=500, schedule="linear", decay=0.3,
            eval_every=1000, eval_examples=512, test_examples=512, checkpoint_every=1000,
        ),
        width=256,
        tests=(1024, 2048, 4096, 16384, 65536),
        most=65536,
        examples=128,
        questions=192,
        note="paper: n = 64 to 1,024, 200 assignments in 2 chains of up to 16 hops, 256 names, "
        "20,000 steps of 64, width 256, 2 heads, AdamW 1e-3; 128 texts of 192 questions, up to "
        "32 hops",
    ),
}  # fmt: skip
"""By the name of a scale; the paper has no such figure, so its sizes are ours too."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Layers after the first, at one length.

    Attributes:
        name: of the mechanism.
        operator: of these layers, in training.
        depth: layers in all.
        run_as: the operator of a test, if it is another.
        quadratic: whether its time is.
        rotary: the base of rotary positions; 0 for none, so that order is left to the mask.
        n: tokens of a test's text.
    """

    name: str
    operator: str
    depth: int = 2
    run_as: str = ""
    quadratic: bool = False
    rotary: float = 0.0
    n: int = 0

    @property
    def mechanism(self) -> str:
        """As in "Dense, L=4"."""
        return f"{self.name}, L={self.depth}"

    @property
    def label(self) -> str:
        """As in "Dense, L=4, n=1,024"."""
        return f"{self.mechanism}, n={self.n:,}"

    def layers(self, operator: str) -> tuple[str, ...]:
        """Operators of all layers."""
        return (FIRST, *[operator] * (self.depth - 1))


ROUTED = f"routed@64,routes=4,parts=16,score=keys,{GAMMA}"
FAST, FEW = (f"routed,parts={parts},score=keys,{GAMMA}" for parts in (12, 8))
"""Tiles of about √n, so that time is n^1.5: for long texts, in which names are rare. Noise is of 8
kinds, so that 8 keys of a tile can all be noise."""
BOUND = f"routed@32,routes=4,parts=8,score=bound,{GAMMA}"
WINDOW, POOLED, POWERS, SQUARES = (
    f"{name},{GAMMA}" for name in ("window@64", "pooled@64", "pattern", "pattern,offsets=squares")
)
BASES = (1e4, 1e7)
"""Of rotary positions: that of most models, and one whose slowest turns take far more than 65,536
tokens."""
CHACAL = Row(name="ChaCAL", operator=f"chacal,{GAMMA}", quadratic=True)


def run_as(name: str, operator: str) -> Row:
    """Exact ChaCAL, trained as such, with another operator in its place."""
    return Row(name=f"ChaCAL, run as {name}", operator=CHACAL.operator, run_as=operator)


KINDS = (
    *(Row(name="Dense", operator="dense", depth=depth, quadratic=True) for depth in (2, 4, 8)),
    CHACAL,
    *(
        dataclasses.replace(CHACAL, name=f"Rotary of base {base:,.0f}", rotary=base)
        for base in BASES
    ),
    run_as("routed", ROUTED),
    run_as("routed, tiles of √n", FAST),
    run_as("routed, tiles of √n by 8 keys", FEW),
    run_as("routed by bounds", BOUND),
    run_as("window", WINDOW),
    run_as("pooled", POOLED),
    Row(name="Routed resolvent", operator=ROUTED),
    Row(name="Routed resolvent, run with tiles of √n", operator=ROUTED, run_as=FAST),
    Row(name="Window resolvent", operator=WINDOW),
    Row(name="Pooled resolvent", operator=POOLED),
    Row(name="Pattern of powers", operator=POWERS),
    Row(name="Pattern of squares", operator=SQUARES),
    Row(name="DeltaFormer", operator="delta", quadratic=True),
    Row(name="DeltaFormer, read by keys", operator="delta,read=keys", quadratic=True),
)


class LengthTable(Table[Row]):
    """fig:length."""

    name = "fig:length"
    title = "Chains of assignments in texts longer than those of training"
    place = 16
    metrics = (ACCURACY, EXACT_MATCH, SECONDS)
    timed = True
    by_group = (
        ByGroup(
            metric="accuracy",
            by="hops",
            text="Share of questions that are right, by how many assignments stand between a name "
            "and its value.",
        ),
    )

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Every mechanism at every length that it can be measured at."""
        size = SIZES[scale.name]
        cells = []
        for kind in KINDS:
            model = ModelConfig(
                operators=kind.layers(kind.operator), width=size.width, heads=2, positions="none",
                mlp_ratio=1.0, embed_std=1.0,
            )  # fmt: skip
            if kind.rotary:
                model = dataclasses.replace(model, positions="rotary", rotary_base=kind.rotary)
            run = RunConfig(task=size.task, model=model, train=size.train)
            for n in size.tests:
                if kind.quadratic and kind.operator != CHACAL.operator and n > size.most:
                    continue
                test = Evaluation(
                    examples=max(1, size.examples * min(n, SHORT) // n),
                    batch_size=1,
                    operators=kind.layers(kind.run_as) if kind.run_as else (),
                    qk_norm=TEMPERATURE,
                    settings=(f"n={n}", f"hops={HOPS}", f"questions={size.questions}"),
                )
                cells.append(self.cell(dataclasses.replace(kind, n=n), run, test))
        return cells

    def seeds(self, scale: Scale) -> int:
        """Three, but for a look."""
        return scale.seeds or 3

    def note(self, scale: Scale) -> str:
        """What the scale reduces."""
        return SIZES[scale.name].note

    def findings(self, found: Sequence[Found[Row]]) -> list[str]:
        """At every length, who is as right as exact ChaCAL and how much faster the model is."""
        timed = points(found, "accuracy", "seconds")
        said = []
        for n in sorted({row.n for row in timed}):
            exact = timed.get(dataclasses.replace(CHACAL, n=n))
            others = {
                row: at
                for row, at in timed.items()
                if row.n == n and dataclasses.replace(row, n=0) != CHACAL
            }
            if exact is None or not others:
                continue
            told = [
                f"{row.mechanism} {100 * right:.1f} % in {seconds / exact[1]:.2f} of the time"
                for row, (right, seconds) in others.items()
            ]
            said.append(
                f"n = {n:,}: {CHACAL.mechanism} has {100 * exact[0]:.1f} %; {'; '.join(told)}."
            )
        return said

    def line_plots(self, found: Sequence[Found[Row]]) -> list[LinePlot]:
        """Right answers against n, and against hops at every length."""
        by_length: dict[str, dict[int, float]] = {}
        by_hops: dict[int, list[Line]] = {}
        for of in found:
            if "accuracy" not in of.figures:
                continue
            right = of.figures["accuracy"].mean
            by_length.setdefault(of.row.mechanism, {})[of.row.n] = 100 * right
            at = by_doublings(of, "accuracy", "hops")
            if at:
                line = Line(name=of.row.mechanism, x=tuple(at), plain=of.row.name == "Dense",
                            y=tuple(100 * share for share in at.values()))  # fmt: skip
                by_hops.setdefault(of.row.n, []).append(line)
        lines = tuple(
            Line(name=name, x=tuple(at), y=tuple(at.values()), plain=name.startswith("Dense"))
            for name, at in by_length.items()
        )
        plots = []
        if lines:
            plots.append(
                LinePlot(name="length/n", text="Right answers by the length of the text.",
                         up="right (%)", log_x=True, panels=(Panel(across="n", lines=lines),))
            )  # fmt: skip
        if by_hops:
            panels = tuple(
                Panel(title=f"n = {n:,}", across="hops", lines=tuple(by_hops[n]), ticks=DOUBLINGS)
                for n in sorted(by_hops)
            )
            plots.append(
                LinePlot(name="length/hops", text="Right answers by the number of hops, at every "
                         "length.", up="right (%)", panels=panels, height=4.6)
            )  # fmt: skip
        return plots


TABLE = LengthTable()
