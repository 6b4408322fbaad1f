"""Means, spreads, slopes and states, against cases worked out by hand."""

import json
import math

import pytest

from chacal.report.aggregate import (
    Figure,
    aggregate,
    best_block,
    breakdown,
    cell_figures,
    count_seeds,
    differs,
    explain,
    exponent,
    frontier_rows,
    layers_of,
    read_results,
    state,
    tail,
)


def done(**metrics):
    return {"state": "done", "run": "r", "metrics": metrics}


def test_mean_and_sample_deviation():
    assert aggregate([0.5]) == Figure(0.5, None, 1)
    figure = aggregate([1.0, 2.0, 3.0])
    assert (figure.mean, figure.std, figure.seeds) == (2.0, 1.0, 3)
    with pytest.raises(ValueError, match="no values"):
        aggregate([])


def test_only_seeds_that_are_done_count():
    runs = {"0": done(accuracy=0.9), "1": {"state": "failed", "why": "x"}, "2": done(accuracy=0.7)}
    figures = cell_figures({"runs": runs, "seconds": 1.5})
    assert figures["accuracy"].mean == pytest.approx(0.8)
    assert figures["accuracy"].std == pytest.approx(math.sqrt(0.02))
    assert figures["accuracy"].seeds == 2
    assert figures["seconds"] == Figure(1.5, None, 1)
    assert cell_figures({"runs": {"0": {"state": "not run"}}, "seconds": None}) == {}


def test_a_breakdown_is_sorted_and_a_group_that_a_seed_lacks_is_left_out():
    names = {f"exact_match/borders={b:02d}": b / 10 for b in (10, 2, 0)}
    runs = {"0": done(**names), "1": done(**{k: v for k, v in names.items() if "=02" not in k})}
    groups = breakdown(cell_figures({"runs": runs}), "exact_match/borders")
    assert list(groups) == [0, 10]
    assert groups[10].mean == 1.0


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["done", "done"], ""),
        (["not run", "not run"], "not run"),
        (["done", "not run"], "seed 1 not run"),
        (["failed", "done"], "seed 0 failed: no memory"),
        (["failed", "not run"], "seed 0 failed: no memory; seed 1 not run"),
    ],
)
def test_states(states, expected):
    runs = {str(i): {"state": s, "why": "no memory"} for i, s in enumerate(states)}
    assert state({"runs": runs}) == expected


def test_what_differs_from_the_paper():
    assert differs("exact_match", 0.50, 58.8)
    assert not differs("exact_match", 0.57, 58.8)
    assert not differs("seconds", 100.0, 2.5)
    assert "border" in explain("tab:boxes", "Block-ChaCAL n//4, L=2", below=True)
    assert "not published" in explain("tab:boxes", "Dense, L=2", below=True)
    assert explain("fig:cost", "SDPA", below=True) == "No reason is known yet."
    # borders lose chains, so they explain no figure above the paper's
    for table, row in (("tab:boxes", "Block-ChaCAL n//6"), ("tab:ablation_branches", "Residual")):
        assert "cut at every border" in explain(table, row, below=True)
        assert "not published" in explain(table, row, below=False)
    # only where a row is constant is there no gradient
    assert "no gradient" in explain("tab:op-topk", "T_post, k=1", below=True)
    for where in ("outside", "inside"):
        reason = explain("tab:op-topk", f"T_post, k=1, pruned {where} the inverse", below=True)
        assert "keeps its gradient" in reason
    assert "gradient" not in explain("tab:op-topk", "T_post, k=2", below=True)


def test_the_number_of_seeds_is_of_those_that_are_done():
    def seeds(*states):
        return count_seeds({"runs": {str(i): {"state": s} for i, s in enumerate(states)}})

    assert seeds("done", "done") == "2"
    assert seeds("done", "failed", "not run") == "1 of 3"
    assert seeds("not run") == "–"


def test_the_frontier_is_what_nothing_beats_in_both():
    points = {"slow": (1.0, 4.0), "good": (1.0, 3.0), "bad": (0.2, 2.0), "fast": (0.5, 1.0)}
    assert frontier_rows(points) == ["fast", "good"]
    assert frontier_rows({}) == []
    assert layers_of("Dense, L=5") == 5
    assert layers_of("Dense") is None


def test_exponents_and_the_fastest_block():
    x = [256, 512, 1024, 2048]
    assert exponent(x, [3 * v**1.5 for v in x]) == pytest.approx(1.5)
    assert exponent([256], [1.0]) is None
    # only the largest three doublings count: small sizes are all overhead
    points = [{"n": n, "seconds": max(1.0, (n / 1024) ** 2)} for n in (256, *x[2:], 4096, 8192)]
    assert tail(points, "seconds") == pytest.approx(2.0)
    assert tail([{"n": 256, "bytes": None}], "bytes") is None
    sweep = [{"block_size": m, "seconds": s} for m, s in ((4, 3.0), (8, 1.0), (16, 2.0))]
    assert best_block(sweep) == (8, (3.0, 2.0))
    assert best_block(sweep[1:]) == (8, (1.0, 2.0))


def test_folders_that_hold_no_results_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not a folder"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no results.*chacal reproduce"):
        read_results(tmp_path)


def test_smoke_is_left_out_beside_others_and_shown_alone(tmp_path):
    for scale in ("smoke", "cpu"):
        (tmp_path / scale).mkdir()
        (tmp_path / scale / "scale.json").write_text(json.dumps({"scale": scale}))
    found, notes = read_results(tmp_path)
    assert [r.scale for r in found] == ["cpu"]
    assert "smoke" in notes[0]
    found, notes = read_results(tmp_path / "smoke")
    assert [(r.scale, r.smoke) for r in found] == [("smoke", True)]
    assert not notes


def test_a_table_of_another_scale_is_refused(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "scale.json").write_text('{"scale": "cpu"}')
    (tmp_path / "tables" / "tab-boxes.json").write_text('{"scale": "smoke"}')
    with pytest.raises(ValueError, match="'smoke' in a folder of 'cpu'"):
        read_results(tmp_path)
    (tmp_path / "tables" / "tab-boxes.json").write_text('{"table": "tab:boxes", "scale": "cpu"}')
    with pytest.raises(ValueError, match="has no note; expected a table of this version"):
        read_results(tmp_path)
    (tmp_path / "tables" / "tab-boxes.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_results(tmp_path)
