"""RULER's variable tracking: a reader of its own follows the chains; files go both ways."""

import json
import re

import numpy as np
import pytest

from chacal.tasks import IGNORE, SPLITS, Ruler
from chacal.tasks.ruler import NOISE, read_questions, recall, write_questions


def follow(text):
    """Value asked for, and the variables that have it, by following every assignment."""
    value = re.search(r"assigned the value (\d{5}) in the text above\.", text)[1]
    given = dict(re.findall(r"^VAR ([A-Z]{5}) = (?:VAR )?(\w{5})$", text, re.M))
    names = set()
    for name in given:
        end = name
        while end in given:
            end = given[end]
        names |= {name} if end == value else set()
    return value, names, given


@pytest.mark.parametrize("order", ["forward", "shuffled"])
@pytest.mark.parametrize("chains", [1, 2, 4])
def test_the_answer_is_every_variable_of_the_chain(order, chains):
    task = Ruler(hops=3, chains=chains, order=order, noise=0.5)
    for question in task.questions("test", 0, 0, 20):
        value, names, given = follow(question.text)
        assert set(question.names) == names
        assert len(names) == 4
        assert len(given) == 4 * chains
        assert question.text.count(NOISE) == 2 * chains
        assert f"4 variables are assigned the value {value}, they are:" in question.prefix
    batch = task.batch("test", 0, 0, 20)
    for row, question in enumerate(task.questions("test", 0, 0, 20)):
        asked = batch.targets[row] != IGNORE
        said = "".join(task.show(batch.targets[row][asked]))
        assert said == f" {' '.join(question.names)}\n"
        first = int(asked.argmax())
        told = "".join(task.show(batch.tokens[row][: first + 1]))
        assert told == question.text + question.prefix
    assert batch.tokens.shape[1] <= task.length


def test_naming_every_variable_is_not_exact_where_there_are_two_chains():
    task = Ruler(hops=2)
    batch = task.batch("valid", 0, 0, 8)
    right = task.summarise(task.count(batch.targets, batch.targets * 0.0, batch))
    assert (right["exact_match"], right["recall"], right["exact_match/hops=02"]) == (1, 1, 1)

    def answered(answer):
        guesses = batch.targets.copy()
        for row, question in enumerate(task.questions("valid", 0, 0, 8)):
            at = np.flatnonzero(batch.targets[row] != IGNORE)
            text = answer(question.names, sorted(follow(question.text)[2])).encode()[: len(at)]
            guesses[row, at[: len(text)]] = list(text)
        return task.summarise(task.count(guesses, batch.targets * 0.0, batch))

    backwards = answered(lambda names, _: f" {' '.join(names[::-1])}\n")
    assert (backwards["exact_match"], backwards["recall"]) == (1, 1)
    two = answered(lambda names, _: f" {' '.join(names[:2])}\n")
    assert two["exact_match"] == 0
    assert two["recall"] == pytest.approx(2 / 3)
    everything = answered(lambda _, every: f" {' '.join(every)}\n")
    assert everything["exact_match"] < 0.5
    assert recall("all of AAAAA, bbbbb", ["AAAAA", "BBBBB", "CCCCC"]) == pytest.approx(2 / 3)


def test_one_seed_the_same_bytes_and_no_text_in_two_splits():
    task = Ruler(hops=1, noise=0.0)
    texts = {s: {q.text for q in task.questions(s, 0, 0, 200)} for s in SPLITS}
    assert not texts["train"] & texts["test"]
    assert not texts["valid"] & texts["test"]
    again = Ruler(hops=1, noise=0.0).batch("train", 5, 3, 8)
    assert task.batch("train", 5, 3, 8).tokens.tobytes() == again.tokens.tobytes()


def test_chains_grow_in_training():
    task = Ruler(hops=5, min_hops=1, curriculum_steps=10)
    assert {q.hops for q in task.questions("train", 0, 0, 40)} == {1}
    assert {q.hops for q in task.questions("train", 0, 25, 40)} == {1, 2, 3}
    assert {q.hops for q in task.questions("train", 0, 999, 60)} == {1, 2, 3, 4, 5}
    assert {q.hops for q in task.questions("valid", 0, 0, 20)} == {5}


def test_its_format_is_written_and_read(tmp_path, byte_tokenizer):
    task = Ruler(hops=2, tokenizer=byte_tokenizer)
    made = task.questions("test", 0, 0, 7)
    path = tmp_path / "validation.jsonl"
    write_questions(str(path), made, task._tokenizer)
    assert read_questions(str(path)) == made
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(7))
    assert rows[0]["answer_prefix"].endswith("they are: ")
    assert rows[0]["length"] == len(rows[0]["input"]) + len(rows[0]["answer_prefix"]) - 1
    stored = Ruler(hops=2, tokenizer=byte_tokenizer, test_file=str(path))
    assert stored.stored("test") == 7
    assert stored.stored("valid") is None
    assert stored.batches("test", 3) == 3
    ours, theirs = stored.batch("test", 9, 0, 7), task.batch("test", 0, 0, 7)
    assert ours.tokens.tobytes() == theirs.tokens.tobytes()
    assert len(stored.batch("test", 0, 2, 3).tokens) == 1
    # an earlier version's: the prefix at the end of the input
    old = {"index": 0, "input": rows[0]["input"] + rows[0]["answer_prefix"], "outputs": ["ABCDE"]}
    path.write_text(json.dumps(old) + "\n")
    (question,) = read_questions(str(path))
    assert (question.text, question.prefix) == (made[0].text + made[0].prefix, "")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"input": "VAR A = 1"}, "line 1: expected an object with an 'input'"),
        ({"input": "VAR A = 1", "outputs": [1]}, "a list of variables"),
        ({"input": "needle", "outputs": ["A"]}, "expected variable tracking"),
    ],
)
def test_other_files_are_refused(tmp_path, row, words):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=words):
        Ruler(test_file=str(path)).batch("test", 0, 0, 1)
