"""A run's folder from a stranger: config, metrics and result that do not fit are one line."""

import json
import shutil

import pytest
from called import TINY, chacal, refused


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert chacal(*TINY, "--out", out).returncode == 0
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize(
    ("part", "name", "value", "why"),
    [
        ("train", "steps", "x", "train.steps is 'x'; expected int"),
        ("train", "weight_decay", float("nan"), "weight_decay is nan; expected a finite number"),
        ("train", "lr", float("inf"), "lr is inf; expected a finite number"),
        ("model", "qk_norm", float("nan"), "qk_norm is nan"),
        ("model", "operators", 5, "model.operators is 5; expected a list"),
        ("task", "name", ["chains"], "task.name is ['chains']"),
    ],
)
def test_an_ill_typed_config(run, part, name, value, why):
    file = run / "config.json"
    data = json.loads(file.read_text())
    data[part][name] = value
    file.write_text(json.dumps(data))
    refused(chacal("eval", run), file, why)
    refused(chacal(*TINY, "--out", run, "--resume"), file, why)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"5", "line 1 is 5; expected an object"),
        (b'{"step": "x"}', "line 1: step is 'x'; expected int"),
        (b"{}", "line 1: step is missing"),
        (b"[" * 10_000, "line 1 is nested"),
        (b"\xff\xfe", "line 1 is not UTF-8"),
    ],
)
def test_ill_typed_metrics(run, line, why):
    (run / "result.json").unlink()
    file = run / "metrics.jsonl"
    file.write_bytes(line + b"\n" + file.read_bytes())
    before = file.read_bytes()
    refused(chacal(*TINY, "--out", run, "--resume"), file, why, "--force")
    assert file.read_bytes() == before


def test_a_folder_in_the_place_of_metrics(run):
    (run / "result.json").unlink()
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    refused(chacal(*TINY, "--out", run, "--resume"), run / "metrics.jsonl", "is a folder")


@pytest.mark.parametrize(
    ("result", "why"),
    [("5", "is 5"), ("{}", "task is missing"), ("", "is empty"), ('{"task": 5}', "task is 5")],
)
def test_an_ill_typed_result(run, result, why):
    (run / "result.json").write_text(result)
    refused(chacal(*TINY, "--out", run, "--resume"), run / "result.json", why)
