"""Windows of text, and perplexities that can be checked by hand."""

import math
import sys

import numpy as np
import pytest

from chacal.tasks import IGNORE, Text

POEM = "the cat\nsat on  the mat \n\nend"


@pytest.fixture
def files(tmp_path):
    def make(train=POEM * 10, valid=POEM, **config):
        for name, text in (("train", train), ("valid", valid)):
            (tmp_path / f"{name}.txt").write_bytes(text.encode())
        paths = {f"{name}_file": str(tmp_path / f"{name}.txt") for name in ("train", "valid")}
        return Text(**paths, **config)

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
    with pytest.raises(ValueError, match="train_file='': expected the path of an existing file"):
        Text()
    with pytest.raises(ValueError, match=r"valid_file='.*missing'"):
        Text(train_file=good.train_file, valid_file=str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=r"valid_file=.*: the file is empty"):
        files(valid="")
    with pytest.raises(ValueError, match=r"train_file=.*: too short, 3 tokens; .* at least 5"):
        files(train="abc", window=4)
    with pytest.raises(ValueError, match=r"valid_file=.*: too short, 1 tokens"):
        files(valid="a", window=4).batch("valid", 0, 0, 1)
    with pytest.raises(ValueError, match="test_file=None: expected the path"):
        files(window=4).batch("test", 0, 0, 1)
    with pytest.raises(ValueError, match="window=0"):
        files(window=0)
    with pytest.raises(ValueError, match="split='dev'"):
        files(window=4).batch("dev", 0, 0, 1)


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
