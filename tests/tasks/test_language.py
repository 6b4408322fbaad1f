"""Text from any source: bytes, a tokenizer's tokens, one made here, large files in pieces."""

import math

import numpy as np
import pytest

from chacal.tasks import IGNORE, Language, Text
from chacal.tasks import language as module
from chacal.tasks.hub import HubText, local_text, parse_source

TEXT = "The cat sat .\n\nÄ dög ran to the cat , and the cat ran too .\n" * 6


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def everything(task, split="valid"):
    """Asked tokens, words and bytes of one pass."""
    batches = [task.batch(split, 0, i, 3) for i in range(task.batches(split, 3))]
    asked = [b.targets[b.targets != IGNORE] for b in batches]
    counts = [sum(int(b.info[k].sum()) for b in batches) for k in ("words", "bytes")]
    return np.concatenate(asked).tolist(), *counts


def test_bytes_are_those_of_text(file):
    ours = Language(train=file, valid=file, window=16)
    theirs = Text(train_file=file, valid_file=file, window=16)
    assert everything(ours) == everything(theirs)
    mine, other = (t.batch("train", 3, 4, 5) for t in (ours, theirs))
    assert (mine.tokens == other.tokens).all()


def test_perplexity_is_reported_on_the_valid_text(file):
    task = Language(train=file, valid=file, window=16)
    assert everything(task, "test") == everything(task, "valid")
    batch = task.batch("valid", 0, 0, 2)
    losses = np.where(batch.targets == IGNORE, 0.0, math.log(7))
    told = task.summarise(task.count(batch.targets, losses, batch))
    assert told["perplexity"] == pytest.approx(7)
    words, asked = int(batch.info["words"].sum()), int((batch.targets != IGNORE).sum())
    assert told["perplexity_per_word"] == pytest.approx(7 ** (asked / words))


def test_only_the_first_tokens_are_asked(file):
    whole = everything(Language(train=file, valid=file, window=16))[0]
    for window in (5, 16):
        some = Language(train=file, valid=file, window=window, eval_tokens=37)
        assert everything(some)[0] == whole[:37]


def test_a_tokenizer_made_here_spells_the_text_and_counts_its_words(file):
    task = Language(train=file, valid=file, window=8, tokenizer="bpe:270")
    assert task.vocab_size == 270
    asked, words, size = everything(task)
    first = task.batch("valid", 0, 0, 1).tokens[0, 0]
    assert task._text._tokenizer.decode([int(first), *asked]) == TEXT
    assert len(asked) < len(TEXT.encode()) / 1.3
    # all but what the first token owns
    expected = len(TEXT.split()) + TEXT.count("\n")
    assert expected - 2 <= words <= expected
    assert len(TEXT.encode()) - 20 < size < len(TEXT.encode())
    again = Language(train=file, valid=file, window=8, tokenizer="bpe:270")
    assert everything(again)[0] == asked


def test_a_large_file_is_encoded_in_pieces_once(file, tmp_path, monkeypatch, byte_tokenizer):
    whole = everything(Language(train=file, valid=file, window=8, tokenizer=byte_tokenizer))
    monkeypatch.setenv("CHACAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "LARGE", 10)
    monkeypatch.setattr(module, "PIECE", 50)
    # bytes are the same however the file is cut
    large = Language(train=file, valid=file, window=8, tokenizer=byte_tokenizer)
    assert everything(large) == whole
    assert isinstance(large._text.corpus("valid").tokens, np.memmap)
    made = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*.bin")}
    assert len(made) == 3
    again = Language(train=file, valid=file, window=8, tokenizer=byte_tokenizer)
    assert everything(again) == whole
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")} | made == {
        p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")
    }


def test_the_text_of_help_needs_no_file():
    task = Language(window=64, eval_tokens=100)
    assert task.batches("valid", 1) == 2
    assert "Python's help()" in task.describe()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("some/file.txt", None),
        ("hub:a/b:train", HubText("a/b", None, "train", 0, None)),
        ("hub:a/b@c-1:test:500", HubText("a/b", "c-1", "test", 0, 500)),
        ("hub:a/b:train:20-8000", HubText("a/b", None, "train", 20, 8000)),
    ],
)
def test_sources(source, expected):
    assert parse_source(source) == expected


@pytest.mark.parametrize("source", ["hub:", "hub:a/b", "hub:a/b:train:x", "hub:a/b:train:1-"])
def test_wrong_sources(source):
    with pytest.raises(ValueError, match="is no source; expected hub:NAME"):
        parse_source(source)


def test_what_was_streamed_is_not_streamed_again(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("CHACAL_CACHE", str(tmp_path))
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = ["one", "two\n", "three"]
    (folder / "train.jsonl").write_text(
        "".join(f'{{"text": {r!r}}}\n'.replace("'", '"') for r in rows)
    )
    path = local_text(f"hub:{folder}:train")
    assert path.read_text() == "one\ntwo\nthree\n"
    (folder / "train.jsonl").unlink()
    assert local_text(f"hub:{folder}:train") == path


def test_no_network_is_one_message(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("CHACAL_CACHE", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"could not be had from the Hugging Face hub.*--train-file"
    ):
        local_text("hub:chacal-tests/no-such-data:train")
    assert not list(tmp_path.rglob("*.txt"))


def test_missing_files_and_wrong_tokenizers_are_told(file):
    with pytest.raises(ValueError, match=r"train='none\.txt': expected the path"):
        Language(train="none.txt", valid=file)
    with pytest.raises(ValueError, match="expected bpe:SIZE of at least 257"):
        Language(train=file, valid=file, tokenizer="bpe:12").vocab_size  # noqa: B018 - reading it raises
