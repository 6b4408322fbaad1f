"""A stranger's model: weights that are no pickle, and none of its code."""

import json

import pytest
import torch
from tiny import tiny

from chacal.tasks import Language
from chacal.training.transformers_model import TransformersConfig

TEXT = Language(window=16, eval_tokens=64)


@pytest.fixture
def folder(tmp_path):
    """A model whose only weights are a pickle, as old ones are."""
    model = tiny("gpt2")
    model.config.vocab_size = TEXT.vocab_size
    model.resize_token_embeddings(TEXT.vocab_size)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    return tmp_path, model


def built(path):
    return TransformersConfig(pretrained=str(path)).build(TEXT).model


def test_a_pickle_is_refused_with_what_to_do(folder, monkeypatch):
    path, _ = folder
    monkeypatch.delenv("CHACAL_ALLOW_PICKLE", raising=False)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin.*save_pretrained.*--allow-pickle"):
        built(path)
    (path / "other.safetensors").write_bytes(b"")  # which transformers does not look for
    with pytest.raises(ValueError, match="cannot be loaded"):
        built(path)


def test_a_pickle_can_be_allowed_or_converted(folder, monkeypatch):
    path, model = folder
    monkeypatch.setenv("CHACAL_ALLOW_PICKLE", "1")
    allowed = built(path)
    monkeypatch.delenv("CHACAL_ALLOW_PICKLE")
    allowed.save_pretrained(path)
    converted = built(path)
    for name, value in model.state_dict().items():
        assert torch.equal(allowed.state_dict()[name], value)
        assert torch.equal(converted.state_dict()[name], value)


def test_code_of_a_folder_is_not_run_and_not_asked_about(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Theirs"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match="cannot be loaded"):
        built(tmp_path)
    assert not (tmp_path / "ran").exists()
