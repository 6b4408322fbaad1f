"""Sentences that are computed: the frontier, readings, the rule of heads, the leaks; and why."""

import dataclasses

import pytest
from tables import cells_of, done, found, made

from chacal.experiments.scales import SMOKE
from chacal.experiments.tables import (
    boxes,
    branches,
    cost,
    heads,
    leak,
    length,
    regimes,
    top_k,
    updates,
)
from chacal.experiments.tables._arithmetic import (
    best_block,
    by_doublings,
    exponent,
    frontier,
    tail,
)
from chacal.report.results import CostPoint, GroupSizes


def of(table, label, seconds=None, scale=None, **metrics):
    cells = cells_of(table, scale) if scale else cells_of(table)
    return found(cells[label], *([done(**metrics)] if metrics else []), seconds=seconds)


def test_the_frontier_at_two_layers_and_what_depth_costs():
    table = boxes.TABLE
    some = [
        of(table, "Dense, L=2", exact_match=0.6, seconds=1.0),
        of(table, "ChaCAL, L=2", exact_match=0.998, seconds=2.0),
        of(table, "Local, L=2", exact_match=0.9, seconds=3.0),
        of(table, "Window resolvent, L=2", exact_match=1.0),
        of(table, "Dense, L=5", exact_match=1.0, seconds=1.5),
    ]
    best, ratios = table.findings(some)
    assert "of 3 rows with times (1 without)" in best
    assert best.endswith("on: Dense, L=2 (60.00 %); ChaCAL, L=2 (99.80 %).")
    assert ratios == "Evaluation times over that of ChaCAL, L=2: Dense, L=5 0.75."
    assert table.findings([some[3]]) == []
    assert len(table.findings([some[0], some[2]])) == 1


def test_readings_of_algorithm_1_are_compared():
    table = boxes.TABLE
    some = [
        of(table, "Block-ChaCAL n//3, L=2", exact_match=0.34),
        of(table, "Block-ChaCAL n//4, L=2", exact_match=0.3),
        of(table, "Block-ChaCAL n//3, mean values, L=2", exact_match=0.39),
        of(table, "Block-ChaCAL n//4, mean values, L=2", exact_match=0.2),
        of(table, "Block-ChaCAL n//3, before the dense layer, L=2", exact_match=0.59),
    ]
    values, order = table.findings(some)
    assert "n//3 34.0 and 39.0; n//4 30.0 and 20.0. The mean is better in 1 of 2." in values
    assert "before the dense layer, L=2 59.0 %" in order
    assert table.findings(some[:2]) == []


def test_at_every_length_the_others_are_told_against_exact_chacal():
    table = length.TABLE
    some = [
        of(table, "ChaCAL, L=2, n=16,384", seconds=6.0, accuracy=0.99, **{"accuracy/hops=16": 0.9}),
        of(table, "Routed resolvent, L=2, n=16,384", seconds=1.5, accuracy=0.98),
        of(table, "Dense, L=2, n=1,024", seconds=1.0, accuracy=0.5, **{"accuracy/hops=01": 0.7}),
    ]
    (said,) = table.findings(some)
    assert said == (
        "n = 16,384: ChaCAL, L=2 has 99.0 %; Routed resolvent, L=2 98.0 % in 0.25 of the time."
    )
    assert table.findings(some[1:]) == []
    by_length, by_hops = table.line_plots(some)
    assert {line.name: (line.x, line.y) for line in by_length.panels[0].lines} == {
        "ChaCAL, L=2": ((16384,), (99.0,)),
        "Routed resolvent, L=2": ((16384,), (98.0,)),
        "Dense, L=2": ((1024,), (50.0,)),
    }
    assert [panel.title for panel in by_hops.panels] == ["n = 1,024", "n = 16,384"]
    assert by_hops.panels[1].ticks[by_hops.panels[1].lines[0].x[0]] == "16-31"
    assert table.line_plots([]) == []


def test_what_is_kept_of_long_stories():
    table = updates.TABLE
    some = [
        of(table, "Window resolvent, L=2, 60 updates", box_accuracy=0.98),
        of(table, "Window resolvent, L=2, 2,000 updates", box_accuracy=0.97),
        of(table, "ChaCAL, temperature as in training, L=2, 60 updates", box_accuracy=0.9),
        of(table, "Dense, L=2, 60 updates", box_accuracy=0.6),
    ]
    assert table.findings(some) == [
        "Window resolvent, L=2: boxes right 98.0 % at 60, 97.0 % at 2,000."
    ]
    (plot,) = table.line_plots(some)
    drawn = {line.name: (line.x, line.y, line.plain) for line in plot.panels[0].lines}
    assert drawn == {
        "Window resolvent, L=2": ((60, 2000), (98.0, 97.0), False),
        "ChaCAL, temperature as in training, L=2": ((60,), (90.0,), False),
        "Dense, L=2": ((60,), (60.0,), True),
    }
    assert table.line_plots([]) == []


def test_smoke_figures_say_nothing():
    table = boxes.TABLE
    some = [
        of(table, label, scale=SMOKE, exact_match=0.5, seconds=1.0)
        for label in ("Dense, L=2", "ChaCAL, L=2")
    ]
    assert table.findings(some)
    result = made(table, *some, scale=SMOKE)
    assert result.findings == ()
    assert [cell.difference for cell in result.cells] == ["", ""]


def test_the_rule_of_heads_and_its_exceptions():
    table = heads.TABLE
    some = [
        of(table, "h=1, p=1", accuracy=1.0),
        of(table, "h=1, p=2", accuracy=0.62),
        of(table, "h=1, p=2, a position for each property", accuracy=1.0),
        of(table, "h=2, p=8", accuracy=0.995),
        of(table, "h=4, p=4", accuracy=0.97),
        of(table, "h=4, p=8"),
    ]
    (text,) = table.findings(some)
    assert text.endswith(
        "in 2 of the 4 cells that were run; not in h=2, p=8 (99.50 %); h=4, p=4 (97.00 %)."
    )
    assert table.findings(some[-1:]) == []


def test_leaks_and_what_they_say_of_themselves():
    table = leak.TABLE
    some = [
        of(table, "dense, random tokens", below_floor=-0.001),
        of(table, "block@8,values=rows,rows=mean,columns=sum, random tokens", below_floor=0.5),
        of(table, "block@8,values=rows,rows=last,columns=sum, random tokens", below_floor=0.002),
    ]
    lying = of(table, "chacal, random tokens", below_floor=0.3)
    on_stories = of(table, "block/3,values=rows,rows=mean, boxes, L=2", exact_match=0.9)
    (text,) = table.findings([*some, on_stories])
    assert "of 3 operators: block@8,values=rows,rows=mean,columns=sum (0.500)." in text
    assert "Of these, called causal: none." in text
    assert "Not causal, and not below: block@8,values=rows,rows=last,columns=sum." in text
    (text,) = table.findings([*some, lying])
    assert "called causal: chacal (0.300)." in text


def test_why_rows_differ():
    rows = {label: cell.row for label, cell in cells_of(boxes.TABLE).items()}
    assert "border" in boxes.TABLE.difference(rows["Block-ChaCAL n//4, L=2"], True)
    assert "not published" in boxes.TABLE.difference(rows["Dense, L=2"], True)
    assert cost.TABLE.difference(rows["Dense, L=2"], True) == "No reason is known yet."
    # borders lose chains, so they explain no figure above the paper's
    for table, label in ((boxes.TABLE, "Block-ChaCAL n//6, L=2"),
                         (branches.TABLE, "Residual branch only")):  # fmt: skip
        row = cells_of(table)[label].row
        assert "cut at every border" in table.difference(row, True)
        assert "not published" in table.difference(row, False)
    # only where a row is constant is there no gradient
    post = {
        label.removesuffix(", chains, L=1"): cell.row
        for label, cell in cells_of(top_k.TABLE).items()
    }
    assert "no gradient" in top_k.TABLE.difference(post["T_post, k=1"], True)
    for where in ("outside", "inside"):
        row = post[f"T_post, k=1, pruned {where} the inverse"]
        assert "keeps its gradient" in top_k.TABLE.difference(row, True)
    assert "gradient" not in top_k.TABLE.difference(post["T_post, k=2"], True)
    long = next(cell for cell in cells_of(regimes.TABLE).values() if cell.row.divisor)
    assert "tab:boxes" in regimes.TABLE.difference(long.row, False)


def test_a_difference_is_told_with_its_cell():
    cells = cells_of(boxes.TABLE)
    far = found(cells["Block-ChaCAL n//3, L=2"], done(exact_match=0.4, accuracy=0.9))
    near = found(cells["ChaCAL, L=2"], done(exact_match=0.99, accuracy=0.999))
    result = made(boxes.TABLE, far, near)
    assert [cell.difference for cell in result.cells] == [boxes.CUT, ""]


def test_the_frontier_is_what_nothing_beats_in_both():
    points = {"slow": (1.0, 4.0), "good": (1.0, 3.0), "bad": (0.2, 2.0), "fast": (0.5, 1.0)}
    assert frontier(points) == ["fast", "good"]
    assert frontier({}) == []


def point(n=64, block_size=None, seconds=1.0):
    return CostPoint(
        operator="block@8", n=n, block_size=block_size, seconds=seconds, ratio=1.0, bytes=None
    )


def test_exponents_and_the_fastest_block():
    x = [256, 512, 1024, 2048]
    assert exponent(x, [3 * v**1.5 for v in x]) == pytest.approx(1.5)
    assert exponent([256], [1.0]) is None
    # only the largest three doublings count: small sizes are all overhead
    assert tail(
        [(n, max(1.0, (n / 1024) ** 2)) for n in (256, *x[2:], 4096, 8192)]
    ) == pytest.approx(2.0)
    assert tail([(256, None)]) is None
    sweep = [point(block_size=m, seconds=s) for m, s in ((4, 3.0), (8, 1.0), (16, 2.0))]
    assert best_block(sweep) == (8, (3.0, 2.0))
    assert best_block(sweep[1:]) == (8, (1.0, 2.0))


def test_hops_are_grouped_by_doublings_and_every_question_weighs_the_same():
    shares = {f"accuracy/hops={at:02}": share for at, share in {0: 1, 2: 0.5, 3: 1, 70: 0}.items()}
    some = of(length.TABLE, "Dense, L=2, n=1,024", accuracy=0.5, **shares)
    assert by_doublings(some, "accuracy", "hops") == {0: 1, 2: 0.75, 6: 0}
    counted = GroupSizes(by="hops", at=(0, 2, 3, 70), sizes=(4, 30, 10, 9))
    sized = dataclasses.replace(some, result=dataclasses.replace(some.result, sizes=(counted,)))
    assert by_doublings(sized, "accuracy", "hops", few=9) == {2: 0.625, 6: 0}
