"""Runs in processes of their own, medians over them, and what a processor is called."""

import multiprocessing
import os
import signal
import time
from functools import partial

import pytest

from chacal.bench import timing
from chacal.bench.timing import (
    Timed,
    interleave,
    over_runs,
    processor,
    repeat,
    stopwatch,
    together,
)

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu avx avx2 avx512f avx512_bf16
power management:

processor\t: 1
model name\t: of no interest
"""


def row(seconds=1.0, ratios=(), operator="chacal"):
    return Timed(operator=operator, seconds=seconds, ratios=ratios, rounds=3)


def measure(report=lambda row: None):
    """Tells which process it was made in."""
    rows = [row(ratios=(float(os.getpid()),)), row(operator="sdpa", ratios=(1.0,))]
    for made in rows:
        report(made)
    return rows


def killed(report=lambda row: None):
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_run_is_made_here_and_tells_rows_as_they_come():
    told = []
    rows = repeat(measure, runs=1, threads=1, report=lambda run, row: told.append((run, row)))
    assert rows[0].ratios == (os.getpid(),)
    assert told == [(1, made) for made in rows]


def test_each_of_several_runs_has_a_process_of_its_own():
    told = []
    rows = repeat(measure, runs=3, threads=1, report=lambda run, row: told.append(run))
    assert [made.operator for made in rows] == ["chacal", "sdpa"]
    assert len({os.getpid(), *rows[0].ratios}) == 4
    assert rows[1].ratios == (1.0, 1.0, 1.0)
    assert told == [1, 1, 2, 2, 3, 3]


def test_a_run_that_is_killed_is_told():
    with pytest.raises(ValueError, match="process was killed"):
        repeat(killed, runs=2, threads=1)


def rest(parent, rank):
    """Ctrl-C reaches the one that waits, and not those that it waits for."""
    if rank == 0:
        os.kill(parent, signal.SIGINT)
    time.sleep(600)


def test_ctrl_c_does_not_wait_for_the_processes():
    with pytest.raises(KeyboardInterrupt):
        together(partial(rest, os.getpid()), 2)
    assert not multiprocessing.active_children()


def test_medians_over_runs_and_the_ratio_of_each():
    made = over_runs([row(5.0, (1.5,)), row(1.0, (0.9,)), row(2.0, (1.2,))])
    assert (made.seconds, made.ratio, made.ratios) == (2.0, 1.2, (1.5, 0.9, 1.2))
    assert over_runs([row(1.0), row(3.0)]).ratio is None  # no baseline


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (EPYC, "AMD EPYC (family 25, model 17; AVX-512)"),
        (EPYC.replace("avx512f avx512_bf16", "amx_bf16"),
         "AMD EPYC (family 25, model 17; AVX2, AMX)"),
        ("model name\t: Kirin\nflags\t: fpu\n", "Kirin"),
    ],
)  # fmt: skip
def test_a_processor_is_told_from_others_of_its_name(tmp_path, text, name):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert processor(file) == name


def test_a_processor_has_a_name_without_proc(tmp_path):
    assert processor(tmp_path / "none")


def test_growth_over_runs():
    made = over_runs([Timed(operator="x", seconds=1.0, ratios=(), rounds=1, growths=(g,))
                      for g in (1.4, 1.1, 1.2)])  # fmt: skip
    assert (made.growth, made.growths) == (1.2, (1.4, 1.1, 1.2))
    assert row().growth is None


def test_a_long_call_needs_no_warming(monkeypatch):
    monkeypatch.setattr(timing, "WARM", 0.0)
    calls, told, rounds = [], [], []
    found = interleave(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2,
        tell=lambda name, seconds: told.append(name),
        tell_round=lambda done: rounds.append((done, len(calls))),
    )  # fmt: skip
    assert calls == told == ["a", "b", "a", "b"]
    assert rounds == [(0, 2), (1, 2), (2, 4)]
    monkeypatch.setattr(timing, "WARM", 1e9)
    found |= interleave({"c": lambda: calls.append("c")}, 2)
    assert calls[4:] == ["c"] * 3
    assert all(len(timing.seconds) == 2 for timing in found.values())


def test_the_processors_clock_does_not_count_waiting():
    assert stopwatch("cpu", "cpu")(lambda: time.sleep(0.2)) < 0.1
    assert stopwatch("cpu")(lambda: time.sleep(0.2)) >= 0.2
    with pytest.raises(ValueError, match=r"^clock is 'sun'; expected one of wall, cpu$"):
        stopwatch("cpu", "sun")
    with pytest.raises(ValueError, match=r"^clock is cpu on a card"):
        stopwatch("cuda", "cpu")


def test_lengths_in_turns_are_compared():
    from chacal.bench import decode, ops

    options = {"heads": 1, "width": 4, "rounds": 1, "growth": True}
    for measure, name in ((ops.measure, "n"), (decode.measure, "context")):
        rows = measure(["window@4"], [16, 64], **options)
        assert [(getattr(x, name), x.operator) for x in rows] == [
            (n, text) for n in (16, 64) for text in ("sdpa", "window@4")
        ]
        assert [x.growth for x in rows[:2]] == [1, 1]
        per_token = [x.seconds / (getattr(x, name) if name == "n" else 1) for x in rows]
        assert rows[3].growth == pytest.approx(per_token[3] / per_token[1])


@pytest.mark.parametrize("backward", [False, True])
def test_what_a_look_costs_is_timed_beside_operators(backward):
    from chacal.bench.ops import measure

    rows = measure(["guard", "chacal"], [16], heads=1, width=4, backward=backward, rounds=1)
    assert [row.operator for row in rows] == ["sdpa", "guard", "chacal"]
    assert rows[1].seconds > 0
