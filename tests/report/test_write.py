"""The page and the Markdown file, from a hand-made table: what they say, and what they load."""

import dataclasses
import json
import re

import pytest
from tables import NOT_RUN, cells_of, done, failed, found, made

from chacal._plain import to_plain
from chacal.experiments.gather import never_run
from chacal.experiments.scales import CPU, SMOKE
from chacal.experiments.tables import TABLES, boxes, cost, regimes
from chacal.report.pictures import COLOURS
from chacal.report.results import CostPoint, CostResult
from chacal.report.svg import draw_bars, draw_lines
from chacal.report.write import write_report

EMPTY = {name: never_run(table, CPU) for name, table in TABLES.items()}

GROUPS = {
    f"exact_match/{what}={i:02d}": 1 - i / 5 for what in ("crossings", "borders") for i in range(5)
}
LEAKY = "Block-ChaCAL n//8, L=2"


def run(exact, **more):
    return done(accuracy=0.999, exact_match=exact, **more)


def table(scale=CPU):
    cells = cells_of(boxes.TABLE, scale)
    sizes = {"borders": {i: 1000 - 249 * i for i in range(5)}}
    leaky = dataclasses.replace(
        cells[LEAKY], run=scale.on_boxes("dense", "block/8,rows=mean"), paper={}
    )
    return made(
        boxes.TABLE,
        found(cells["ChaCAL, L=2"], run(0.999, **GROUPS), run(0.997, **GROUPS), seconds=2.0,
              sizes=sizes),
        found(cells["Block-ChaCAL n//3, L=2"], run(0.5, **GROUPS), run(0.52, **GROUPS),
              seconds=1.0, sizes=sizes),
        found(cells["Dense, L=2"], NOT_RUN, NOT_RUN),
        found(cells["Local, L=2"], failed("the loss is <nan>"), NOT_RUN),
        found(leaky, run(0.9), failed("no room")),
        found(cells["Dense, L=5"], run(0.97), seconds=5.0),
        scale=scale,
        machines=["a <fast> one"],
    )  # fmt: skip


def put(folder, content):
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / "scale.json").write_text(json.dumps({"scale": content.scale}))
    file = folder / "tables" / f"{content.table.replace(':', '-')}.json"
    file.write_text(json.dumps(to_plain(content)))


@pytest.fixture
def results(tmp_path):
    def make(scale):
        folder = tmp_path / scale.name
        put(folder, table(scale))
        lines = write_report(folder, EMPTY)
        assert [line.split()[0] for line in lines] == ["written:", "written:"]
        return (folder / "report.html").read_text(), (folder / "report.md").read_text()

    return make


def test_markdown_has_figures_marks_and_reasons(results):
    _, text = results(CPU)
    part = text[: text.index("Exact match (%) by how many borders")]
    rows = {line.split(" | ")[0][2:]: line for line in part.splitlines() if line.startswith("| ")}
    assert "| 99.80 ± 0.14 | 100 | 2.000 | 2.5 | 2 | yes |" in rows["ChaCAL, L=2"]
    assert "| 51.00 ± 1.41 ≠ | 99.99 |" in rows["Block-ChaCAL n//3, L=2"]
    assert rows["Dense, L=2"].count("not run") == 3
    assert rows["Local, L=2"].count("failed") == 3
    assert "| 90.00 |" in rows[LEAKY]
    assert "**no**" in rows[LEAKY]
    assert rows["Dense, L=5"].endswith("| `5 x dense` |")
    assert "- Local, L=2: seed 0 failed: the loss is <nan>; seed 1 not run\n" in text
    assert "- Dense, L=2: not run\n" in text
    # of how many seeds each row is, where rows have more or fewer
    seeds = {row: line.split(" | ")[-3] for row, line in rows.items() if ", L=" in row}
    assert seeds == {
        "ChaCAL, L=2": "2", "Block-ChaCAL n//3, L=2": "2", "Dense, L=2": "–", "Local, L=2": "–",
        LEAKY: "1 of 2", "Dense, L=5": "1",
    }  # fmt: skip
    assert "- seeds: 0, 1; not every row has all" in text
    assert "≠ Block-ChaCAL n//3, L=2: In Algorithm 1 a row sees" in text
    assert "`chacal reproduce tab:boxes --scale cpu" in text
    # a table that was never run has the paper's figures and says so
    assert "| h=1, p=2 | not run | 61.8 |" in text
    assert "`chacal reproduce fig:leak --scale cpu`" in text


def test_every_row_is_shown_by_borders(results):
    page, text = results(CPU)
    assert "| row | 0 | 1 | 2 | 3 | 4 | seeds | causal |" in text
    assert "| test stories | 1,000 | 751 | 502 | 253 | 4 |  |  |" in text
    for row in ("ChaCAL, L=2", "Block-ChaCAL n//3, L=2"):
        assert f"| {row} | 100.0 | 80.0 | 60.0 | 40.0 | 20.0 | 2 | yes |" in text
    assert "<th>4</th>" in page


def test_the_frontier_is_told_at_two_layers_and_depth_by_its_ratio(results):
    for report in results(CPU):
        assert "at L=2, of 2 rows with times (3 without), from the fastest on: " in report
        assert "Block-ChaCAL n//3, L=2 (51.00 %); ChaCAL, L=2 (99.80 %)." in report
        assert "over that of ChaCAL, L=2: Dense, L=5 2.50." in report
    assert not any("On the frontier" in report for report in results(SMOKE))


def test_a_table_of_curves_has_no_seeds_and_is_no_table_that_was_not_run(tmp_path):
    curve = next(c for c in cost.TABLE.costs(CPU) if c.blocks)
    points = tuple(
        CostPoint(operator="block@8", n=64, block_size=m, seconds=s, ratio=1.0, bytes=0)
        for m, s in ((4, 3.0), (8, 1.0), (16, 1.05))
    )
    result = CostResult(
        row=curve.row, column=curve.column, state="done", causal=True, points=points, stopped="",
        why="", texts=(),
    )  # fmt: skip
    result = dataclasses.replace(result, texts=tuple(cost.TABLE.cost_texts(curve, result)))
    put(tmp_path, made(cost.TABLE, costs=[(curve, result)], seeds=()))
    write_report(tmp_path, EMPTY)
    page, text = ((tmp_path / f"report.{ending}").read_text() for ending in ("html", "md"))
    # at the right end it is slower by a twentieth: chance, and no U
    assert "| 8 | no U: 3.00 and 1.05 times as long at the ends | yes |" in text
    assert "- seeds:" not in text
    assert "<code>chacal reproduce fig:cost --scale cpu --seeds 1</code></p>" not in page
    assert "<code>chacal reproduce fig:cost --scale cpu</code></p>" in page


def test_a_group_of_few_stories_is_told_and_not_drawn():
    def points(stories):
        groups = {f"exact_match/borders={i:02d}": 1.0 for i in range(4)}
        sizes = {"borders": {0: 20, 1: 20, 2: 20, 3: stories}}
        of = found(cells_of(boxes.TABLE)["ChaCAL, L=2"], run(1.0, **groups), sizes=sizes)
        (plot,) = boxes.TABLE.line_plots([of])
        assert draw_lines(plot).startswith("<svg")
        return len(plot.panels[0].lines[0].x)

    assert points(19) == 3
    assert points(20) == 4


def test_a_regime_that_was_not_run_has_no_bar():
    cells = cells_of(regimes.TABLE)
    short, long = (next(label for label in cells if label.startswith("Block-ChaCAL n//3")
                        and part in label) for part in ("cross", "fit"))  # fmt: skip
    ours = [
        found(cells["Dense, L=2, chains cross borders"], run(0.5)),
        found(cells[short], run(0.5)),
        found(cells[long], run(0.9)),
    ]
    (plot,) = regimes.TABLE.bar_plots(ours)
    assert plot.bars[1].values == (None, 90.0)
    # one for the row, one in the legend
    assert draw_bars(plot).count(f"fill: {COLOURS[1].lower()}") == 2


def test_the_page_loads_nothing(results):
    page, _ = results(CPU)
    loaded = re.findall(r"""(?:src|href|xlink:href|action|data)=["']([^"']+)""", page)
    assert loaded
    assert all(link.startswith(("#", "data:", "../")) for link in loaded), loaded
    assert not re.search(r"https?://|@import|<script|<link|url\((?!#)", page)


def test_the_page_says_the_same_and_escapes(results):
    page, _ = results(CPU)
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
    page, text = results(SMOKE)
    for report in (page, text):
        assert "SMOKE" in report
        assert "51.00 ± 1.41" in report
        assert "51.00 ± 1.41 ≠" not in report


def test_the_findings_are_linked_from_inside_a_repository(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "chacal").mkdir()
    (tmp_path / "docs" / "findings.md").write_text("# Findings\n")
    put(tmp_path / "results" / "cpu", table())
    write_report(tmp_path / "results", EMPTY)
    page = (tmp_path / "results" / "report.html").read_text()
    assert 'href="../docs/findings.md#tabboxes"' in page
    assert 'href="../docs/findings.md#figleak"' in page
    assert "../docs/findings.md#tabboxes" in (tmp_path / "results" / "report.md").read_text()


def test_the_page_to_play_with_is_linked_where_it_lies_beside(tmp_path):
    put(tmp_path / "cpu", table())
    for there in (False, True):
        write_report(tmp_path / "cpu", EMPTY)
        assert ('href="play.html"' in (tmp_path / "cpu" / "report.html").read_text()) is there
        (tmp_path / "cpu" / "play.html").write_text("a page")


def test_a_second_report_is_the_same_byte_for_byte(results, tmp_path):
    page, text = results(CPU)
    write_report(tmp_path / "cpu", EMPTY, tmp_path / "again")
    assert (tmp_path / "again" / "report.html").read_text() == page
    assert (tmp_path / "again" / "report.md").read_text() == text


@pytest.mark.parametrize(
    ("run_name", "map_name"),
    [("r", "../../secret.png"), ("..", "secret.png"), ("r", "/secret.png"), ("r", "link.png")],
)
def test_pictures_outside_a_runs_folder_are_not_read(tmp_path, run_name, map_name):
    secret = tmp_path / "cpu" / "secret.png"
    (tmp_path / "cpu" / "runs" / "r").mkdir(parents=True)
    secret.write_bytes(b"secret")
    (tmp_path / "cpu" / "runs" / "r" / "link.png").symlink_to(secret)
    some = found(cells_of(boxes.TABLE)["ChaCAL, L=2"], run(1.0))
    runs = {"0": dataclasses.replace(some.result.runs["0"], run=run_name, maps=(map_name,))}
    some = dataclasses.replace(some, result=dataclasses.replace(some.result, runs=runs))
    put(tmp_path / "cpu", made(boxes.TABLE, some))
    with pytest.raises(ValueError, match="named by a table and lies elsewhere"):
        write_report(tmp_path / "cpu", EMPTY)
