"""Hostile command lines, damaged files and special tensors: a bounded part of `make fuzz`.

The seed is fixed, so the suite tries the same every time. It stops after its share of two minutes
on a slow machine, and says how far it came (`pytest -rP tests/hostile`).
"""

import os
import time

import pytest
from child import Ended, Found, judge
from damage import BYTES, FIELDS, WHOLE, Edit, apply
from found import FILES, LINES, TENSORS
from fuzz import KINDS, Tries
from lines import commands
from special import Case, try_case

from chacal.ops import guard

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="commands are tried in forks")

COUNTS = {"lines": 120, "files": 100, "tensors": 800}
SECONDS = 30
"""Of each kind, at most."""


@pytest.fixture(scope="module")
def tries(tmp_path_factory):
    return Tries(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_found(kind, tries):
    started, seed = time.monotonic(), 0

    def done():
        return sum(tries.ends[kind].values())

    while done() < COUNTS[kind] and time.monotonic() - started < SECONDS:
        tries.round(kind, seed, COUNTS[kind] // 10)
        seed += 1
        assert not tries.found, "\n\n".join(tries.found.values())
    print(tries.counts())
    assert done() > 0


@pytest.mark.parametrize(
    ("kind", "example"),
    [("lines", x) for x in LINES] + [("files", x) for x in FILES]
    + [("tensors", x) for x in TENSORS],
    ids=repr,
)  # fmt: skip
def test_what_was_found_once_stays_mended(kind, example, tries):
    _, attempt = tries.of[kind]
    attempt(example)


def ended(code, stderr=""):
    return Ended(code, "", stderr)


@pytest.mark.parametrize(
    "bad",
    [
        ended(None),
        ended(98, "Traceback (most recent call last):\nKeyError: 'x'"),
        ended(-6),
        ended(0, 'Traceback (most recent call last):\n  File "x"'),
        ended(2),
        ended(2, "chacal: a\nb"),
        ended(2, "chacal: " + "x" * 5000),
    ],
)
def test_what_a_user_should_not_see_is_noticed(bad):
    with pytest.raises(Found):
        judge(bad, "a command")
    judge(ended(2, "chacal: one line"), "a command")


def test_an_interrupt_that_python_lost_is_no_fault_of_the_command():
    lost = "Exception ignored in: <function x>\nTraceback (most recent call last):\n  File\n\n"
    judge(ended(0, f"{lost}KeyboardInterrupt: \n"), "a command")
    for other in (f"{lost}KeyError: 1", f"{lost}KeyboardInterrupt:\nTraceback (most recent"):
        with pytest.raises(Found):
            judge(ended(0, other), "a command")


@pytest.mark.parametrize("how", [*dict.fromkeys([*BYTES, *FIELDS, *WHOLE])])
def test_every_kind_of_edit_changes_the_file(how, tmp_path):
    path = tmp_path / "file.json"
    path.write_text('{"a": [1, {"b": 2}],\n"c": 3}\n')
    before = path.read_bytes()
    apply(Edit("eval", "file.json", how, 1, "x"), path)
    assert not path.is_file() or path.read_bytes() != before


@pytest.mark.parametrize(
    ("operator", "seen"), [("chacal,gamma=0.1", "outputs"), ("chacal", "the gradient of q")]
)
def test_a_row_that_sees_the_future_is_noticed(operator, seen, monkeypatch):
    case = Case(operator, (2,), 9, spots=(("q", 0, 5, -1, "nan"),))
    assert try_case(case) == "causal"
    monkeypatch.setattr(guard, "finite", lambda *_: True)
    with pytest.raises(Found, match=f"{seen} before the first changed token"):
        try_case(case)


def test_every_command_is_tried():
    words = {" ".join(words) for words, _ in commands()}
    assert {"train chains", "bench ops", "eval", "report", "reproduce", "track"} <= words
