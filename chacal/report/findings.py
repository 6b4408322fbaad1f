"""Sentences that a table's figures say by themselves: computed, never written by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chacal.report.aggregate import Figure, cell_figures, frontier_rows, layers_of

PASSES = 0.99
"""Share of right answers from which a cell of tab:heads-props has learned its task."""

LEAK = 0.01
"""Nats below log V that no sampling of the test set explains."""

BASE = "ChaCAL, L=2"
"""Whose evaluation time others are compared with."""


def findings_of(name: str, content: Mapping[str, Any] | None) -> list[str]:
    """What a table says; nothing of smoke figures, which say nothing."""
    finds = {"tab:boxes": _boxes, "tab:heads-props": _heads, "fig:leak": _leaks}
    if content is None or content["scale"] == "smoke" or name not in finds:
        return []
    return finds[name](content)


def _boxes(content: Mapping[str, Any]) -> list[str]:
    """Who is on the frontier at L=2, and what depth costs in its place."""
    figures = {cell["row"]: cell_figures(cell) for cell in content["cells"]}
    timed = {
        row: (of["exact_match"].mean, of["seconds"].mean)
        for row, of in figures.items()
        if "exact_match" in of and "seconds" in of
    }
    flat = {row: point for row, point in timed.items() if layers_of(row) == 2}
    found = []
    if len(flat) > 1:
        rows = [f"{row} ({100 * flat[row][0]:.2f} %)" for row in frontier_rows(flat)]
        left = sum(layers_of(row) == 2 for row in figures) - len(flat)
        which = f", of {len(flat)} rows with times ({left} without)" if left else ""
        found.append(
            f"On the frontier of exact match and evaluation time at L=2{which}, from the fastest "
            f"on: {'; '.join(rows)}."
        )
    deep = {row: seconds for row, (_, seconds) in timed.items() if layers_of(row) != 2}
    if BASE in timed and deep:
        ratios = [f"{row} {seconds / timed[BASE][1]:.2f}" for row, seconds in deep.items()]
        found.append(f"Evaluation times over that of {BASE}: {'; '.join(ratios)}.")
    return found


def _heads(content: Mapping[str, Any]) -> list[str]:
    """Where the paper's rule, that h heads track p <= h properties and no more, holds."""
    right, wrong = 0, []
    for cell in content["cells"]:
        figures = cell_figures(cell)
        sizes = re.fullmatch(r"h=(\d+), p=(\d+)", cell["row"])  # the control is no case of it
        if "accuracy" not in figures or sizes is None:
            continue
        heads, properties = map(int, sizes.groups())
        mean = figures["accuracy"].mean
        if (heads >= properties) == (mean >= PASSES):
            right += 1
        else:
            wrong.append(f"{cell['row']} ({100 * mean:.2f} %)")
    if not right and not wrong:
        return []
    but = f"; not in {'; '.join(wrong)}" if wrong else ""
    return [
        f"The paper's rule (at least {100 * PASSES:g} % right where h ≥ p, less where h < p) holds "
        f"in {right} of the {right + len(wrong)} cells that were run{but}."
    ]


def _leaks(content: Mapping[str, Any]) -> list[str]:
    """Which operators know random tokens, and whether any of them says that it is causal."""
    on_noise = [
        (cell, figures["below_floor"])
        for cell in content["cells"]
        if cell["floor"] and "below_floor" in (figures := cell_figures(cell))
    ]
    if not on_noise:
        return []
    leaky = [(cell, figure) for cell, figure in on_noise if figure.mean > LEAK]
    lying = [_told(cell, figure) for cell, figure in leaky if cell["causal"]]
    silent = [cell["row"] for cell, f in on_noise if f.mean <= LEAK and not cell["causal"]]
    named = "; ".join(_told(cell, figure) for cell, figure in leaky) or "none"
    text = f"More than {LEAK:g} nats below log V, of {len(on_noise)} operators: {named}."
    if leaky:
        text += f" Of these, called causal: {'; '.join(lying) or 'none'}."
    if silent:
        text += f" Not causal, and not below: {'; '.join(silent)}."
    return [text]


def _told(cell: Mapping[str, Any], figure: Figure) -> str:
    return f"{cell['row']} ({figure.mean:.3f})"
