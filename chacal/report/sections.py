"""What a report says of a table besides its lines: differences, sizes, command, machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chacal.report.aggregate import Results, explain
from chacal.report.lines import Lines, lines_of
from chacal.report.paper import TABLES

LEAD = (
    "Every table of the paper that can be run on controlled tasks, made by `chacal reproduce`, "
    "with the paper's figure beside ours. ≠ marks a share that is more than 2 points from the "
    "paper's; times are of other machines and are not compared."
)


@dataclass(frozen=True)
class Section:
    """One table of the report.

    Attributes:
        name: its label.
        title: what it is about.
        lines: the table.
        facts: what was run, on what, by which command; (word, text) pairs.
        differences: sentence -> rows that it explains.
        log: anchor of docs/log.md.
        problems: lines that are missing or failed, and why.
        content: the table's file; None if it was never run.
    """

    name: str
    title: str
    lines: Lines
    facts: list[tuple[str, str]]
    differences: dict[str, list[str]]
    log: str
    problems: list[tuple[str, str]]
    content: Mapping[str, Any] | None


def some(rows: list[str]) -> str:
    """A few rows by name; of many, the first and how many more."""
    return "; ".join(rows) if len(rows) <= 3 else f"{rows[0]} and {len(rows) - 1} more"


def sections_of(results: Results) -> list[Section]:
    """The report's sections of one scale."""
    return [_section(name, content) for name, content in results.tables.items()]


def _section(name: str, content: Mapping[str, Any] | None) -> Section:
    lines = lines_of(name, content)
    differences: dict[str, list[str]] = {}
    problems = []
    for line in lines.lines:
        where = f"{line.row} ({line.column})" if line.column else line.row
        if line.marked:
            differences.setdefault(explain(name, line.row), []).append(where)
        if line.state and content is not None:
            problems.append((where, line.state))
    return Section(
        name, TABLES[name].title, lines, _facts(name, content), differences, TABLES[name].log,
        problems, content,
    )  # fmt: skip


def _facts(name: str, content: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    caption = TABLES[name].caption
    paper = [("the paper's", caption)] if caption else []
    if content is None:
        return [("to run it", f"chacal reproduce {name}"), *paper]
    facts = [
        ("scale", content["note"]),
        ("seeds", ", ".join(map(str, content["seeds"]))),
        ("command", content["command"]),
        ("machine", "; ".join(content["machines"]) or "nothing was run yet"),
    ]  # fmt: skip
    for word in ("task", "model", "training"):
        told: dict[str, None] = dict.fromkeys(cell[word] for cell in content["cells"])
        if told and len(told) <= 4:
            facts.append((word, "; ".join(told)))
    if content["timing"]:
        timing = content["timing"]
        facts.append(
            ("times", f"{timing['examples']:,} examples in batches of {timing['batch_size']}, one "
             f"thread of {timing['machine']['cpu']}, all rows in turns in one process after a "
             "warm-up, medians; seed 0's weights")
        )  # fmt: skip
    return [*facts, *paper]


def layers(content: Mapping[str, Any] | None) -> list[str]:
    """The operators of every line, as texts, where a table has them."""
    if content is None or not content["cells"]:
        return []
    return [_short(cell["operators"]) for cell in content["cells"]]


def _short(operators: list[str]) -> str:
    if len(operators) > 2 and len(set(operators)) == 1:
        return f"{len(operators)} x {operators[0]}"
    return " + ".join(operators)


def maps(results: Results, section: Section) -> list[tuple[str, Path]]:
    """Attention maps of the last layer of every trained row, where they were drawn."""
    found = []
    for cell in section.content["cells"] if section.content else []:
        for run in cell["runs"].values():
            files = [f for f in run.get("look", {}).get("files", []) if "attention" in f]
            if files and (path := results.folder / "runs" / run["run"] / files[-1]).is_file():
                found.append((cell["row"], path))
                break
    return found
