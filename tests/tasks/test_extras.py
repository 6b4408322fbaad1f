"""What an optional package does not give is told in one message that says what to install."""

import sys

import pytest

from chacal.tasks import Scrolls, corpus, hub, scrolls_scores, tokenizers

DATA = r"install the extra 'data' \(in a clone: pip install -e '.\[data\]'\)"


@pytest.fixture
def without(monkeypatch):
    """Packages as if they were not installed: None in their place makes an import fail."""

    def forget(*names):
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    for cached in (scrolls_scores.rouge_scorer, tokenizers.load_tokenizer):
        cached.cache_clear()
    yield forget
    for cached in (scrolls_scores.rouge_scorer, tokenizers.load_tokenizer):
        cached.cache_clear()


def test_rouge(without):
    without("rouge_score", "rouge_score.rouge_scorer")
    with pytest.raises(ValueError, match=rf"'rouge_score', which is missing: {DATA}"):
        scrolls_scores.rouge("a", ["a"])
    with pytest.raises(ValueError, match=DATA):  # and not only once something is measured
        Scrolls(dataset="gov_report", data="help").batch("train", 0, 0, 2)
    assert scrolls_scores.f1("a cat", ["cat"]) == 100  # the others need nothing


def test_text_of_the_hub(without, tmp_path, monkeypatch):
    monkeypatch.setenv("CHACAL_CACHE", str(tmp_path))
    without("datasets")
    with pytest.raises(ValueError, match=rf"'datasets', which is missing: {DATA}.*--train-file"):
        hub.local_text("hub:some/data:train")
    assert not list(tmp_path.rglob("*"))


def test_files_of_the_hub(without):
    without("huggingface_hub")
    with pytest.raises(ValueError, match=rf"huggingface_hub, which is missing: {DATA}.*--data"):
        hub.download("some/data", "file.zip")


def test_tokenizers(without):
    without("tokenizers")
    message = r"'tokenizers' \(pip install tokenizers\); without it, leave `tokenizer` out"
    with pytest.raises(ValueError, match=rf"tokenizer='some/model': .*{message}"):
        tokenizers.load_tokenizer("some/model")
    with pytest.raises(ValueError, match=rf"tokenizer='bpe:300': .*{message}"):
        corpus.make_tokenizer(b"text", 300)


def test_gguf(without, tmp_path):
    pytest.importorskip("tokenizers")
    without("gguf")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for source in (tmp_path, tmp_path / "model.gguf"):
        with pytest.raises(ValueError, match=r"gguf: install the extra 'hf'"):
            tokenizers.load_tokenizer(str(source))


def test_files_of_the_hub_without_a_network():
    pytest.importorskip("huggingface_hub")  # which conftest.py keeps off the network
    with pytest.raises(ValueError, match=r"none/none/file.zip could not be had .*--data"):
        hub.download("none/none", "file.zip")
