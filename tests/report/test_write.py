"""The page and the Markdown file, from a hand-made table: what they say, and what they load."""

import json
import re

import pytest

from chacal.report.pictures import COLOURS
from chacal.report.plots import bars, by_borders
from chacal.report.write import write_report


def cell(row, paper, *runs, causal=True, seconds=None, column=""):
    return {
        "row": row, "column": column, "operators": ["dense", "block/3"], "causal": causal,
        "task": "boxes", "model": "2 layers", "training": "20 steps", "floor": None,
        "paper": paper, "seconds": seconds, "runs": dict(enumerate(runs)),
        "counts": {f"exact_match/borders={i:02d}": 1000 - 249 * i for i in range(5)},
    }  # fmt: skip


def done(exact, **more):
    metrics = {"accuracy": 0.999, "exact_match": exact, **more}
    return {"state": "done", "run": "r", "metrics": metrics, "train_seconds": 1.0}


def table(scale="cpu"):
    paper = {"accuracy": 99.98, "exact_match": 99.99, "seconds": 1.9}
    groups = {
        f"exact_match/{what}={i:02d}": 1 - i / 5
        for what in ("crossings", "borders")
        for i in range(5)
    }
    return {
        "table": "tab:boxes", "title": "Results on Boxes", "scale": scale, "note": "5 boxes",
        "seeds": [0, 1], "metrics": ["accuracy", "exact_match", "seconds"],
        "command": "chacal reproduce tab:boxes", "timing": None, "costs": [],
        "machines": ["a <fast> one"],
        "cells": [
            cell("ChaCAL, L=2", paper, done(0.999, **groups), done(0.997, **groups), seconds=2.0),
            cell("Block-ChaCAL n//3, L=2", paper, done(0.5, **groups), done(0.52, **groups),
                 seconds=1.0),
            cell("Dense, L=2", paper, {"state": "not run"}, {"state": "not run"}),
            cell("Local, L=2", paper, {"state": "failed", "run": "r", "why": "the loss is <nan>"},
                 {"state": "not run"}),
            cell("leaky", {}, done(0.9), {"state": "failed", "run": "r", "why": "no room"},
                 causal=False),
            cell("Dense, L=5", {}, done(1.0), seconds=5.0),
        ],
    }  # fmt: skip


@pytest.fixture
def results(tmp_path):
    def make(scale):
        folder = tmp_path / scale
        (folder / "tables").mkdir(parents=True)
        (folder / "scale.json").write_text(json.dumps({"scale": scale}))
        (folder / "tables" / "tab-boxes.json").write_text(json.dumps(table(scale)))
        lines = write_report(folder)
        assert [line.split()[0] for line in lines] == ["written:", "written:"]
        return (folder / "report.html").read_text(), (folder / "report.md").read_text()

    return make


def test_markdown_has_figures_marks_and_reasons(results):
    _, text = results("cpu")
    lines = [line for line in text.splitlines() if line.endswith("`dense + block/3` |")]
    rows = {line.split(" | ")[0][2:]: line for line in lines}
    assert "| 99.80 ± 0.14 | 99.99 | 2.000 | 1.9 | 2 | yes |" in rows["ChaCAL, L=2"]
    assert "| 51.00 ± 1.41 ≠ | 99.99 |" in rows["Block-ChaCAL n//3, L=2"]
    assert rows["Dense, L=2"].count("not run") == 3
    assert rows["Local, L=2"].count("failed") == 3
    assert "| 90.00 |" in rows["leaky"]
    assert "**no**" in rows["leaky"]
    assert "- Local, L=2: seed 0 failed: the loss is <nan>; seed 1 not run\n" in text
    assert "- Dense, L=2: not run\n" in text
    # of how many seeds each row is, where rows have more or fewer
    seeds = {row: line.split(" | ")[-3] for row, line in rows.items()}
    assert seeds == {
        "ChaCAL, L=2": "2", "Block-ChaCAL n//3, L=2": "2", "Dense, L=2": "–", "Local, L=2": "–",
        "leaky": "1 of 2", "Dense, L=5": "1",
    }  # fmt: skip
    assert "- seeds: 0, 1; not every row has all" in text
    assert "≠ Block-ChaCAL n//3, L=2: In Algorithm 1 a row sees" in text
    assert "`chacal reproduce tab:boxes`" in text
    # a table that was never run has the paper's figures and says so
    assert "| h=1, p=2 | not run | 61.8 |" in text
    assert "`chacal reproduce fig:leak`" in text


def test_every_row_is_shown_by_borders(results):
    page, text = results("cpu")
    assert "| row | 0 | 1 | 2 | 3 | 4 | seeds | causal |" in text
    assert "| test stories | 1,000 | 751 | 502 | 253 | 4 |  |  |" in text
    for row in ("ChaCAL, L=2", "Block-ChaCAL n//3, L=2"):
        assert f"| {row} | 100.0 | 80.0 | 60.0 | 40.0 | 20.0 | 2 | yes |" in text
    assert "<th>4</th>" in page


def test_the_frontier_is_told_at_two_layers_and_depth_by_its_ratio(results):
    for report in results("cpu"):
        assert "at L=2, of 2 rows with times (2 without), from the fastest on: " in report
        assert "Block-ChaCAL n//3, L=2 (51.00 %); ChaCAL, L=2 (99.80 %)." in report
        assert "over that of ChaCAL, L=2: Dense, L=5 2.50." in report
    assert not any("On the frontier" in report for report in results("smoke"))


def test_a_table_of_curves_has_no_seeds_and_is_no_table_that_was_not_run(tmp_path):
    curve = {
        "row": "Block-ChaCAL, n=64", "column": "block size", "state": "done", "causal": True,
        "stopped": "",
        "points": [
            {"operator": "block", "n": 64, "block_size": m, "seconds": s, "ratio": 1.0, "bytes": 0}
            for m, s in ((4, 3.0), (8, 1.0), (16, 1.05))
        ],
    }  # fmt: skip
    content = {**table(), "table": "fig:cost", "cells": [], "costs": [curve], "seeds": [0]}
    (tmp_path / "tables").mkdir()
    (tmp_path / "scale.json").write_text('{"scale": "cpu"}')
    (tmp_path / "tables" / "fig-cost.json").write_text(json.dumps(content))
    write_report(tmp_path)
    page, text = ((tmp_path / f"report.{ending}").read_text() for ending in ("html", "md"))
    # at the right end it is slower by a twentieth: chance, and no U
    assert "| 8 | no U: 3.00 and 1.05 times as long at the ends | yes |" in text
    assert "- seeds:" not in text
    assert "<code>chacal reproduce tab:boxes</code></p>" in page


def test_a_group_of_few_stories_is_told_and_not_drawn():
    def points(stories):
        groups = {f"exact_match/borders={i:02d}": 1.0 for i in range(4)}
        which = {**cell("ChaCAL, L=2", {}, done(1.0, **groups)), "counts": {
            f"exact_match/borders={i:02d}": 20 for i in range(3)} | {
            "exact_match/borders=03": stories}}  # fmt: skip
        return by_borders({"cells": [which]})[1].count("<use")

    assert points(19) < points(20)


def test_a_regime_that_was_not_run_has_no_bar():
    ours = [
        cell("Dense, L=2", {}, done(0.5), column="short"),
        cell("Block-ChaCAL n//3, L=2", {}, done(0.5), column="short"),
        cell("Block-ChaCAL n//3, L=2", {}, done(0.9), column="long"),
    ]
    _, svg = bars({"cells": ours})
    # one for the row, one in the legend
    assert svg.count(f"fill: {COLOURS[1].lower()}") == 2


def test_the_page_loads_nothing(results):
    page, _ = results("cpu")
    loaded = re.findall(r"""(?:src|href|xlink:href|action|data)=["']([^"']+)""", page)
    assert loaded
    assert all(link.startswith(("#", "data:", "../")) for link in loaded), loaded
    assert not re.search(r"https?://|@import|<script|<link|url\((?!#)", page)


def test_the_page_says_the_same_and_escapes(results):
    page, _ = results("cpu")
    assert "51.00 ± 1.41 ≠" in page
    assert page.count('class="missing">not run') > 3
    assert "the loss is &lt;nan&gt;" in page
    assert "a &lt;fast&gt; one" in page
    assert "<nan>" not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert page.count('<div class="scroll"') == page.count("<table>")
    assert "SMOKE" not in page
    # the frontier and the borders are drawn in the page's own colours
    assert page.count("<svg") == 3
    assert "currentColor" in page
    assert "#0a0b0c" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_smoke_is_marked_and_not_compared(results):
    page, text = results("smoke")
    for report in (page, text):
        assert "SMOKE" in report
        assert "51.00 ± 1.41" in report
        assert "51.00 ± 1.41 ≠" not in report


def test_the_log_is_linked_from_inside_a_repository(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "chacal").mkdir()
    (tmp_path / "docs" / "findings.md").write_text("# Log\n")
    folder = tmp_path / "results" / "cpu"
    (folder / "tables").mkdir(parents=True)
    (folder / "scale.json").write_text('{"scale": "cpu"}')
    (folder / "tables" / "tab-boxes.json").write_text(json.dumps(table()))
    write_report(tmp_path / "results")
    page = (tmp_path / "results" / "report.html").read_text()
    assert 'href="../docs/findings.md#tabboxes"' in page
    assert 'href="../docs/findings.md#figleak"' in page
    assert "../docs/findings.md#tabboxes" in (tmp_path / "results" / "report.md").read_text()


def test_a_second_report_is_the_same_byte_for_byte(results, tmp_path):
    page, text = results("cpu")
    write_report(tmp_path / "cpu", tmp_path / "again")
    assert (tmp_path / "again" / "report.html").read_text() == page
    assert (tmp_path / "again" / "report.md").read_text() == text
