"""A wide table on a narrow terminal: in parts, with every figure whole; engines and options."""

import io
import sys

import pytest
from called import chacal, refused
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


def test_the_engine_of_an_extra_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = chacal("reproduce", "tab:boxes", "--engine", "ray", "--out", tmp_path / "s")
    refused(done, "engine is 'ray' and there is no Ray; install the extra 'ray'")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--address", "head:6379"), "address is 'head:6379'; expected --engine ray"),
        (("--cpus", "2"), "cpus is 2; expected --engine ray"),
        (("--gpus", "1"), "gpus is 1.0; expected --engine ray"),
        (("--engine", "ray", "--jobs", "2"), "jobs is 2 with --engine ray; expected --cpus"),
        (("--engine", "ray", "--cpus", "0"), "cpus is 0; expected at least 1"),
        (("--engine", "ray", "--gpus", "1.5"), "gpus is 1.5; expected a whole number"),
        (("--engine", "ray", "--gpus", "-1"), "gpus is -1; expected a whole number"),
        (("--engine", "ray", "--gpus", "nan"), "gpus is nan; expected a whole number"),
        (("--engine", "ray", "--address", "[::1]:1"), "no Ray cluster answers at '[::1]:1'"),
        (("--engine", "ray", "--address", "x:y"), "no Ray cluster answers at 'x:y'"),
    ],
)  # fmt: skip
def test_options_of_an_engine(options, words, tmp_path):
    if "ray" in options:
        pytest.importorskip("ray")
    table = ("reproduce", "tab:ablation_branches", "--scale", "smoke", "--out", tmp_path / "s")
    refused(chacal(*table, *options), words)
