"""SCROLLS' figures, against cases worked out by hand."""

import math

import pytest

from chacal.tasks.scrolls_scores import exact_match, f1, geometric_mean, rouge


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("The cat sat.", ["a cat sat"], 100.0),  # articles, case and punctuation do not count
        ("the big cat", ["cat"], 100 * 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("cat cat", ["cat dog"], 50.0),  # a word is matched once
        ("dog", ["cat", "hot dog", "dog"], 100.0),  # the best reference counts
        ("bird", ["cat"], 0.0),
        ("", ["cat"], 0.0),
    ],
)
def test_f1(answer, references, expected):
    assert f1(answer, references) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("Entailment", ["entailment"], 100.0),
        ("not  mentioned.", ["Not mentioned"], 100.0),
        ("mentioned not", ["not mentioned"], 0.0),
        ("b", ["a b", "c"], 100.0),
        ("x", ["y", "z"], 0.0),
    ],
)
def test_exact_match(answer, references, expected):
    assert exact_match(answer, references) == expected


def test_rouge_by_hand():
    pytest.importorskip("rouge_score")
    # 3 of 4 words and of 3; 1 of 3 pairs and of 2; the longest common subsequence is "cat sat"
    scores = rouge("the cat sat", ["the fat cat sat"])
    assert scores["rouge1"] == pytest.approx(100 * 2 * 3 / 7)
    assert scores["rouge2"] == pytest.approx(100 * 2 * 1 / 5)
    assert scores["rougeL"] == pytest.approx(100 * 2 * 3 / 7)
    swapped = rouge("sat cat", ["cat sat"])
    assert swapped["rouge1"] == pytest.approx(100)
    assert swapped["rouge2"] == 0
    assert swapped["rougeL"] == pytest.approx(50)


def test_rouge_takes_the_best_reference_and_no_stem():
    pytest.importorskip("rouge_score")
    assert rouge("cats", ["cat"])["rouge1"] == 0
    both = rouge("a b c d", ["a b x y", "d c b a"])
    assert both["rouge1"] == pytest.approx(100)  # of the second
    assert both["rouge2"] == pytest.approx(100 / 3)  # of the first


def test_geometric_mean():
    assert geometric_mean([1.0, 8.0, 27.0]) == pytest.approx(6.0)
    assert geometric_mean([50.0, 0.0, 50.0]) == 0
    assert not math.isnan(geometric_mean([0.0, 0.0, 0.0]))
