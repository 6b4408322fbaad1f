"""`chacal inspect`: what a trained run attends to, as pictures and printed figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chacal.commands.console import console, plain_table
from chacal.experiments.look import look_at_run
from chacal.report import pictures


def inspect_run(
    run: str | Path,
    out: str | Path | None = None,
    seed: int = 0,
    examples: int = 64,
    as_json: bool = False,
) -> dict[str, Any]:
    """Draw and print the attention of a trained run on its task's test split.

    Args:
        run: its folder.
        out: folder for the pictures; the run's unless given.
        seed: of the examples; in a split of stored examples, the first one's number.
        examples: how many the figures average. The pictures show the first.
        as_json: print JSON instead of tables.

    Returns:
        the figures, and the files written.
    """
    result, curves, heads = look_at_run(run, out, seed, examples)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result, curves, heads)
    return result


def _print(
    result: dict[str, Any], curves: list[pictures.Mass], heads: list[list[pictures.Mass]]
) -> None:
    out = console()
    out.print(
        f"{result['task']}\n% of attention mass, means over heads, rows and {result['examples']} "
        f"test examples (seed {result['seed']}, mean n = {result['mean_length']:.1f})\n"
    )
    for title, first, kind in (
        ("inside diagonal blocks", "block size", "blocks"),
        ("inside a sliding window", "window", "windows"),
        ("on the largest keys of each row", "keys", "top"),
    ):
        table = plain_table([first, *(curve.name for curve in curves)], title)
        shares = [getattr(curve, kind) for curve in curves]
        for name in shares[0]:
            table.add_row(name, *(f"{100 * share[name]:.1f}" for share in shares))
        out.print(table)
        out.print()
    chosen = [
        ("blocks", "n//4"),
        ("blocks", "n//2"),
        ("windows", "n//4"),
        ("top", "1"),
        ("top", "3"),
    ]
    named = {"blocks": "block", "windows": "window", "top": "top"}
    table = plain_table(["", *(f"{named[kind]} {name}" for kind, name in chosen)], "by head")
    for number, layer in enumerate(heads, 1):
        for head in layer:
            shares = [getattr(head, kind)[name] for kind, name in chosen]
            table.add_row(f"layer {number}, {head.name}", *(f"{100 * s:.1f}" for s in shares))
    out.print(table)
    out.print()
    if not result["causal"]:
        out.print("NOT CAUSAL: an operator sees later tokens")
    for file in result["files"]:
        out.print(f"written: {file}", soft_wrap=True)
