"""The report as a Markdown file."""

from __future__ import annotations

from chacal.report.files import Results
from chacal.report.lines import TextTable
from chacal.report.sections import LEAD, Section, sections_of, some


def markdown(everything: list[Results], findings: str) -> str:
    """All tables; `findings` is the path from the file to docs/findings.md, "" if there is none."""
    parts = ["# The paper's tables, run again", "", LEAD, ""]
    parts += ["The plots and attention maps are in `report.html` beside this file.", ""]
    for results in everything:
        parts += [f"## Scale: {results.title}", ""]
        if results.smoke:
            parts += ["**SMOKE: a test that everything runs. No figure here is a result.**", ""]
        for section in sections_of(results):
            parts += _section(section, findings)
    return "\n".join(parts)


def _section(section: Section, findings: str) -> list[str]:
    table = section.table
    parts = [f"### {table.table}: {table.title}", ""]
    parts += _table(section.lines)
    for text, lines in section.more.items():
        parts += [text, "", *_table(lines)]
    parts += [f"- {sentence}" for sentence in table.findings]
    for sentence, who in section.differences.items():
        parts.append(f"- ≠ {some(who)}: {sentence}{_link(findings, table.anchor)}")
    parts += [f"- {some(who)}: {why}" for why, who in section.problems.items()]
    if findings and not section.differences:
        parts.append(f"- what it shows:{_link(findings, table.anchor)}")
    parts += [
        f"- {fact.word}: " + (f"`{fact.text}`" if fact.command else fact.text)
        for fact in section.facts
    ]
    return [*parts, ""]


def _table(lines: TextTable) -> list[str]:
    head = ["row", *(["of"] if lines.has_column else []), *(c.title for c in lines.columns)]
    head += [*(["seeds"] if lines.has_seeds else []), "causal"]
    head += ["layers"] if lines.has_operators else []
    rows = []
    for line in lines.lines:
        row = [line.row, *([line.column] if lines.has_column else [])]
        row += [t + (" ≠" if j in line.marked else "") for j, t in enumerate(line.texts)]
        row += [line.seeds] if lines.has_seeds else []
        row.append({True: "yes", False: "**no**", None: ""}[line.causal])
        row += [f"`{line.operators}`"] if lines.has_operators else []
        rows.append(row)
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows), ""]


def _row(cells: list[str]) -> str:
    safe = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return "| " + " | ".join(safe) + " |"


def _link(findings: str, anchor: str) -> str:
    return f" ([findings]({findings}#{anchor}))" if findings else ""
