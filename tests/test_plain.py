"""Dataclasses as plain data: strict, and able to grow without changing what is stored."""

from dataclasses import dataclass

import pytest

from chacal._plain import added, from_plain, to_plain


@dataclass(frozen=True)
class Inner:
    size: int
    share: float | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    parts: tuple[Inner, ...]
    figures: dict[str, float]
    paper: dict[str, Inner]


@dataclass(frozen=True)
class Grown:
    name: str
    mode: str = added("plain", help="a word")
    values: str = added("rows", default="mean")


WHOLE = Outer("a", (Inner(1), Inner(2, 0.5)), {"x": 1.5}, {"y": Inner(3)})


def test_there_and_back():
    data = to_plain(WHOLE)
    assert data["parts"] == [{"size": 1, "share": None}, {"size": 2, "share": 0.5}]
    assert from_plain(Outer, data, "it") == WHOLE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"more": 1}, "it.more is not a field of Outer"),
        ({"name": 3}, "it.name is 3; expected str"),
        ({"name": None}, "it.name is None; expected str"),
        ({"parts": 3}, "it.parts is 3; expected a list"),
        ({"parts": [{"size": True, "share": None}]}, r"it.parts\[0\].size is True; expected int"),
        ({"parts": [{"share": None}]}, r"it.parts\[0\].size is missing"),
        ({"parts": [5]}, r"it.parts\[0\] is 5; expected an object"),
        ({"figures": {"x": "1"}}, "it.figures.x is '1'; expected float"),
        ({"figures": []}, r"it.figures is \[\]; expected an object"),
        ({"paper": {"y": {"size": 1, "share": "no"}}}, "it.paper.y.share is 'no'; expected float"),
    ],
)
def test_what_does_not_fit_is_named(change, expected):
    with pytest.raises(ValueError, match=expected):
        from_plain(Outer, {**to_plain(WHOLE), **change}, "it")


def test_a_field_that_was_added_changes_nothing_that_is_stored():
    old = {"name": "a"}
    assert from_plain(Grown, old, "it") == Grown("a", values="rows")
    assert to_plain(from_plain(Grown, old, "it")) == old
    # what is new is told, a new default too
    assert to_plain(Grown("a")) == {"name": "a", "values": "mean"}
    assert from_plain(Grown, {"name": "a", "values": "mean"}, "it") == Grown("a")
