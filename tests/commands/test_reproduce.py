"""A wide table on a narrow terminal: in parts, with every figure whole."""

import io

import pytest
from rich.console import Console

from chacal.commands.reproduce import grids
from chacal.experiments.gather import never_run
from chacal.experiments.scales import CPU
from chacal.experiments.tables import TABLES
from chacal.report.lines import lines_of


def lines(name):
    return lines_of(never_run(TABLES[name], CPU))


def printed(name, width):
    out = io.StringIO()
    parts = grids(lines(name), width)
    console = Console(file=out, width=width, highlight=False, markup=False)
    for part in parts:
        console.print(part)
    return len(parts), out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["tab:scrolls", "tab:boxes", "tab:lm_all"])
def test_no_figure_is_broken(name, width):
    told = lines(name)
    _, text = printed(name, width)
    assert max(map(len, text.splitlines())) <= width
    words = [word for line in text.splitlines() for word in line.split("  ")]
    cells = [word.strip() for word in words]
    figures = [text for line in told.lines for text in line.texts if text != "–"]
    assert cells.count("not run") == figures.count("not run")
    for figure in set(figures):
        assert cells.count(figure) >= figures.count(figure)


def test_as_few_parts_as_fit():
    assert printed("tab:scrolls", 400)[0] == 1
    assert printed("tab:boxes", 120)[0] == 1
    assert 1 < printed("tab:scrolls", 80)[0] <= 4
