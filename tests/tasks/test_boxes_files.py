"""Kim and Schuster's files, written small: what is read, what is asked, how it is scored."""

import json

import numpy as np
import pytest

from chacal.tasks import IGNORE, Batch, BoxesFiles
from chacal.tasks.boxes_files import items

STATE = "Box 0 contains the letter, Box 1 is empty, Box 2 contains the big book and the key."
MOVE = "Move the big book and the key from Box 2 to Box 1."
TRAIN = [
    (f"{STATE} {MOVE}", "Box 1", "contains the big book and the key", 1),
    (f"{STATE} {MOVE}", "Box 2", "is empty", 1),
    (f"{STATE} Remove the letter from Box 0. Put the key into Box 0.", "Box 0", "is empty", 2),
    (f"{STATE} Move the contents of Box 2 to Box 0.", "Box 1", "is empty", 0),
]


def row(story, box, content, numops, zero_shot=False):
    if zero_shot:
        content = "contains nothing" if content == "is empty" else content
        box, content = f"{box} contains", content.removeprefix("contains ")
    return {
        "sentence": f"{story} {box} {content}.",
        "sentence_masked": f"{story} {box} <extra_id_0> .",
        "masked_content": f"<extra_id_0> {content}",
        "sample_id": "7",
        "numops": numops,
    }


def write(folder, train=TRAIN, dev=TRAIN[:3], test=TRAIN[:1], **style):
    for name, rows in (("train", train), ("dev", dev), ("test", test)):
        lines = [json.dumps(row(*example, **style)) for example in rows]
        (folder / f"{name}-t5.jsonl").write_text("\n".join(lines) + "\n")
    return BoxesFiles(data=str(folder))


@pytest.mark.parametrize("zero_shot", [False, True])
def test_the_masked_content_and_its_period_are_asked(tmp_path, zero_shot):
    task = write(tmp_path, zero_shot=zero_shot)
    batch = task.batch("valid", 0, 0, 3)
    for example, tokens, targets in zip(TRAIN, batch.tokens, batch.targets, strict=False):
        told = row(*example, zero_shot=zero_shot)
        asked = targets[targets != IGNORE]
        start = int(np.flatnonzero(targets != IGNORE)[0])
        content = told["masked_content"].removeprefix("<extra_id_0> ")
        assert "".join(task.show(asked)) == f" {content}."
        prompt = "".join(task.show(tokens[: start + 1]))
        assert f"{prompt} <extra_id_0> ." == " " + told["sentence_masked"]
        follows = tokens[start + 1 : start + len(asked)]
        assert (follows == asked[:-1]).all()
        assert (tokens[start + len(asked) :] == 0).all()


@pytest.mark.parametrize("zero_shot", [False, True])
@pytest.mark.parametrize("words", [False, True])
def test_lines_of_one_story_are_one_text_to_train_on(tmp_path, byte_tokenizer, zero_shot, words):
    write(tmp_path, zero_shot=zero_shot)
    tokenizer = None if words else byte_tokenizer
    task = BoxesFiles(data=str(tmp_path), tokenizer=tokenizer, together=True)
    assert (task.total("train"), task.total("valid"), task.total("test")) == (3, 3, 1)
    assert "4 training examples in 3 texts" in task.describe()
    batch = task.pick("train", np.array([0, 2]))
    told = [row(*example, zero_shot=zero_shot) for example in TRAIN]
    second = told[1]["sentence"].removeprefix(f"{STATE} {MOVE}")
    for i, text in ((0, told[0]["sentence"] + second), (1, told[3]["sentence"])):
        asked = batch.targets[i] != IGNORE
        whole = [*batch.tokens[i][: np.flatnonzero(asked)[-1] + 1], batch.targets[i][asked][-1]]
        assert "".join(task.show(np.array(whole))).strip() == text
        # what is asked at a place stands at the next one
        follows = np.append(batch.tokens[i], 0)[1:][asked][:-1]
        assert (follows == batch.targets[i][asked][:-1]).all()
        lines = told[:2] if i == 0 else told[3:]
        contents = [line["masked_content"].removeprefix("<extra_id_0>") for line in lines]
        said = "".join(task.show(batch.targets[i][asked]))
        assert said == "".join(f"{content}." for content in contents)
    plain = BoxesFiles(data=str(tmp_path), tokenizer=tokenizer)
    for split in ("valid", "test"):
        one, other = (t.batch(split, 0, 0, 3) for t in (task, plain))
        assert (one.tokens == other.tokens).all()
        assert (one.targets == other.targets).all()


def test_fixed_phrases_are_single_tokens(tmp_path):
    task = write(tmp_path)
    tokens = task.batch("test", 0, 0, 1).tokens[0]
    assert task.show(tokens) == [
        *(" Box 0", " contains the", " letter", ", Box 1", " is empty", ", Box 2"),
        *(" contains the", " big", " book", " and the", " key", "."),
        *(" Move the", " big", " book", " and the", " key", " from Box 2", " to Box 1."),
        *(" Box 1", " contains the", " big", " book", " and the", " key"),
    ]
    assert task.length == max(task.batch(s, 0, 0, 3).tokens.shape[1] for s in ("valid", "test"))


def test_passes_are_in_file_order_and_training_draws_by_seed_and_step(tmp_path):
    task = write(tmp_path)
    assert task.batches("valid", 2) == 2
    assert task.batches("train", 2) is None
    assert task.batch("valid", 0, 0, 2).info["numops"].tolist() == [1, 1]
    assert task.batch("valid", 9, 1, 2).info["numops"].tolist() == [2]
    with pytest.raises(ValueError, match=r"step=2: expected 0\.\.1"):
        task.batch("valid", 0, 2, 2)
    drawn = task.batch("train", 1, 5, 64)
    assert set(drawn.info["numops"].tolist()) == {0, 1, 2}
    assert task.batch("train", 1, 5, 64).tokens.tobytes() == drawn.tokens.tobytes()
    others = [task.batch("train", *args, 64).info["numops"].tobytes() for args in ((1, 6), (2, 5))]
    assert drawn.info["numops"].tobytes() not in others


def test_order_of_things_does_not_matter_but_things_do(tmp_path):
    task = write(tmp_path)
    batch = task.batch("valid", 0, 0, 3)

    def guess(*contents):
        predictions = np.zeros_like(batch.targets)
        for i, content in enumerate(contents):
            at = np.flatnonzero(batch.targets[i] != IGNORE)
            predictions[i, at[: len(content)]] = [task.ids[phrase] for phrase in content]
        return predictions

    swapped = (" contains the", " key", " and the", " big", " book", ".")
    empty = (" is empty", ".")
    got = task.summarise(
        task.count(guess(swapped, empty, (" contains the", ".")), batch.targets * 0.0, batch)
    )
    assert got["exact_match"] == 2 / 3
    assert got["exact_match/numops=1"] == 1.0
    assert got["exact_match/numops=2"] == 0.0
    assert got["accuracy"] == pytest.approx((2 + 2 + 1) / 10)
    part = (" contains the", " key", ".")
    got = task.count(guess(part, part[:2], empty), batch.targets * 0.0, batch)
    assert got["exact_match"] == (1.0, 3.0)


def test_perfect_predictions_score_one_and_losses_are_means(tmp_path):
    task = write(tmp_path)
    batch: Batch = task.batch("valid", 0, 0, 3)
    losses = np.where(batch.targets != IGNORE, 3.0, 0.0)
    got = task.summarise(task.count(batch.targets, losses, batch))
    assert (got["loss"], got["accuracy"], got["exact_match"]) == (3.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("contains the key and the book", "the book and the key.", True),
        ("contains the key, the pen and the book", "the pen and the book and the key", True),
        ("is empty", "nothing", True),
        ("is empty", "contains", False),
        ("is empty", "", False),
        ("contains the key", "is empty", False),
        ("the key", "the keys", False),
        ("the other key", "the key", False),
    ],
)
def test_items_are_a_set(a, b, same):
    assert (items(a) == items(b)) is same


def test_words_that_training_never_saw_cost_their_examples_and_are_counted(tmp_path):
    in_story = (STATE.replace("letter", "spoon"), "Box 1", "is empty", 0)
    in_answer = (f"{STATE} {MOVE}", "Box 1", "contains the spoon", 1)
    task = write(tmp_path, test=[TRAIN[0], in_story, TRAIN[1], in_answer])
    batch = task.batch("test", 0, 0, 4)
    asked = batch.targets != IGNORE
    assert asked.any(1).tolist() == [True, False, True, False]
    losses = np.where(asked, 1.0, 0.0)
    got = task.summarise(task.count(batch.targets, losses, batch))
    assert got["exact_match"] == 0.5
    assert got["exact_match/numops=0"] == 0.0
    assert got["unknown_words"] == 0.5
    assert (got["loss"], got["accuracy"]) == (1.0, 1.0)
    known = task.batch("valid", 0, 0, 3)
    counted = task.count(known.targets, known.targets * 0.0, known)
    assert "unknown_words" not in task.summarise(counted)
    assert task.vocab_size == write(tmp_path).vocab_size


def test_a_tokenizer_tells_the_same_examples(tmp_path, byte_tokenizer):
    write(tmp_path, test=[TRAIN[0], (STATE.replace("letter", "spoon"), "Box 1", "is empty", 0)])
    task = BoxesFiles(data=str(tmp_path), tokenizer=byte_tokenizer)
    phrases = BoxesFiles(data=str(tmp_path))
    for split in ("train", "valid", "test"):
        ours, theirs = (t.batch(split, 3, 0, 2) for t in (task, phrases))
        assert ours.info["numops"].tolist() == theirs.info["numops"].tolist()
        assert ours.info["known"].all()
        assert ours.tokens.shape[1] <= task.length
    batch = task.batch("test", 0, 0, 2)
    for example, tokens, targets in zip(
        task.examples("test"), batch.tokens, batch.targets, strict=True
    ):
        asked = targets[targets != IGNORE]
        assert "".join(task.show(asked)) == f" {example.content}."
        first = int(np.flatnonzero(targets != IGNORE)[0])
        assert "".join(task.show(tokens[: first + 1])) == example.prompt
    got = task.summarise(task.count(batch.targets, batch.targets * 0.0, batch))
    assert (got["exact_match"], got["accuracy"]) == (1.0, 1.0)
    swapped = batch.targets.copy()
    told = " contains the key and the big book."
    at = np.flatnonzero(batch.targets[0] != IGNORE)
    swapped[0, at] = task._tokenizer.encode(told).ids
    assert task.count(swapped, batch.targets * 0.0, batch)["exact_match"] == (2.0, 2.0)


def test_chosen_examples_are_those_of_their_lines(tmp_path):
    task = write(tmp_path)
    whole, some = task.batch("valid", 0, 0, 3), task.pick("valid", np.array([2, 0]))
    assert task.stored("valid") == 3
    assert task.stored("train") is None
    for ours, line in zip(some.tokens, (2, 0), strict=True):
        n = min(len(ours), whole.tokens.shape[1])
        assert (ours[:n] == whole.tokens[line][:n]).all()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{not json", "line 2 is not JSON"),
        ("[1]", "line 2: expected a JSON object"),
        (json.dumps({"sentence_masked": "a <extra_id_0>"}), "line 2: the key 'masked_content'"),
        (json.dumps(row(*TRAIN[0]) | {"numops": "1"}), "line 2: numops='1': expected an integer"),
        (json.dumps(row(*TRAIN[0]) | {"sentence_masked": "Box 1 ."}), "line 2: sentence_masked"),
        (json.dumps(row(*TRAIN[0]) | {"masked_content": "<extra_id_0>"}), "line 2: masked_content"),
    ],
)
def test_bad_lines_are_located(tmp_path, line, told):
    task = write(tmp_path)
    path = tmp_path / "train-t5.jsonl"
    path.write_text(json.dumps(row(*TRAIN[0])) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"train-t5\.jsonl, line 2") as caught:
        task.batch("train", 0, 0, 2)
    assert told in str(caught.value)


def test_lines_end_at_line_ends_only(tmp_path):
    # U+2028 may stand in a JSON string as it is, and is a line end to str.splitlines
    told = json.dumps(row(*TRAIN[0]) | {"note": "one\u2028two"}, ensure_ascii=False)
    write(tmp_path)
    (tmp_path / "train-t5.jsonl").write_text(told + "\n", encoding="utf-8")
    assert len(BoxesFiles(data=str(tmp_path)).examples("train")) == 1
    (tmp_path / "train-t5.jsonl").write_bytes(b"\n{\xff}\n")
    with pytest.raises(ValueError, match=r"train-t5\.jsonl, line 2 is not UTF-8 text"):
        BoxesFiles(data=str(tmp_path)).examples("train")


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="data='': expected a folder"):
        BoxesFiles()
    with pytest.raises(ValueError, match=r"train-t5\.jsonl: no such file"):
        BoxesFiles(data=str(tmp_path))
    task = write(tmp_path)
    (tmp_path / "test-t5.jsonl").unlink()
    assert BoxesFiles(data=str(tmp_path)).splits == ("train", "valid")
    assert task.length > 0
    with pytest.raises(ValueError, match=r"test-t5\.jsonl: cannot be read: No such file"):
        task.batch("test", 0, 0, 1)
    (tmp_path / "train-t5.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="expected at least one example"):
        BoxesFiles(data=str(tmp_path)).describe()
