"""Means, spreads, states and files, against cases worked out by hand."""

import json
import math

import pytest
from tables import NOT_RUN, FakeTable, done, failed, found, made, named_cell

from chacal._plain import from_plain, to_plain
from chacal.experiments.gather import never_run
from chacal.experiments.scales import CPU, SMOKE
from chacal.experiments.tables import TABLES, boxes
from chacal.report.files import read_results, read_table
from chacal.report.results import (
    ACCURACY,
    EXACT_MATCH,
    SECONDS,
    Figure,
    TableResult,
    aggregate,
)

RUN = boxes.TABLE.cells(CPU)[0].run


def result(*runs, **more):
    return found(named_cell("a row", RUN), *runs, **more).result


def test_mean_and_sample_deviation():
    assert aggregate([0.5]) == Figure(0.5, None, 1)
    figure = aggregate([1.0, 2.0, 3.0])
    assert (figure.mean, figure.std, figure.seeds) == (2.0, 1.0, 3)
    with pytest.raises(ValueError, match="no values"):
        aggregate([])


def test_only_seeds_that_are_done_count():
    cell = result(done(accuracy=0.9), failed("x"), done(accuracy=0.7), seconds=1.5)
    figures = cell.figures()
    assert figures["accuracy"].mean == pytest.approx(0.8)
    assert figures["accuracy"].std == pytest.approx(math.sqrt(0.02))
    assert figures["accuracy"].seeds == 2
    assert figures["seconds"] == Figure(1.5, None, 1)
    assert result(NOT_RUN).figures() == {}


def test_a_breakdown_is_sorted_and_a_group_that_a_seed_lacks_is_left_out():
    names = {f"exact_match/borders={b:02d}": b / 10 for b in (10, 2, 0)}
    fewer = {name: value for name, value in names.items() if "=02" not in name}
    groups = result(done(**names), done(**fewer)).broken_down("exact_match", "borders")
    assert list(groups) == [0, 10]
    assert groups[10].mean == 1.0
    assert result(done(**names), done()).broken_down("exact_match", "borders") == {}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([done(), done()], ""),
        ([NOT_RUN, NOT_RUN], "not run"),
        ([done(), NOT_RUN], "seed 1 not run"),
        ([failed("no memory"), done()], "seed 0 failed: no memory"),
        ([failed("no memory"), NOT_RUN], "seed 0 failed: no memory; seed 1 not run"),
    ],
)
def test_states(runs, expected):
    assert result(*runs).state() == expected


def test_the_number_of_seeds_is_of_those_that_are_done():
    assert result(done(), done()).seeds_text() == "2"
    assert result(done(), failed("x"), NOT_RUN).seeds_text() == "1 of 3"
    assert result(NOT_RUN).seeds_text() == "–"


def test_what_differs_from_the_paper():
    cell = boxes.TABLE.cells(CPU)[0]
    assert cell.paper == {"accuracy": 97.20, "exact_match": 58.8, "seconds": 1.84}
    metrics = (ACCURACY, EXACT_MATCH, SECONDS)

    def differing(**figures):
        return found(cell, done(**figures), seconds=100.0).result.differing(metrics)

    assert differing(exact_match=0.50, accuracy=0.97) == {"exact_match": True}
    assert differing(exact_match=0.70, accuracy=0.90) == {"exact_match": False, "accuracy": True}
    assert differing(exact_match=0.57, accuracy=0.97) == {}, "and times are never compared"


def test_a_table_is_stored_and_read_strictly(tmp_path):
    table = made(boxes.TABLE, found(boxes.TABLE.cells(CPU)[0], done(exact_match=0.5, loss=1.0)))
    file = tmp_path / "t.json"
    file.write_text(json.dumps(to_plain(table)))
    assert read_table(file) == table
    plain = to_plain(table)
    for path, value, expected in [
        (("scale",), 5, "scale is 5; expected str"),
        (("cells", 0, "runs", "0", "metrics", "loss"), "x", "metrics.loss is 'x'; expected float"),
        (("cells", 0, "why"), "x", r"cells\[0\].why is not a field of CellResult"),
        (("lines",), None, "lines is None; expected a list"),
    ]:
        changed = json.loads(json.dumps(plain))
        at = changed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        file.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=f"t.json.*{expected}"):
            read_table(file)
    assert from_plain(TableResult, plain, "t") == table


EMPTY = {name: never_run(table, CPU) for name, table in TABLES.items()}


def test_folders_that_hold_no_results_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not a folder"):
        read_results(tmp_path / "nowhere", EMPTY)
    with pytest.raises(ValueError, match=r"holds no results.*chacal reproduce"):
        read_results(tmp_path, EMPTY)


def test_smoke_is_left_out_beside_others_and_shown_alone(tmp_path):
    for scale in ("smoke", "cpu"):
        (tmp_path / scale).mkdir()
        (tmp_path / scale / "scale.json").write_text(json.dumps({"scale": scale}))
    read, notes = read_results(tmp_path, EMPTY)
    assert [r.scale for r in read] == ["cpu"]
    assert "smoke" in notes[0]
    assert [table.table for table in read[0].tables] == list(TABLES)
    assert not any(table.was_run for table in read[0].tables)
    read, notes = read_results(tmp_path / "smoke", EMPTY)
    assert [(r.scale, r.smoke) for r in read] == [("smoke", True)]
    assert not notes


def test_a_table_of_another_scale_or_version_is_refused(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "scale.json").write_text('{"scale": "cpu"}')
    file = tmp_path / "tables" / "tab-boxes.json"
    file.write_text(json.dumps(to_plain(made(FakeTable(), scale=SMOKE))))
    with pytest.raises(ValueError, match="'smoke' in a folder of 'cpu'"):
        read_results(tmp_path, EMPTY)
    for text, version in (('{"table": "tab:boxes", "scale": "cpu"}', 1), ('{"version": 9}', 9)):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"is of version {version}; expected 2 .*--no-run"):
            read_results(tmp_path, EMPTY)
    for text, expected in (("{", "not JSON"), ("5", "is not a table")):
        file.write_text(text)
        with pytest.raises(ValueError, match=expected):
            read_results(tmp_path, EMPTY)
