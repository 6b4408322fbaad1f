"""A table as lines of text, the same for the terminal, the Markdown file and the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from chacal.report.results import SMOKE, ByGroup, CellResult, Figure, Metric, TableResult

MISSING = ("not run", "failed", "not timed")
"""What stands where a figure would."""


@dataclass(frozen=True)
class Column:
    """A column of figures: ours, or the paper's for the same metric."""

    title: str
    paper: bool = False


@dataclass(frozen=True)
class TextLine:
    """One line: its name, a text for each column, and what there is to say of it.

    Attributes:
        row: what it is.
        column: what of it, in a table that has both.
        texts: one for each of the table's columns.
        causal: whether no later token is seen; None where it is not known.
        seeds: of how many its figures are; "" where there are no seeds.
        marked: which columns differ from the paper's.
        state: "" where the line is whole, else "not run" or why it failed.
        operators: of its layers, shortened; "" where it has none.
    """

    row: str
    column: str
    texts: list[str]
    causal: bool | None
    seeds: str = ""
    marked: set[int] = field(default_factory=set)
    state: str = ""
    operators: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table of texts."""

    columns: list[Column]
    lines: list[TextLine]

    @property
    def has_column(self) -> bool:
        """Whether rows are told apart by a second name."""
        return any(line.column for line in self.lines)

    @property
    def has_seeds(self) -> bool:
        """Whether the lines say of how many seeds they are."""
        return any(line.seeds for line in self.lines)

    @property
    def has_operators(self) -> bool:
        """Whether the lines say what their layers are."""
        return any(line.operators for line in self.lines)


def lines_of(table: TableResult) -> TextTable:
    """The lines of a table."""
    if table.costs:
        return _cost_lines(table)
    compared = {m.name: any(m.name in c.paper for c in table.cells) for m in table.metrics}
    columns = []
    for metric in table.metrics:
        columns.append(Column(f"{metric.title}: ours"))
        if compared[metric.name]:
            columns.append(Column("paper", paper=True))
    lines = [_line(cell, table, compared) for cell in table.cells]
    if not lines:  # a question of ours that was never run
        lines = [TextLine("all", "", ["not run"] * len(columns), None, state="not run")]
    return TextTable(columns, lines)


def _line(cell: CellResult, table: TableResult, compared: dict[str, bool]) -> TextLine:
    figures = cell.figures()
    differing = cell.differing(table.metrics) if table.scale != SMOKE else {}
    texts: list[str] = []
    marked: set[int] = set()
    for metric in table.metrics:
        ours, paper = figures.get(metric.name), cell.paper.get(metric.name)
        missing = "–" if figures else "failed" if "failed" in cell.state() else "not run"
        if metric.name == "seconds" and figures and ours is None:
            missing = "not timed"
        if metric.name in differing:
            marked.add(len(texts))
        texts.append(figure_text(metric, ours) if ours else missing)
        if compared[metric.name]:
            texts.append("–" if paper is None else f"{paper:g}")
    return TextLine(
        cell.row, cell.column, texts, cell.causal,
        cell.seeds_text() if cell.operators else "", marked, cell.state(),
        short_operators(cell.operators),
    )  # fmt: skip


def group_lines(table: TableResult, shown: ByGroup) -> TextTable | None:
    """A metric of every row by groups of the test examples, and how many there are of each."""
    found = [
        (cell, groups)
        for cell in table.cells
        if (groups := cell.broken_down(shown.metric, shown.by))
    ]
    places = sorted({place for _, groups in found for place in groups})
    if not places:
        return None
    lines = [
        TextLine(
            cell.row, cell.column,
            [f"{100 * groups[p].mean:.1f}" if p in groups else "–" for p in places],
            cell.causal, cell.seeds_text(),
        )
        for cell, groups in found
    ]  # fmt: skip
    sizes: dict[str, dict[int, int]] = {}
    for cell, _ in found:
        sizes.setdefault(cell.column, cell.group_sizes(shown.by))
    counted = [
        TextLine("test stories", column, [f"{counts.get(p, 0):,}" for p in places], None)
        for column, counts in sizes.items()
        if counts
    ]
    return TextTable([Column(str(place)) for place in places], [*counted, *lines])


def figure_text(metric: Metric, figure: Figure) -> str:
    """A figure as people read it; shares in per cent, with their spread."""
    unit = 100 if metric.share else 1
    if not metric.digits:
        return f"{unit * figure.mean:,.0f}"
    digits = metric.digits if metric.share else 4
    spread = "" if figure.std is None else f" ± {unit * figure.std:.{digits}f}"
    return f"{unit * figure.mean:.{metric.digits}f}{spread}"


def short_operators(operators: tuple[str, ...]) -> str:
    """The layers, as in "dense + chacal" or "5 x dense"."""
    if len(operators) > 1 and len(set(operators)) == 1:
        return f"{len(operators)} x {operators[0]}"
    return " + ".join(operators)


def _cost_lines(table: TableResult) -> TextTable:
    lines = []
    for cost in table.costs:
        label = f"against {cost.column}"
        if cost.state == "done":
            lines.append(TextLine(cost.row, label, list(cost.texts), cost.causal))
        else:
            texts = [cost.state] * len(table.cost_columns)
            lines.append(TextLine(cost.row, label, texts, None, state=cost.why or "not run"))
    return TextTable([Column(title) for title in table.cost_columns], lines)
