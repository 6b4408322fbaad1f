"""What a report says of a table besides its lines: differences, sizes, command, machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chacal.report.files import Results
from chacal.report.lines import TextTable, group_lines, lines_of
from chacal.report.results import TableResult

LEAD = (
    "The paper's tables and the questions that they leave open, made by `chacal reproduce`, with "
    "the paper's figure beside ours. Ours are means over seeds ± the sample standard deviation; of "
    "one seed there is none, and another processor moves a figure too. ≠ marks a share that is "
    "more than 2 points from the paper's; times are of other machines and are not compared."
)


@dataclass(frozen=True)
class Fact:
    """What was run, on what, by what: a word and a text; commands are set as such."""

    word: str
    text: str
    command: bool = False


@dataclass(frozen=True)
class Section:
    """One table of the report.

    Attributes:
        table: the table itself.
        lines: the table as texts.
        facts: what was run, on what.
        command: what makes it.
        differences: sentence -> rows that it explains.
        problems: why -> lines that are missing or failed.
        more: what it shows -> further lines of the same rows.
    """

    table: TableResult
    lines: TextTable
    facts: list[Fact]
    differences: dict[str, list[str]]
    problems: dict[str, list[str]]
    more: dict[str, TextTable]


def some(rows: list[str]) -> str:
    """A few rows by name; of many, the first and how many more."""
    return "; ".join(rows) if len(rows) <= 3 else f"{rows[0]} and {len(rows) - 1} more"


def sections_of(results: Results) -> list[Section]:
    """The report's sections of one scale."""
    return [_section(table) for table in results.tables]


def _section(table: TableResult) -> Section:
    lines = lines_of(table)
    differences: dict[str, list[str]] = {}
    problems: dict[str, list[str]] = {}
    for cell in table.cells:
        if cell.difference:
            differences.setdefault(cell.difference, []).append(_name(cell.row, cell.column))
    for line in lines.lines if table.was_run else []:
        if line.state:
            problems.setdefault(line.state, []).append(_name(line.row, line.column))
    more = {}
    for shown in table.by_group:
        if (groups := group_lines(table, shown)) is not None:
            more[shown.text] = groups
    return Section(table, lines, _facts(table), differences, problems, more)


def _name(row: str, column: str) -> str:
    return f"{row} ({column})" if column else row


def _facts(table: TableResult) -> list[Fact]:
    paper = [Fact("the paper's", table.caption)] if table.caption else []
    if not table.was_run:
        return [Fact("to run it", table.command, command=True), *paper]
    facts = [
        Fact("scale", table.note),
        *([Fact("seeds", table.seeds_text())] if table.cells else []),
        Fact("command", table.command, command=True),
        Fact("machine", "; ".join(table.machines) or "nothing was run yet"),
    ]
    for word, texts in (
        ("task", [cell.task for cell in table.cells]),
        ("model", [cell.model for cell in table.cells]),
        ("training", [cell.training for cell in table.cells]),
    ):
        told = dict.fromkeys(texts)
        if told and len(told) <= 4:
            facts.append(Fact(word, "; ".join(told)))
    if table.timing is not None:
        timing = table.timing
        facts.append(
            Fact("times", f"at most {timing.examples:,} examples in batches of "
                 f"{timing.batch_size}, one thread of {timing.processor}, all rows in turns in "
                 "one process after a warm-up, medians; seed 0's weights")
        )  # fmt: skip
    return [*facts, *paper]


def maps(results: Results, table: TableResult) -> list[tuple[str, Path]]:
    """Attention maps of the last layer of every trained row, where they were drawn."""
    found = []
    for cell in table.cells:
        for run in cell.runs.values():
            if (
                run.maps
                and (path := _within(results.folder / "runs", run.run, run.maps[-1])).is_file()
            ):
                found.append((cell.row, path))
                break
    return found


def _within(runs: Path, run: str, name: str) -> Path:
    """A file of a run's folder; a table from a stranger may name others, which are not read."""
    folder = (runs / run).resolve()
    path = (folder / name).resolve()
    if folder.parent != runs.resolve() or folder not in path.parents:
        raise ValueError(
            f"{runs / run / name} is named by a table and lies elsewhere; expected a file within "
            f"the run's folder"
        )
    return path
