"""A table as lines of text, the same for the terminal, the Markdown file and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chacal.report.aggregate import (
    SHARES,
    Figure,
    best_block,
    breakdown,
    cell_figures,
    count_seeds,
    differs,
    group_sizes,
    state,
    tail,
)
from chacal.report.paper import TABLES

NAMES = {
    "accuracy": "token accuracy (%)",
    "exact_match": "exact match (%)",
    "seconds": "evaluation (s)",
    "loss": "loss (nats)",
    "below_floor": "below log V (nats)",
    "perplexity": "perplexity per token",
    "perplexity_per_word": "perplexity per word",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rouge": "ROUGE-GM",
    "f1": "F1",
    "em": "EM",
    "steps": "steps",
}
"""Column titles."""


SLOWER = 1.1
"""How many times as long both ends of a curve must take, for a U and not for chance."""


@dataclass(frozen=True)
class Line:
    """One line: its name, a text for each column, and what there is to say of it.

    Attributes:
        row: what it is.
        column: what of it, in a table that has both.
        texts: one for each of the table's columns.
        causal: whether no later token is seen; None where it is not known.
        seeds: of how many its figures are; "" where there are no seeds.
        marked: which columns differ from the paper's.
        below: whether ours is the lower figure in all of them.
        state: "" where the line is whole, else "not run" or why it failed.
    """

    row: str
    column: str
    texts: list[str]
    causal: bool | None
    seeds: str = ""
    marked: set[int] = field(default_factory=set)
    below: bool = False
    state: str = ""


@dataclass(frozen=True)
class Lines:
    """A table of texts."""

    columns: list[str]
    lines: list[Line]

    @property
    def has_column(self) -> bool:
        """Whether rows are told apart by a second name."""
        return any(line.column for line in self.lines)

    @property
    def has_seeds(self) -> bool:
        """Whether the lines say of how many seeds they are."""
        return any(line.seeds for line in self.lines)


def lines_of(name: str, table: Mapping[str, Any] | None) -> Lines:
    """The lines of a table; of one that was never run, the paper's with "not run"."""
    if table is None:
        return _paper_only(name)
    if table["costs"]:
        return _cost_lines(table)
    smoke = table["scale"] == "smoke"
    columns = []
    for metric in table["metrics"]:
        columns.append(f"{NAMES[metric]}: ours")
        if any(metric in cell["paper"] for cell in table["cells"]):
            columns.append("paper")
    lines = []
    for cell in table["cells"]:
        figures = cell_figures(cell)
        texts: list[str] = []
        marked: set[int] = set()
        below = True
        for metric in table["metrics"]:
            ours, paper = figures.get(metric), cell["paper"].get(metric)
            missing = "–" if figures else "failed" if "failed" in state(cell) else "not run"
            if metric == "seconds" and figures and ours is None:
                missing = "not timed"
            if ours and paper is not None and not smoke and differs(metric, ours.mean, paper):
                marked.add(len(texts))
                below &= 100 * ours.mean < paper
            texts.append(figure_text(metric, ours) if ours else missing)
            if any(metric in other["paper"] for other in table["cells"]):
                texts.append("–" if paper is None else f"{paper:g}")
        lines.append(
            Line(
                cell["row"], cell["column"], texts, cell["causal"], count_seeds(cell), marked,
                below, state(cell),
            )
        )  # fmt: skip
    return Lines(columns, lines)


def border_lines(table: Mapping[str, Any] | None) -> Lines | None:
    """Exact match of every row on stories, by the borders that the needed chain crosses."""
    groups = {
        (cell["row"], cell["column"]): (cell, found)
        for cell in (table["cells"] if table else [])
        if (found := breakdown(cell_figures(cell), "exact_match/borders"))
    }
    places = sorted({place for _, found in groups.values() for place in found})
    if not places:
        return None
    lines = [
        Line(
            row, column, [f"{100 * found[p].mean:.1f}" if p in found else "–" for p in places],
            cell["causal"], count_seeds(cell),
        )
        for (row, column), (cell, found) in groups.items()
    ]  # fmt: skip
    sizes = {
        column: group_sizes(cell, "exact_match/borders")
        for (_, column), (cell, _) in reversed(groups.items())
    }
    stories = [
        Line("test stories", column, [f"{counts.get(p, 0):,}" for p in places], None)
        for column, counts in reversed(sizes.items())
        if counts
    ]
    return Lines([str(place) for place in places], [*stories, *lines])


def figure_text(metric: str, figure: Figure) -> str:
    """A figure as people read it; shares in per cent, with their spread."""
    if metric in SHARES:
        spread = "" if figure.std is None else f" ± {100 * figure.std:.2f}"
        return f"{100 * figure.mean:.2f}{spread}"
    if metric == "steps":
        return f"{figure.mean:,.0f}"
    spread = "" if figure.std is None else f" ± {figure.std:.4f}"
    return f"{figure.mean:.{3 if metric == 'seconds' else 4}f}{spread}"


def _paper_only(name: str) -> Lines:
    rows = TABLES[name].rows
    metrics = list(dict.fromkeys(metric for row in rows.values() for metric in row))
    columns = [text for m in metrics for text in (f"{NAMES[m]}: ours", "paper")]
    lines = []
    for row, figures in rows.items():
        texts = []
        for metric in metrics:
            value = figures.get(metric)
            texts += ["not run", "–" if value is None else f"{value:g}"]
        lines.append(Line(row, "", texts, None, state="not run"))
    return Lines(columns or ["ours"], lines or [Line("all", "", ["not run"], None)])


def _cost_lines(table: Mapping[str, Any]) -> Lines:
    columns = [
        "time grows as", "memory grows as", "largest n", "time there (s)", "over SDPA's at 4,096",
        "fastest block size m*", "the curve",
    ]  # fmt: skip
    lines = []
    for cost in table["costs"]:
        label = f"against {cost['column']}"
        if cost["state"] != "done":
            why = cost.get("why", "")
            text = "failed" if why else "not run"
            lines.append(
                Line(cost["row"], label, [text] * len(columns), None, state=why or "not run")
            )
            continue
        points = cost["points"]
        texts = ["–"] * len(columns)
        if cost["column"] == "n":
            texts[0], texts[1] = _power(tail(points, "seconds")), _power(tail(points, "bytes"))
            at = [p["ratio"] for p in points if p["n"] == 4096 and p["ratio"]]
            texts[4] = f"{at[0]:.2f}" if at else "–"
            texts[6] = cost["stopped"] and f"ends: {cost['stopped']}"
        else:
            size, ends = best_block(points)
            texts[5] = f"{size}"
            shape = "a U" if min(ends) >= SLOWER else "no U"
            texts[6] = f"{shape}: {ends[0]:.2f} and {ends[1]:.2f} times as long at the ends"
        texts[2] = f"{points[-1]['n']:,}" if points else "–"
        texts[3] = f"{points[-1]['seconds']:.4f}" if points and cost["column"] == "n" else "–"
        lines.append(Line(cost["row"], label, texts, cost["causal"]))
    return Lines(columns, lines)


def _power(slope: float | None) -> str:
    return "–" if slope is None else f"n^{slope:.2f}"
