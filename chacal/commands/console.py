"""Tables on a terminal, plain text when piped: what the commands print."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
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


def command(*arguments: str) -> str:
    """This command with other arguments, as it can be pasted into the shell that called it.

    A virtual environment that is not active has it where no shell looks.
    """
    found = shutil.which("chacal")
    here = Path(sys.executable).with_name("chacal")
    if found is not None and Path(found).resolve() == here.resolve():
        name = "chacal"
    elif here.is_file():
        inside = here.is_relative_to(Path.cwd())
        name = shlex.quote(str(here.relative_to(Path.cwd()) if inside else here))
    else:
        name = f"{shlex.quote(sys.executable)} -m chacal"
    return " ".join((name, *map(shlex.quote, arguments)))


def print_result(result: dict[str, Any], folder: Path) -> None:
    """The end of a run: its test figures and where they are."""
    out = console()
    split = "valid" if result["test"] is None else "test"
    count = result.get("examples", {}).get(split)
    counted = f"{count:,} {split} examples" if count else split
    out.print(f"{' + '.join(result['operators'])} on {result['task']}: {counted}")
    out.print(metric_table(result[split]))
    out.print(
        f"{result['steps']} steps in {result['seconds']:.0f} s ({result['parameters']:,} "
        f"parameters; stopped by {result['stopped']}), best weights of step {result['best_step']}"
        + ("" if result["causal"] else "; NOT CAUSAL: an operator sees later tokens")
    )
    out.print(f"written to {folder}; evaluate with:")
    out.print(f"  {command('eval', str(folder))}", soft_wrap=True)


def print_metrics(result: dict[str, Any]) -> None:
    """An evaluation."""
    out = console()
    out.print(f"{' + '.join(result['operators'])} on {result['task']}")
    out.print(metric_table(result["metrics"]))
    out.print(
        f"{result['examples']:,} examples of the {result['split']} split, seed {result['seed']}, "
        f"{result['seconds']:.1f} s"
        + ("" if result["causal"] else "; NOT CAUSAL: an operator sees later tokens")
    )


def print_export(written: dict[str, Any]) -> None:
    """A model that others can load, and how."""
    out, folder = console(), shlex.quote(written["folder"])
    placed = ", ".join(f"{layer}: {op}" for layer, op in written["operators"].items()) or "dense"
    out.print(f"{written['class']} ({placed}) is written to {folder}; measure it with:")
    harness = shlex.quote(str(Path(sys.executable).with_name("lm_eval")))
    out.print(
        f'  {harness} run --include_path "$({command("eval-tasks")})" --tasks chacal_variables '
        f"--model hf --model_args pretrained={folder} --trust_remote_code --batch_size 8",
        soft_wrap=True,
    )


def metric_table(metrics: dict[str, float]) -> Table:
    """Name and figure; shares as percentages."""
    table = plain_table(["metric", "value"])
    for name, value in metrics.items():
        table.add_row(name, figure(name, value))
    return table


def figure(name: str, value: float) -> str:
    """A metric as people read it."""
    if name.startswith(("accuracy", "exact_match", "box_accuracy", "recall", "unknown_words")):
        return f"{100 * value:.2f} %"
    return f"{value:.4f}"


def progress(text: str) -> None:
    """What a person at a terminal may want to see meanwhile."""
    out = Console(stderr=True, highlight=False, markup=False)
    if out.is_terminal:
        out.print(text, style="dim")


def plain_table(columns: Sequence[str], title: str | None = None, names: int = 0) -> Table:
    """Figures to the right of their columns, names (column number `names`) to the left."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == names else "right")
    return table
