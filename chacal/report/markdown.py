"""The report as a Markdown file."""

from __future__ import annotations

from chacal.report.aggregate import Results
from chacal.report.lines import Lines
from chacal.report.sections import LEAD, Section, layers, sections_of, some


def markdown(everything: list[Results], log: str) -> str:
    """All tables; `log` is the path of docs/findings.md from the file, or "" without one."""
    parts = ["# The paper's tables, run again", "", LEAD, ""]
    parts += ["The plots and attention maps are in `report.html` beside this file.", ""]
    for results in everything:
        parts += [f"## Scale: {results.scale}", ""]
        if results.smoke:
            parts += ["**SMOKE: a test that everything runs. No figure here is a result.**", ""]
        for section in sections_of(results):
            parts += _section(section, log)
    return "\n".join(parts)


def _section(section: Section, log: str) -> list[str]:
    parts = [f"### {section.name}: {section.title}", ""]
    parts += _table(section.lines, layers(section.content))
    for text, lines in section.more.items():
        parts += [text, "", *_table(lines, [])]
    parts += [f"- {sentence}" for sentence in section.findings]
    for sentence, who in section.differences.items():
        parts.append(f"- ≠ {some(who)}: {sentence}{_link(log, section.log)}")
    parts += [f"- {some(who)}: {why}" for why, who in section.problems.items()]
    if log and not section.differences:
        parts.append(f"- what it shows:{_link(log, section.log)}")
    parts += [
        f"- {word}: " + (f"`{text}`" if word in ("command", "to run it") else text)
        for word, text in section.facts
    ]
    return [*parts, ""]


def _table(lines: Lines, texts: list[str]) -> list[str]:
    head = ["row", *(["of"] if lines.has_column else []), *lines.columns]
    head += [*(["seeds"] if lines.has_seeds else []), "causal", *(["layers"] if texts else [])]
    rows = []
    for i, line in enumerate(lines.lines):
        row = [line.row, *([line.column] if lines.has_column else [])]
        row += [t + (" ≠" if j in line.marked else "") for j, t in enumerate(line.texts)]
        row += [line.seeds] if lines.has_seeds else []
        row.append({True: "yes", False: "**no**", None: ""}[line.causal])
        row += [f"`{texts[i]}`"] if texts else []
        rows.append(row)
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows), ""]


def _row(cells: list[str]) -> str:
    safe = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return "| " + " | ".join(safe) + " |"


def _link(log: str, anchor: str) -> str:
    return f" ([log]({log}#{anchor}))" if log else ""
