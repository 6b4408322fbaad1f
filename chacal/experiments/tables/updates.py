"""fig:updates: Boxes in stories much longer than those of training.

The table is ours, beside fig:length. There names are unique and what grows is the distance; here
the same seven boxes are named all over the story, and a row must find the *last* sentence that
changed one. So order has to be told, and the question is what tells it at distances that training
never had: rotary positions over the whole story, the same within a window, or none but in the
first layer.

The first layer is local for all: it puts a sentence together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from chacal.experiments.cells import Cell, Evaluation
from chacal.experiments.scales import Scale
from chacal.experiments.table import Found, Table
from chacal.experiments.tables._arithmetic import mean_of
from chacal.report.drawings import Line, LinePlot, Panel
from chacal.report.results import BOX_ACCURACY, EXACT_MATCH, SECONDS
from chacal.tasks import Boxes
from chacal.training.config import ModelConfig, RunConfig, TrainConfig

FIRST = "local@8"
"""Two sentences, of at most four tokens each."""

SHORT = 500
"""Stories with more updates are fewer, in proportion."""

TEMPERATURE = 4.0
"""Of QK-norm in a test; training has 2. More keys want sharper weights, as in fig:length."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the experiment is.

    Attributes:
        task: what is trained on, with its curriculum.
        train: how.
        width: of the model, which has 4 heads.
        tests: numbers of updates.
        examples: stories of a test, one at a time.
        note: what of it is reduced.
    """

    task: Boxes
    train: TrainConfig
    width: int
    tests: tuple[int, ...]
    examples: int
    note: str


SIZES = {
    "smoke": Size(
        task=Boxes(boxes=3, updates=4, curriculum_hold=5, curriculum_steps=5),
        train=TrainConfig(
            steps=20, batch_size=8, eval_every=20, eval_examples=16, test_examples=16,
            checkpoint_every=10,
        ),
        width=16,
        tests=(4, 12),
        examples=4,
        note="SMOKE: a few steps of tiny models, to see that everything runs",
    ),
    "cpu": Size(
        task=Boxes(updates=60, curriculum_hold=250, curriculum_steps=15),
        train=TrainConfig(
            steps=1500, batch_size=32, warmup=50, schedule="linear", decay=0.3, eval_every=300,
            eval_examples=64, test_examples=128,
        ),
        width=128,
        tests=(60, 120, 250, 500, 1000, 2000),
        examples=64,
        note="cpu: 0 to 60 updates (n <= 279), at first none, from step 250 one more every 15 "
        "steps; 1,500 steps of 32, width 128, 4 heads, AdamW 1e-3; 64 stories of each "
        "length (16 of 2,000 updates); temperature 2 in training, 4 in tests",
    ),
    "paper": Size(
        task=Boxes(updates=250, curriculum_hold=300, curriculum_steps=40),
        train=TrainConfig(
            steps=20_000, batch_size=64, warmup=200, schedule="linear", decay=0.3,
            eval_every=1000, eval_examples=512, test_examples=512, checkpoint_every=1000,
        ),
        width=256,
        tests=(60, 120, 250, 500, 1000, 2000),
        examples=1024,
        note="paper: 0 to 250 updates (n <= 1,039), 20,000 steps of 64, width 256, 4 heads, AdamW "
        "1e-3; 1,024 stories (256 of 2,000 updates). The paper has no such figure",
    ),
}  # fmt: skip
"""By the name of a scale."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Layers after the first, and how many updates they are asked to follow.

    Attributes:
        name: of the mechanism.
        operator: of these layers, in training.
        depth: layers in all.
        positions: as `ModelConfig` has them.
        sharp: whether the test has a higher temperature than training.
        run_as: the operator of a test, if it is another.
        updates: of a test's stories.
    """

    name: str
    operator: str
    depth: int = 2
    positions: str = "rotary"
    sharp: bool = True
    run_as: str = ""
    updates: int = 0

    @property
    def mechanism(self) -> str:
        """As in "ChaCAL, rotary in the first layer only, L=2"."""
        told = ", rotary in the first layer only" * (self.positions == "first")
        told += ", temperature as in training" * (not self.sharp)
        return f"{self.name}{told}, L={self.depth}"

    @property
    def label(self) -> str:
        """As in "ChaCAL, L=2, 2,000 updates"."""
        return f"{self.mechanism}, {self.updates:,} updates"

    def layers(self, operator: str) -> tuple[str, ...]:
        """Operators of all layers."""
        return (FIRST, *[operator] * (self.depth - 1))


GAMMA = "gamma=learn:0.9"
"""Of all resolvents. The deepest chains of a long story have some twenty hops, of which a fixed 0.9
lets an eighth through."""

WINDOW, ROUTED = f"window@128,{GAMMA}", f"routed@32,routes=4,parts=8,score=keys,{GAMMA}"
CHACAL = Row(name="ChaCAL", operator=f"chacal,{GAMMA}")
AS_WINDOW = dataclasses.replace(CHACAL, name="ChaCAL, run as window", run_as=WINDOW)

KINDS = (
    *(Row(name="Dense", operator="dense", depth=depth) for depth in (2, 4)),
    CHACAL,
    dataclasses.replace(CHACAL, sharp=False),
    dataclasses.replace(CHACAL, positions="first"),
    AS_WINDOW,
    dataclasses.replace(AS_WINDOW, sharp=False),
    dataclasses.replace(CHACAL, name="ChaCAL, run as routed", run_as=ROUTED),
    Row(name="Window resolvent", operator=WINDOW),
    Row(name="Routed resolvent", operator=ROUTED),
    Row(name="DeltaFormer", operator="delta"),
)


class UpdatesTable(Table[Row]):
    """fig:updates."""

    name = "fig:updates"
    title = "Boxes, in stories longer than those of training"
    place = 17
    metrics = (BOX_ACCURACY, EXACT_MATCH, SECONDS)
    timed = True

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """Every mechanism at every number of updates."""
        size = SIZES[scale.name]
        cells = []
        for kind in KINDS:
            model = ModelConfig(
                operators=kind.layers(kind.operator), width=size.width, positions=kind.positions
            )
            run = RunConfig(task=size.task, model=model, train=size.train)
            for updates in size.tests:
                test = Evaluation(
                    examples=max(1, size.examples * min(updates, SHORT) // updates),
                    batch_size=1,
                    operators=kind.layers(kind.run_as) if kind.run_as else (),
                    qk_norm=TEMPERATURE if kind.sharp else None,
                    settings=(f"updates={updates}", f"min_updates={updates}"),
                )
                cells.append(self.cell(dataclasses.replace(kind, updates=updates), run, test))
        return cells

    def seeds(self, scale: Scale) -> int:
        """Three, but for a look."""
        return scale.seeds or 3

    def note(self, scale: Scale) -> str:
        """What the scale reduces."""
        return SIZES[scale.name].note

    def findings(self, found: Sequence[Found[Row]]) -> list[str]:
        """What every mechanism keeps of its score from the longest trained stories on."""
        right = mean_of(found, "box_accuracy")
        said = []
        for kind in KINDS:
            at = {row.updates: share for row, share in right.items() if _is(kind, row)}
            if len(at) > 1:
                told = ", ".join(f"{100 * share:.1f} % at {n:,}" for n, share in at.items())
                said.append(f"{kind.mechanism}: boxes right {told}.")
        return said

    def line_plots(self, found: Sequence[Found[Row]]) -> list[LinePlot]:
        """Boxes right against updates."""
        right = mean_of(found, "box_accuracy")
        lines = []
        for kind in KINDS:
            at = {row.updates: 100 * share for row, share in right.items() if _is(kind, row)}
            if at:
                lines.append(
                    Line(name=kind.mechanism, x=tuple(at), y=tuple(at.values()),
                         plain=kind.name == "Dense")
                )  # fmt: skip
        if not lines:
            return []
        return [
            LinePlot(
                name="updates", text="Boxes that are right, by the number of updates.",
                up="boxes right (%)", log_x=True, percent=True,
                panels=(Panel(across="updates", lines=tuple(lines)),),
            )
        ]  # fmt: skip


def _is(kind: Row, row: Row) -> bool:
    """Whether a row is of a kind, at some number of updates."""
    return dataclasses.replace(row, updates=0) == kind


TABLE = UpdatesTable()
