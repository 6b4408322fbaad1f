"""fig:leak: every operator and pooling on random tokens; a leak on Boxes and on real text.

On random tokens no causal model gets below log V: whoever does has seen the token it predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chacal.experiments.cells import Cell, Evaluation
from chacal.experiments.scales import Scale
from chacal.experiments.table import Found, Table, evaluation_of
from chacal.report.drawings import BarPlot, Bars
from chacal.report.results import EXACT_MATCH, LOSS, PERPLEXITY, Metric

LEAK = 0.01
"""Nats below log V that no sampling of the test set explains."""

NOISE, STORIES, TEXT = "random tokens", "boxes, L=2", "real text, L=2"

FORCED = Metric(
    name="exact_match_teacher_forced", title="exact match, teacher-forced (%)", share=True, digits=2
)
"""With the true answer as input, in which an operator that sees later tokens can read ahead."""

BELOW_FLOOR = Metric(name="below_floor", title="below log V (nats)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """An operator, by its text."""

    operator: str

    @property
    def label(self) -> str:
        """The text itself."""
        return self.operator


class LeakTable(Table[Row]):
    """fig:leak."""

    name = "fig:leak"
    title = "A canary: random tokens, where no causal model gets below log V"
    place = 9
    metrics = (LOSS, BELOW_FLOOR, EXACT_MATCH, FORCED, PERPLEXITY)

    def cells(self, scale: Scale) -> Sequence[Cell[Row]]:
        """All operators on noise, Algorithm 1's readings on stories and on text."""
        m = max(2, scale.noise.window // 8)
        poolings = tuple(
            f"block@{m},values=rows,rows={rows},columns={columns}"
            for rows in ("first", "mean", "last")
            for columns in ("sum", "mean")
        )
        everything = (
            "dense", f"local@{m}", f"bigbird@{m}", "chacal", "chacal,diagonal=drop", f"window@{m}",
            f"pooled@{m},near=0", f"pooled@{m},near=1", f"routed@{m},routes=2",
            "pattern,offsets=powers", "pattern,offsets=squares", "delta", "t_post,top_k=3",
            "t_pre,top_k=3",
            *poolings, f"block@{m},values=rows,branches=local",
        )  # fmt: skip
        block = "block/3,values=rows"
        few = ("dense", "chacal", block, f"{block},rows=mean", f"{block},rows=last")
        # in small blocks a leak has fewer rows to hide among
        small = (f"block@{m},values=rows", f"block@{m},values=rows,rows=mean")
        whole = Evaluation(examples=scale.examples)
        cells = [
            self.cell(Row(operator=text), scale.on_noise(text), whole, NOISE) for text in everything
        ]
        for text in few:
            run = scale.on_boxes("dense", text)
            cells.append(self.cell(Row(operator=text), run, evaluation_of(scale, run), STORIES))
        for text in (*few, *small):
            cells.append(self.cell(Row(operator=text), scale.on_help(text), whole, TEXT))
        return cells

    def seeds(self, scale: Scale) -> int:
        """Three at most."""
        return min(scale.seeds or 3, 3)

    def note(self, scale: Scale) -> str:
        """How noise is learned, which is not."""
        return (
            f"{scale.note}; random tokens: {scale.noise.describe()}, two layers of width "
            f"{scale.noise_width}, {scale.noise_train.steps:,} steps"
        )

    def findings(self, found: Sequence[Found[Row]]) -> list[str]:
        """Which operators know random tokens, and whether any of them says that it is causal."""
        on_noise = [of for of in _on_noise(found) if "below_floor" in of.figures]
        if not on_noise:
            return []
        leaky = [of for of in on_noise if of.figures["below_floor"].mean > LEAK]
        lying = [_told(of) for of in leaky if of.cell.causal]
        silent = [of.row.label for of in on_noise if of not in leaky and not of.cell.causal]
        named = "; ".join(map(_told, leaky)) or "none"
        text = f"More than {LEAK:g} nats below log V, of {len(on_noise)} operators: {named}."
        if leaky:
            text += f" Of these, called causal: {'; '.join(lying) or 'none'}."
        if silent:
            text += f" Not causal, and not below: {'; '.join(silent)}."
        return [text]

    def bar_plots(self, found: Sequence[Found[Row]]) -> list[BarPlot]:
        """The loss on random tokens of every operator, against log V."""
        on_noise = [of for of in _on_noise(found) if "loss" in of.figures]
        if not on_noise:
            return []
        losses = [of.figures["loss"].mean for of in on_noise]
        causal = [of.cell.causal for of in on_noise]
        pairs = list(zip(losses, causal, strict=True))
        return [
            BarPlot(
                name="leaks",
                text="Loss on random tokens. Blue: causal operators; orange: those that say they "
                "are not.",
                axis="loss (nats); dotted: log V, which no causal model can beat",
                places=tuple(of.row.label for of in on_noise),
                bars=tuple(
                    Bars(name=name, values=tuple(loss if c is kind else None for loss, c in pairs))
                    for name, kind in (("causal", True), ("not causal", False))
                ),
                level=on_noise[0].cell.run.task.floor,
                flat=True,
            )
        ]


def _on_noise(found: Sequence[Found[Row]]) -> list[Found[Row]]:
    return [of for of in found if of.cell.column == NOISE]


def _told(of: Found[Row]) -> str:
    return f"{of.row.label} ({of.figures['below_floor'].mean:.3f})"


TABLE = LeakTable()
