"""Curves of cost: the points that are asked for, and where a curve ends."""

from chacal.bench.cost import _expect, against_block_size, against_length

SIZES = {"heads": 1, "width": 4, "rounds": 1, "memory_from": 10**9}


def test_a_curve_has_a_point_for_every_n():
    points, stopped = against_length("chacal", (16, 33), budget=60.0, **SIZES)
    assert [(p["operator"], p["n"], p["block_size"]) for p in points] == [
        ("chacal", 16, None), ("chacal", 33, None),
    ]  # fmt: skip
    assert all(p["seconds"] > 0 and p["ratio"] > 0 and p["bytes"] is None for p in points)
    assert stopped == ""
    baseline, _ = against_length("sdpa", (16,), budget=60.0, **SIZES)
    assert baseline[0]["ratio"] == 1.0


def test_a_curve_ends_where_the_next_point_costs_too_much():
    points, stopped = against_length("chacal", (16, 32, 64), budget=0.0, **SIZES)
    assert len(points) == 1
    assert "n = 32 would take" in stopped


def test_matrices_are_formed_up_to_a_limit():
    points, stopped = against_length("formed", (16, 16384), budget=1e9, **SIZES)
    assert [p["n"] for p in points] == [16]
    assert "8,192" in stopped


def test_the_next_point_is_judged_by_the_last_two():
    one = [{"n": 100, "seconds": 1.0}]
    assert _expect([], 100) == 0
    assert _expect(one, 200) == 4  # as a square
    assert _expect([*one, {"n": 200, "seconds": 2.0}], 400) == 4
    assert _expect([*one, {"n": 200, "seconds": 4.0}], 400) == 16


def test_block_sizes_stand_in_the_operator():
    points = against_block_size("block@{}", 16, (2, 4), **SIZES)
    assert [(p["operator"], p["block_size"]) for p in points] == [("block@2", 2), ("block@4", 4)]


def test_peak_memory_is_that_of_the_matrices():
    options = {**SIZES, "memory_from": 2048}
    points, _ = against_length("formed", (2048,), budget=1e9, **options)
    # A alone has 16 MiB
    assert points[0]["bytes"] > 2**24
