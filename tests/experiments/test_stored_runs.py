"""Runs that are committed: their configurations are read, and their folders are found again."""

import json
from pathlib import Path

import pytest

from chacal.experiments.cells import run_id
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
    for name in names:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("text\n" * 100)


def test_committed_configurations_name_their_folders(data_folder):
    assert len(CONFIGS) > 150
    for path in CONFIGS:
        config = RunConfig.from_json(json.loads(path.read_text()))
        assert run_id(config) == path.parent.name
