"""A table's file from a stranger: what does not fit is one line with the file and the field."""

import json
from pathlib import Path

import pytest

from chacal.report.files import read_results, read_table

TABLES = Path(__file__).parents[2] / "results" / "cpu" / "tables"


def with_place(place):
    """A stored table that has such a place."""
    for file in sorted(TABLES.glob("*.json")):
        data = inner = json.loads(file.read_text())
        try:
            for key in place:
                inner = inner[key]
        except (KeyError, IndexError, TypeError):
            continue
        return data
    raise AssertionError(f"no table has {place}")


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("metrics", 0, "digits"), -5, "metrics[0]: digits is -5"),
        (("metrics", 0, "digits"), 2**62, "metrics[0]: digits is"),
        (("points", 0, "edge"), [99], "points[0]: edge has 99"),
        (("lines", 0, "panels", 0, "lines", 0, "x"), [1.0], "lines[0]: x has 1 values"),
        (("lines", 0, "panels"), [], "lines[0]: panels is empty"),
        (("lines", 0, "height"), -1.0, "lines[0]: height is -1.0"),
        (("lines", 0, "height"), float("nan"), "lines[0]: height is nan"),
        (("cells", 0, "runs"), 5, "cells[0].runs is 5; expected an object"),
        (("cells", 0, "runs", "0", "breakdowns", 0, "at"), [], "breakdowns[0]: at has 0 entries"),
        (("seeds",), [True], "seeds[0] is True; expected int"),
        (("version",), [], "is of version []"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, place, value, why):
    data = inner = with_place(place)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file = tmp_path / "table.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="expected") as told:
        read_table(file)
    assert str(told.value).startswith(str(file))
    assert why in str(told.value)


@pytest.mark.parametrize("content", ["5", "[]", "{}", '{"scale": []}', "[" * 10_000, ""])
def test_a_mark_that_is_none(tmp_path, content):
    (tmp_path / "scale.json").write_text(content)
    with pytest.raises(ValueError, match=r"scale\.json"):
        read_results(tmp_path, {})
