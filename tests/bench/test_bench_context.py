"""`chacal bench context`: what is counted is right, and what is a model says so."""

import json

import pytest
from click.testing import CliRunner

from chacal.bench.context import Sizes, measure
from chacal.commands.cli import cli


def test_a_table_of_two_processes(tmp_path):
    file = tmp_path / "figures.json"
    done = CliRunner().invoke(
        cli,
        ["bench", "context", "window@9", "--processes", "2", "-n", "64", "--heads", "2",
         "--width", "8", "--rounds", "2", "--model", "4", "--json", str(file)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "MODEL of 4" in done.output
    assert "MODEL, not measured" in done.output
    (row,) = json.loads(file.read_text())["rows"]
    # per head: the first value; 8 keys and Z, there for each pass and their gradients back
    sent = 2 * 4 * (8 + 3 * 8 * 2 * 8)
    assert row["bytes_per_token"] == sent / 64
    assert 0 <= row["waiting"] <= 1
    assert row["work"] == pytest.approx(1 - row["waiting"])
    assert [ranks for ranks, _ in row["models"]] == [2, 4]
    assert all(0 < share <= 1 for _, share in row["models"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"processes": 1}, "processes are 1; expected 2 to 8"),
        ({"processes": 9}, "processes are 9; expected 2 to 8"),
        ({"bandwidth": 0.0}, "bandwidth is 0.0; expected a positive"),
        ({"operators": ["block@4"]}, "block@4 cannot share a sequence"),
    ],
)
def test_what_cannot_be_measured_is_told(options, told):
    operators = options.pop("operators", ["chacal"])
    with pytest.raises(ValueError, match=told):
        measure(operators, Sizes(length=8, heads=1, width=4, batch=1), **options)
