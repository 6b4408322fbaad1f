"""Windows of text from any source, perplexities by hand, tokenizers, large files in pieces."""

import hashlib
import math
import sys

import numpy as np
import pytest

from chacal.tasks import IGNORE, Language
from chacal.tasks import corpus as module
from chacal.tasks.help_topics import describe_help

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
    assert task._tokenizer.decode([int(first), *asked]) == TEXT
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
    assert isinstance(large.corpus("valid").tokens, np.memmap)
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


def test_missing_files_and_wrong_tokenizers_are_told(file):
    with pytest.raises(ValueError, match=r"train='none\.txt': expected the path"):
        Language(train="none.txt", valid=file)
    with pytest.raises(ValueError, match="expected bpe:SIZE with 257 to"):
        Language(train=file, valid=file, tokenizer="bpe:12").vocab_size  # noqa: B018 - reading it raises


def digest(task, splits=("train", "valid", "test")):
    """Of the first batches of every split, with their words and bytes."""
    made = hashlib.sha256()
    for split in splits:
        for step in range(3 if split == "train" else min(3, task.batches(split, 3))):
            batch = task.batch(split, 5, step, 3)
            for x in (batch.tokens, batch.targets, batch.info["words"], batch.info["bytes"]):
                made.update(f"{split}{step}{x.dtype}{x.shape}".encode())
                made.update(x.tobytes())
    return made.hexdigest()[:16]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"window": 16, "test": "c.txt"}, "281d2396da75a94d"),
        ({"window": 16}, "3e0fab85d667ff5b"),
        ({"window": 16, "eval_tokens": 37}, "df28b6d2f454a275"),
        ({"window": 8, "tokenizer": "bpe:270"}, "646830bc41fc90cd"),
    ],
)
def test_batches_are_pinned(tmp_path, monkeypatch, config, expected):
    # computed when there were three tasks, text, manual and lm: runs of theirs go on as they began
    if "tokenizer" in config:
        pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    for name, text in (("a", TEXT), ("b", TEXT[40:200]), ("c", TEXT[13:300])):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    assert digest(Language(train="a.txt", valid="b.txt", **config)) == expected


@pytest.mark.skipif("(2a95af4a)" not in describe_help(), reason="another version of help()")
def test_batches_of_help_are_pinned():
    assert digest(Language(window=256, test="help")) == "38c725849c0ed8d7"
    assert digest(Language(window=64, eval_tokens=100)) == "03a4569f49e144b9"


POEM = "the cat\nsat on  the mat \n\nend"


@pytest.fixture
def files(tmp_path):
    def make(train=POEM * 10, valid=POEM, **config):
        for name, text in (("train", train), ("valid", valid)):
            (tmp_path / f"{name}.txt").write_bytes(text.encode())
        paths = {name: str(tmp_path / f"{name}.txt") for name in ("train", "valid")}
        return Language(**paths, **config)

    return make


def whole_pass(task, size):
    batches = [task.batch("valid", 0, step, size) for step in range(task.batches("valid", size))]
    return batches, [row for b in batches for row in zip(b.tokens, b.targets, strict=True)]


@pytest.mark.parametrize("window", [1, 4, 7, 28, 100])
def test_one_pass_asks_for_every_byte_but_the_first_once(files, window):
    task = files(train=POEM * 20, window=window)
    _, rows = whole_pass(task, 3)
    asked = b"".join(bytes(t[t != IGNORE].tolist()) for _, t in rows)
    assert asked == POEM.encode()[1:]
    read = b"".join(bytes(tokens[t != IGNORE].tolist()) for tokens, t in rows)
    assert read == POEM.encode()[:-1]


def test_training_windows_lie_anywhere_and_depend_on_seed_and_step(files):
    text = "".join(chr(97 + i % 26) + str(i) for i in range(40))
    task = files(train=text, window=9)
    batch = task.batch("train", 0, 3, 200)
    places = set()
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        place = text.find(bytes(tokens.tolist()).decode())
        assert text[place + 1 : place + 10] == bytes(targets.tolist()).decode()
        places.add(place)
    assert {0, len(text) - 10} <= places
    assert batch.tokens.tobytes() == task.batch("train", 0, 3, 200).tokens.tobytes()
    assert batch.tokens.tobytes() != task.batch("train", 0, 4, 200).tokens.tobytes()
    assert batch.tokens.tobytes() != task.batch("train", 1, 3, 200).tokens.tobytes()


def test_perplexities_by_hand(files):
    task = files(window=8)
    totals: dict[str, tuple[float, float]] = {}
    batches, _ = whole_pass(task, 2)
    for batch in batches:
        losses = np.where(batch.targets != IGNORE, 0.5, 0.0)
        for name, (a, b) in task.count(batch.targets, losses, batch).items():
            old = totals.get(name, (0.0, 0.0))
            totals[name] = (old[0] + a, old[1] + b)
    asked = len(POEM) - 1
    # cat \n sat on the mat \n \n end; the first word starts at the byte that is never asked for
    words = 9
    got = task.summarise(totals)
    assert got["loss"] == 0.5
    assert got["perplexity"] == pytest.approx(math.exp(0.5))
    assert got["perplexity_per_word"] == pytest.approx(math.exp(0.5 * asked / words))
    assert got["bits_per_byte"] == pytest.approx(0.5 / math.log(2))
    assert got["accuracy"] == 1.0


def test_a_hopeless_loss_is_infinite_perplexity_not_an_error(files):
    task = files(window=8)
    got = task.summarise(dict.fromkeys(("loss", "loss/word", "loss/byte", "accuracy"), (1e6, 1.0)))
    assert got["perplexity"] == math.inf


def test_a_tokenizer_file_changes_tokens_but_not_words_and_bytes(files, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    text = "der Hügel\nund das naïve Café 🎈 und\n"
    vocabulary = {w: i for i, w in enumerate(["?", "der", "Hügel", "und", "das", "🎈", "naïve"])}
    tool = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tool.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tool.save(str(tmp_path / "tok.json"))
    task = files(train=text * 3, valid=text, tokenizer=str(tmp_path / "tok.json"), window=3)
    assert (task.vocab_size, task.num_classes) == (7, 7)
    batches, rows = whole_pass(task, 2)
    asked = [int(i) for _, t in rows for i in t[t != IGNORE]]
    assert asked == [2, 3, 4, 6, 0, 5, 3]
    # all but the first token: Hügel \n und das naïve Café 🎈 und \n
    assert sum(int(b.info["words"].sum()) for b in batches) == 9
    assert sum(int(b.info["bytes"].sum()) for b in batches) == len(text.encode()) - len("der")
    assert task.show(np.array([1, 2])) == ["der", "Hügel"]


def test_bytes_are_shown_as_characters(files):
    assert files(window=4).show(np.array([104, 10, 32])) == ["h", "\\n", " "]


def test_bad_files_are_named(files, tmp_path):
    good = files(window=4)
    with pytest.raises(ValueError, match="train='': expected the path of an existing file"):
        Language(train="")
    with pytest.raises(ValueError, match=r"valid=None: expected a file, hub:\.\.\. or help"):
        Language(valid=None)
    with pytest.raises(ValueError, match=r"valid='.*missing': expected the path"):
        Language(train=good.train, valid=str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=r"test='.*missing': expected the path"):
        Language(test=str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=r"valid=.*: the file is empty"):
        files(valid="")
    with pytest.raises(ValueError, match=r"train=.*: too short, 3 tokens; .* at least 5"):
        files(train="abc", window=4)
    with pytest.raises(ValueError, match=r"valid=.*: too short, 1 tokens"):
        files(valid="a", window=4).batch("valid", 0, 0, 1)
    with pytest.raises(ValueError, match="test=None: expected a text to test on"):
        files(window=4, test=None).batch("test", 0, 0, 1)
    with pytest.raises(ValueError, match="window=0"):
        files(window=0)
    with pytest.raises(ValueError, match="split='dev'"):
        files(window=4).batch("dev", 0, 0, 1)


def test_the_test_split_is_a_text_of_its_own_or_the_valid_one_or_none(files, tmp_path):
    (tmp_path / "test.txt").write_text("another text")
    own = files(window=4, test=str(tmp_path / "test.txt"))
    assert bytes(own.corpus("test").tokens.tolist()) == b"another text"
    assert own.splits == files(window=4).splits == ("train", "valid", "test")
    assert files(window=4).corpus("test").tokens.tobytes() == POEM.encode()
    assert files(window=4, test=None).splits == ("train", "valid")


def test_a_file_that_is_no_tokenizer_is_refused(files, tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tok.json").write_text("{}")
    with pytest.raises(ValueError, match="not a tokenizer file"):
        files(tokenizer=str(tmp_path / "tok.json"), window=4).batch("train", 0, 0, 1)


def test_a_tokenizer_without_its_package_says_what_to_install(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "tok.json").write_text("{}")
    with pytest.raises(ValueError, match="needs the package 'tokenizers'"):
        files(tokenizer=str(tmp_path / "tok.json"), window=4).batch("train", 0, 0, 1)
