"""What is right, and what an answer scores that follows nothing, by hand."""

import json

import pytest

from chacal.eval import entity_tracking as babylm
from chacal.eval import kim_schuster as boxes
from chacal.eval import variables
from chacal.eval.scores import macro
from chacal.eval.stories import asked, at_start, chance, mentioned
from chacal.tasks.ruler import PREFIX, Ruler

START = "Box 0 contains the letter, Box 1 is empty, Box 2 contains the big book and the key."
OTHER = (
    "The letter is in Container A, there is nothing in Container B, the big book and the key are "
    "in Container C."
)


@pytest.mark.parametrize(
    ("prompt", "things"),
    [
        (f"{START} Box 0", {"letter"}),
        (f"{START} Remove the letter from Box 0. Box 0 contains", {"letter"}),
        (f"{START} Move the big book from Box 2 to Box 1. Box 1", set()),
        (f"{START} Box 2 contains", {"big book", "key"}),
        (f"{START.replace('is empty', 'contains nothing')} Box 1 contains", set()),
        (f"{OTHER} Container A", {"letter"}),
        (f"{OTHER} Place the pot inside Container B. Container B", set()),
        (f"{OTHER} Container C", {"big book", "key"}),
        (f'Description: {START}\nStatement: "Box 2 contains', {"big book", "key"}),
    ],
)
def test_the_start_is_read_in_all_forms(prompt, things):
    assert at_start(prompt) == things


def test_a_text_without_boxes_is_refused_with_what_was_expected():
    with pytest.raises(ValueError, match="expected a text that names a Box"):
        asked("The letter is here.")
    with pytest.raises(ValueError, match="says at first what Box 3 contains"):
        at_start(f"{START} Box 3")


def test_a_guess_is_among_what_was_mentioned_with_the_box():
    told = f"{START} Move the key from Box 2 to Box 1. Put the tea into Box 1. Box 1"
    assert mentioned(told) == {"key", "tea"}
    # nothing, one of two or both, equally likely
    assert chance(told, frozenset({"key", "tea"})) == pytest.approx(1 / 3)
    assert chance(told, frozenset({"key"})) == pytest.approx(1 / 6)
    assert chance(told, frozenset()) == pytest.approx(1 / 3)
    assert chance(told, frozenset({"letter"})) == 0
    assert mentioned(f"{START} Box 1") == set()
    assert chance(f"{START} Box 1", frozenset()) == 1
    whole = f"{START} Move the contents of Box 2 to Box 1. Box 1"
    assert mentioned(whole) == set()
    four = f"{START} Put the pot and the pan and the cup and the tea into Box 1. Box 1"
    assert chance(four, frozenset({"pot", "pan", "cup"})) == pytest.approx(1 / 16)
    assert chance(four, frozenset({"pot", "pan", "cup", "tea"})) == 0
    picked = f"{OTHER} Pick up the key in Container C and place it into Container B. Container B"
    assert mentioned(picked) == {"key"}


def test_macro_means_are_over_operations():
    assert macro([(0, 1.0), (0, 1.0), (0, 0.0), (3, 0.0)]) == pytest.approx(1 / 3)


def test_stories_of_kim_and_schuster(kim_schuster):
    rows = boxes.documents(kim_schuster=str(kim_schuster), pretrained="of the model")["test"]
    assert [row["start"] for row in rows] == [1, 1, 0, 0, 1, 0]
    assert [row["shortest"] for row in rows] == [0, 1, 0, 1, 1, 0]
    assert rows[2]["prompt"].endswith(" to Box 1. Box 1 contains")
    assert boxes.score(rows[2], [" the key and the big book. Box"]) == {
        "exact_match": 1, "chance": pytest.approx(1 / 3), "shortest": 0, "start": 0,
        "exact_match_ops_1": 1, "exact_match_changed": 1,
    }  # fmt: skip
    wrong = boxes.score(rows[4], [" the key"])
    assert wrong["exact_match"] == wrong["exact_match_2plus"] == wrong["exact_match_ops_2"] == 0
    assert wrong["start_2plus"] == wrong["shortest_2plus"] == 1
    assert "exact_match_changed" not in wrong
    assert boxes.score(rows[4], [" nothing"])["exact_match_2plus"] == 1


def test_a_sample_is_fixed_and_no_larger_than_the_file(kim_schuster):
    def prompts(**metadata):
        return boxes.documents(kim_schuster=str(kim_schuster), **metadata)["test"]["prompt"][:]

    assert len(prompts(examples=3)) == 3
    assert prompts(examples=3) == prompts(examples=3)
    assert set(prompts(examples=3)) < set(prompts())
    assert prompts(examples=99) == prompts()
    with pytest.raises(ValueError, match="examples=0: expected a number from 1 on, or all"):
        prompts(examples=0)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(ValueError, match="expected --metadata kim_schuster=the folder of test"):
        boxes.documents(pretrained="x")
    with pytest.raises(ValueError, match="expected --metadata entity_tracking=the folder of"):
        babylm.regular()
    with pytest.raises(ValueError, match="expected --metadata ruler=a JSONL file"):
        variables.from_file()
    with pytest.raises(ValueError, match=r"regular.jsonl: cannot be read"):
        babylm.regular(entity_tracking=str(tmp_path))
    (tmp_path / "regular.jsonl").write_text(json.dumps({"input_prefix": "x", "options": [" y"]}))
    with pytest.raises(ValueError, match=r"regular.jsonl, line 1: expected input_prefix"):
        babylm.regular(entity_tracking=str(tmp_path))


def test_options_of_babylm(entity_tracking):
    rows = babylm.move_contents(entity_tracking=str(entity_tracking))["test"]
    assert [row["numops"] for row in rows] == [0, 0, 1, 1, 2, 3]
    assert [row["start"] for row in rows] == [1, 1, 0, 0, 1, 0]
    # " nothing." and " the pot." are equally short
    assert [row["shortest"] for row in rows] == [0, 0.5, 0, 0.5, 0.5, 0]
    assert [row["chance"] for row in rows] == [*[1 / 4] * 5, 1 / 5]
    chosen = babylm.score(rows[5], [(-1.0, False), (-2.0, True), (-3.0, False)])
    assert chosen["acc"] == chosen["acc_2plus"] == (3, 1.0)
    assert babylm.score(rows[0], [(-2.0, False), (-1.0, False)])["acc"] == (0, 0.0)
    assert "acc_2plus" not in babylm.score(rows[0], [(-2.0, False), (-1.0, False)])


def test_sets_of_variables():
    made = variables.documents(hops=2, chains=3, noise=0, examples=4, pretrained="of the model")
    again = Ruler(hops=2, min_hops=0, chains=3, noise=0).questions("test", 0, 0, 4)
    assert made["test"]["names"][:] == [list(question.names) for question in again]
    row = made["test"][0]
    assert row["chance"] == pytest.approx(1 / 84)
    assert (row["chance_recall"], row["start_recall"]) == (pytest.approx(1 / 3),) * 2
    assert (row["all"], row["all_recall"], row["start"]) == (0, 1, 0)
    names = row["names"]
    assert variables.score(row, [f" {names[2]}, VAR {names[0]} and {names[1]}.\nMore"]) == {
        "exact_match": 1, "recall": 1, "chance": row["chance"], "all": 0, "start": 0,
        "chance_recall": row["chance_recall"], "all_recall": 1, "start_recall": 1 / 3,
    }  # fmt: skip
    told = set(row["text"].replace("\n", " ").split())
    everything = " ".join(word for word in told if len(word) == 5 and word.isupper())
    named_all = variables.score(row, [everything])
    assert (named_all["exact_match"], named_all["recall"]) == (0, 1)
    part = variables.score(row, [names[0]])
    assert (part["exact_match"], part["recall"]) == (0, pytest.approx(1 / 3))


def test_a_file_of_ruler_and_one_chain(tmp_path):
    text = "VAR ABCDE = 12345\nVAR FGHIJ = VAR ABCDE\nQuestion: Find all that are 12345."
    row = {"input": text, "outputs": ["ABCDE", "FGHIJ"],
           "answer_prefix": PREFIX.format(count=2, value=12345)}  # fmt: skip
    (tmp_path / "vt.jsonl").write_text(json.dumps(row) + "\n")
    (document,) = variables.from_file(ruler=str(tmp_path / "vt.jsonl"))["test"]
    # with one chain, to name all is right
    assert (document["all"], document["chance"], document["start"]) == (1, 1, 0)
    assert document["prefix"].startswith("Answer: According to")
