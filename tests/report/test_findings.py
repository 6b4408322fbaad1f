"""Sentences that are computed: the frontier, the rule of heads, the leaks."""

from chacal.report.findings import findings_of


def table(*cells, scale="cpu"):
    return {"scale": scale, "cells": list(cells)}


def cell(row, causal=True, floor=None, seconds=None, **metrics):
    runs = {"0": {"state": "done", "metrics": metrics}} if metrics else {}
    return {"row": row, "causal": causal, "floor": floor, "seconds": seconds, "runs": runs}


def test_the_frontier_at_two_layers_and_what_depth_costs():
    cells = [
        cell("Dense, L=2", exact_match=0.6, seconds=1.0),
        cell("ChaCAL, L=2", exact_match=0.998, seconds=2.0),
        cell("Slow, L=2", exact_match=0.9, seconds=3.0),
        cell("Untimed, L=2", exact_match=1.0),
        cell("Dense, L=5", exact_match=1.0, seconds=1.5),
    ]
    frontier, ratios = findings_of("tab:boxes", table(*cells))
    assert "of 3 rows with times (1 without)" in frontier
    assert frontier.endswith("on: Dense, L=2 (60.00 %); ChaCAL, L=2 (99.80 %).")
    assert ratios == "Evaluation times over that of ChaCAL, L=2: Dense, L=5 0.75."
    assert findings_of("tab:boxes", table(*cells, scale="smoke")) == []
    assert findings_of("tab:boxes", table(cells[3])) == []
    assert len(findings_of("tab:boxes", table(cells[0], cells[2]))) == 1
    assert findings_of("tab:boxes", None) == []


def test_the_rule_of_heads_and_its_exceptions():
    cells = [
        cell("h=1, p=1", accuracy=1.0),
        cell("h=1, p=2", accuracy=0.62),
        cell("h=1, p=2, a position for each property", accuracy=1.0),
        cell("h=2, p=8", accuracy=0.995),
        cell("h=4, p=4", accuracy=0.97),
        cell("h=4, p=8"),
    ]
    (text,) = findings_of("tab:heads-props", table(*cells))
    assert text.endswith(
        "in 2 of the 4 cells that were run; not in h=2, p=8 (99.50 %); h=4, p=4 (97.00 %)."
    )
    assert findings_of("tab:heads-props", table(cells[-1])) == []


def test_leaks_and_what_they_say_of_themselves():
    leaks = [
        cell("dense", floor=1.4, below_floor=-0.001),
        cell("mean", floor=1.4, causal=False, below_floor=0.5),
        cell("weak", floor=1.4, causal=False, below_floor=0.002),
    ]
    lying = cell("lying", floor=1.4, below_floor=0.3)
    (text,) = findings_of("fig:leak", table(*leaks, cell("mean", exact_match=0.9)))
    assert "of 3 operators: mean (0.500). Of these, called causal: none." in text
    assert "Not causal, and not below: weak." in text
    (text,) = findings_of("fig:leak", table(*leaks, lying))
    assert "called causal: lying (0.300)." in text
