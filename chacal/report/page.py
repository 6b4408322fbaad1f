"""The report as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import base64
import re
from html import escape
from itertools import chain

from chacal.report.files import Results
from chacal.report.lines import MISSING, TextTable
from chacal.report.sections import LEAD, Fact, Section, maps, sections_of, some
from chacal.report.svg import drawn

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff;
  --line: #d8dee4; --grid: #e4e7eb; --card: #f6f8fa; --mark: #9a3412; --bad: #b42318;
  --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --paper: #0d1117;
  --line: #30363d; --grid: #262c34; --card: #161b22; --mark: #f0883e; --bad: #ff7b72;
  --link: #6cb6ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 78rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; padding-top: 1rem;
  border-top: 2px solid var(--ink); }
h3 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; scroll-margin-top: 1rem; }
h3 code { color: var(--soft); font-weight: normal; }
p, ul { margin: .5rem 0; max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--link); }
nav ul { columns: 18rem; padding-left: 1.1rem; max-width: none; }
.soft { color: var(--soft); }
.banner { border: 2px solid var(--bad); color: var(--bad); padding: .6rem .9rem; font-weight: 600;
  border-radius: .4rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; }
th { background: var(--card); vertical-align: bottom; font-weight: 600; white-space: normal;
  min-width: 3rem; line-height: 1.25; }
th.text, td.text { text-align: left; }
td:first-child, th:first-child { position: sticky; left: 0; background: var(--paper); }
th:first-child { background: var(--card); }
td.paper { color: var(--soft); }
td.layers { text-align: left; white-space: normal; min-width: 12rem; }
td.long { text-align: left; white-space: normal; min-width: 14rem; }
td.marked { color: var(--mark); font-weight: 600; }
td.missing, .no { color: var(--bad); }
code { font: .86em ui-monospace, monospace; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr));
  gap: 1rem; margin: 1rem 0; }
figure { margin: 0; border: 1px solid var(--line); border-radius: .4rem; padding: .6rem; }
figure > div { overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 30rem; height: auto; }
figure img { display: block; max-width: 100%; background: #fff; }
figcaption { font-size: .9rem; color: var(--soft); margin-top: .4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .9rem;
  margin: .6rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; margin: .6rem 0; }
@media (max-width: 40rem) {
  body { padding: 1rem .75rem 3rem; }
  td, th { padding: .35rem .5rem; }
  td.text { white-space: normal; min-width: 8rem; }
  td:first-child { max-width: 9rem; overflow-wrap: anywhere; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .4rem; }
}
"""


def page(everything: list[Results], notes: list[str], findings: str, play: str = "") -> str:
    """All tables.

    Args:
        everything: the results, scale by scale.
        notes: what was left out.
        findings: the path from the page to docs/findings.md, "" if there is none.
        play: the same to the page that `chacal play --export` wrote.
    """
    lead = escape(LEAD).replace("`chacal reproduce`", "<code>chacal reproduce</code>")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>The paper's tables, run again</title>",
        f"<style>{STYLE}</style></head><body>",
        "<h1>The paper's tables, run again</h1>",
        f"<p>{lead}"
        + (f' What they show is in <a href="{findings}">the findings</a>.' if findings else "")
        + (f' To see how it works: <a href="{play}">a page to play with</a>.' if play else ""),
        "</p>",
        *(f'<p class="soft">{escape(note)}</p>' for note in notes),
    ]
    for results in everything:
        sections = sections_of(results)
        parts.append(f"<h2>Scale: {escape(results.title)}</h2>")
        if results.smoke:
            parts.append(
                '<p class="banner">SMOKE: a test that everything runs. No figure here is a '
                "result, and none is compared with the paper's.</p>"
            )
        parts.append(_contents(results, sections))
        parts += chain.from_iterable(_section(results, section, findings) for section in sections)
    return "\n".join([*parts, "</body></html>", ""])


def _anchor(results: Results, section: Section) -> str:
    return f"{results.title.replace(', ', '-')}-{section.table.table.replace(':', '-')}"


def _contents(results: Results, sections: list[Section]) -> str:
    items = []
    for section in sections:
        missing = "" if section.table.was_run else ' <span class="no">not run</span>'
        if section.problems:
            missing = (
                f' <span class="no">{sum(map(len, section.problems.values()))} incomplete</span>'
            )
        items.append(
            f'<li><a href="#{_anchor(results, section)}">{escape(section.table.title)}</a>{missing}'
            "</li>"
        )
    return "<nav><ul>" + "".join(items) + "</ul></nav>"


def _section(results: Results, section: Section, findings: str) -> list[str]:
    table = section.table
    parts = [
        f'<h3 id="{_anchor(results, section)}">{escape(table.title)} '
        f"<code>{escape(table.table)}</code></h3>",
        _table(section.lines),
    ]
    remarks = [f"<li>{escape(sentence)}</li>" for sentence in table.findings]
    for sentence, rows in section.differences.items():
        link = f' <a href="{findings}#{table.anchor}">findings</a>' if findings else ""
        who = escape(some(rows))
        remarks.append(f"<li>≠ <strong>{who}</strong>: {escape(sentence)}{link}</li>")
    for why, rows in section.problems.items():
        remarks.append(f'<li class="no">{escape(some(rows))}: {escape(why)}</li>')
    if findings and not section.differences:
        remarks.append(f'<li><a href="{findings}#{table.anchor}">What it shows</a></li>')
    if remarks:
        parts.append("<ul>" + "".join(remarks) + "</ul>")
    for text, lines in section.more.items():
        parts.append(f"<p>{escape(text)}</p>{_table(lines)}")
    plots = drawn(table)
    if plots:
        parts.append('<div class="plots">')
        for text, svg in plots:
            named = svg.replace("<svg", f'<svg role="img" aria-label="{escape(text)}"', 1)
            parts.append(
                f"<figure><div>{named}</div><figcaption>{escape(text)}</figcaption></figure>"
            )
        parts.append("</div>")
    for row, path in maps(results, table):
        data = base64.b64encode(path.read_bytes()).decode()
        parts.append(
            f"<details><summary>Attention maps: {escape(row)}</summary><figure><div>"
            f'<img alt="attention maps of {escape(row)}" src="data:image/png;base64,{data}">'
            f"</div></figure></details>"
        )
    facts = "".join(f"<dt>{escape(fact.word)}</dt><dd>{_fact(fact)}</dd>" for fact in section.facts)
    return [
        *parts,
        _how(section),
        f"<details><summary>Scale, sizes, machine</summary><dl>{facts}</dl></details>",
    ]


def _how(section: Section) -> str:
    """The line that is always seen: the command, and of which seeds."""
    table = section.table
    seeds = f", seeds {escape(table.seeds_text())}" if table.cells else ""
    seeds = seeds if table.was_run else ", not run yet"
    return f'<p class="soft"><code>{escape(table.command)}</code>{seeds}</p>'


def _fact(fact: Fact) -> str:
    return f"<code>{escape(fact.text)}</code>" if fact.command else escape(fact.text)


def _table(lines: TextTable) -> str:
    head = ['<th class="text">row</th>']
    head += ['<th class="text">of</th>'] if lines.has_column else []
    head += [f"<th>{escape(column.title)}</th>" for column in lines.columns]
    head += ["<th>seeds</th>"] if lines.has_seeds else []
    head.append("<th>causal</th>")
    head += ['<th class="text">layers</th>'] if lines.has_operators else []
    body = []
    for line in lines.lines:
        cells = [f'<td class="text">{_breakable(line.row)}</td>']
        cells += [f'<td class="text">{escape(line.column)}</td>'] if lines.has_column else []
        for j, text in enumerate(line.texts):
            kind = "paper" if lines.columns[j].paper else ""
            kind = "missing" if text in MISSING else kind
            mark = " ≠" if j in line.marked else ""
            kind = "marked" if mark else "long" if len(text) > 24 else kind
            cells.append(f'<td class="{kind}">{escape(text)}{mark}</td>')
        cells += [f"<td>{escape(line.seeds)}</td>"] if lines.has_seeds else []
        causal = {True: "yes", False: '<span class="no">no</span>', None: ""}[line.causal]
        cells.append(f"<td>{causal}</td>")
        if lines.has_operators:
            cells.append(f'<td class="layers"><code>{_breakable(line.operators)}</code></td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{"".join(head)}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _breakable(text: str) -> str:
    """Names of operators may be broken after their commas, where there is no blank."""
    return re.sub(r",(?=\S)", ",<wbr>", escape(text))
