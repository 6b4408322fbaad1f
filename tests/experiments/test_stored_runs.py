"""Runs that are committed: their configurations are read, and their folders are found again."""

import json
from pathlib import Path

import pytest

from chacal.experiments.cells import Evaluation, run_id
from chacal.experiments.tables.kim_schuster import SPLITS
from chacal.training.config import RunConfig

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(ROOT.glob("results/**/runs/*/config.json"))


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """Files under the names that committed runs give; their content is not asked for here."""
    monkeypatch.chdir(tmp_path)
    text, split = Path("data/wikitext-103"), Path("data/scrolls")
    names = [text / f"wiki.{part}.tokens" for part in ("valid", "test")]
    for dataset in ("contract_nli", "gov_report"):
        names += [split / dataset / f"{part}.jsonl" for part in ("train", "validation")]
    boxes = Path("data/boxes-kim-schuster")
    for form in SPLITS:
        files = (form.train, "dev-t5.jsonl", "test-t5.jsonl")
        names += [boxes / form.folder / file for file in files]
    for name in names:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("text\n" * 100)


def test_every_committed_configuration_is_read_and_every_evaluation_names_its_file(data_folder):
    others = [*ROOT.glob("results/**/config.json"), *ROOT.glob("chacal/checkpoints/*/config.json")]
    assert len(others) > len(CONFIGS) + 20
    for path in others:
        RunConfig.from_json(json.loads(path.read_text()))
    measured = sorted(ROOT.glob("results/**/runs/*/evaluation-*.json"))
    assert len(measured) > 150
    for path in measured:
        stored = json.loads(path.read_text())["evaluation"]
        assert Evaluation.from_stored(stored, str(path)).id == path.stem


def test_committed_configurations_name_their_folders(data_folder):
    assert len(CONFIGS) > 150
    for path in CONFIGS:
        config = RunConfig.from_json(json.loads(path.read_text()))
        assert run_id(config) == path.parent.name
