"""What a report says of a table besides its lines: differences, sizes, command, machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chacal.report.aggregate import Results, count_seeds, explain
from chacal.report.findings import findings_of
from chacal.report.lines import Lines, border_lines, lines_of
from chacal.report.paper import TABLES

LEAD = (
    "The paper's tables and the questions that they leave open, made by `chacal reproduce`, with "
    "the paper's figure beside ours. Ours are means over seeds ± the sample standard deviation; of "
    "one seed there is none. ≠ marks a share that is more than 2 points from the paper's; times "
    "are of other machines and are not compared."
)

BY_BORDERS = ("tab:boxes", "tab:ablation_branches", "tab:regimes")
"""Tables whose rows are also shown by the borders that chains cross."""


@dataclass(frozen=True)
class Section:
    """One table of the report.

    Attributes:
        name: its label.
        title: what it is about.
        lines: the table.
        facts: what was run, on what, by which command; (word, text) pairs.
        differences: sentence -> rows that it explains.
        log: anchor of docs/findings.md.
        problems: why -> lines that are missing or failed.
        findings: sentences that the figures say.
        more: what it shows -> further lines of the same rows.
        content: the table's file; None if it was never run.
    """

    name: str
    title: str
    lines: Lines
    facts: list[tuple[str, str]]
    differences: dict[str, list[str]]
    log: str
    problems: dict[str, list[str]]
    findings: list[str]
    more: dict[str, Lines]
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
    problems: dict[str, list[str]] = {}
    for line in lines.lines:
        where = f"{line.row} ({line.column})" if line.column else line.row
        if line.marked:
            differences.setdefault(explain(name, line.row, line.below), []).append(where)
        if line.state and content is not None:
            problems.setdefault(line.state, []).append(where)
    more = {}
    if name in BY_BORDERS and (borders := border_lines(content)):
        more[
            "Exact match (%) by how many borders of blocks of n//8 the needed chain crosses, the "
            "most of a story's boxes; n is that of the batch, with its padding."
        ] = borders
    return Section(
        name, TABLES[name].title, lines, _facts(name, content), differences, TABLES[name].log,
        problems, findings_of(name, content), more, content,
    )  # fmt: skip


def _facts(name: str, content: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    caption = TABLES[name].caption
    paper = [("the paper's", caption)] if caption else []
    if content is None:
        return [("to run it", f"chacal reproduce {name}"), *paper]
    facts = [
        ("scale", content["note"]),
        *([("seeds", seeds_text(content))] if content["cells"] else []),
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


def seeds_text(content: Mapping[str, Any]) -> str:
    """Which, and that rows have more or fewer of them, where they do."""
    text = ", ".join(map(str, content["seeds"]))
    counts = {count_seeds(cell) for cell in content["cells"]} - {"–"}
    return text if len(counts) < 2 else f"{text}; not every row has all (its column says how many)"


def layers(content: Mapping[str, Any] | None) -> list[str]:
    """The operators of every line, as texts, where a table has them."""
    if content is None or not content["cells"]:
        return []
    return [_short(cell["operators"]) for cell in content["cells"]]


def _short(operators: list[str]) -> str:
    if len(operators) > 1 and len(set(operators)) == 1:
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
