"""Tables on a terminal, plain text when piped: what the commands print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Standard output; wide enough when it is not a terminal."""
    out = Console(highlight=False, markup=False)
    return out if out.is_terminal else Console(highlight=False, markup=False, width=120)


def write_json(path: Path, data: Any) -> None:
    """A JSON file, or a ValueError that says why not."""
    try:
        path.write_text(json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def print_result(result: dict[str, Any], folder: Path) -> None:
    """The end of a run: its test figures and where they are."""
    out = console()
    split = "valid" if result["test"] is None else "test"
    out.print(f"{' + '.join(result['operators'])} on {result['task']}: {split}")
    out.print(metric_table(result[split]))
    out.print(
        f"{result['steps']} steps in {result['seconds']:.0f} s ({result['parameters']:,} "
        f"parameters; stopped by {result['stopped']}), best weights of step {result['best_step']}"
        + ("" if result["causal"] else "; NOT CAUSAL: an operator sees later tokens")
    )
    out.print(f"written to {folder}; evaluate with: chacal eval {folder}")


def print_metrics(result: dict[str, Any]) -> None:
    """An evaluation."""
    out = console()
    out.print(f"{' + '.join(result['operators'])} on {result['task']}")
    out.print(metric_table(result["metrics"]))
    out.print(
        f"{result['split']} split, seed {result['seed']}, {result['seconds']:.1f} s"
        + ("" if result["causal"] else "; NOT CAUSAL: an operator sees later tokens")
    )


def metric_table(metrics: dict[str, float]) -> Table:
    """Name and figure; shares as percentages."""
    table = Table(box=None, pad_edge=False)
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        table.add_row(name, figure(name, value))
    return table


def figure(name: str, value: float) -> str:
    """A metric as people read it."""
    if name.startswith(("accuracy", "exact_match", "box_accuracy")):
        return f"{100 * value:.2f} %"
    return f"{value:.4f}"


class BenchTable:
    """Times as they come in, one row per operator and length."""

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        self._out = console()
        self._progress = Console(stderr=True, highlight=False, markup=False)
        self._table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for column in columns:
            self._table.add_column(column, justify="left" if column == "operator" else "right")

    def add(self, cells: Sequence[str], progress: str) -> None:
        """One more measured row, and what to say of it meanwhile."""
        if self._progress.is_terminal:
            self._progress.print(progress, style="dim")
        self._table.add_row(*cells)

    def show(self) -> None:
        """Print the table."""
        self._out.print(self._table)

    def note(self, text: str) -> None:
        """A line below it."""
        self._out.print(text)
