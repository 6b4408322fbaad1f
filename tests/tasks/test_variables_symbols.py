"""Variables as symbols: every label is derived again from the tokens, by a reader of its own."""

import dataclasses

import numpy as np
import pytest

from chacal.tasks import SPLITS, VariableSymbols
from chacal.tasks.base import IGNORE

TASKS = [
    VariableSymbols(),
    VariableSymbols(noise=0.0, chains=1, hops=30, questions=3),
    VariableSymbols(noise=0.9, noise_kind="filler", n=300),
    VariableSymbols(noise=0.5, noise_kind="assignments", n=150, chains=5, hops=2),
    VariableSymbols(statements=7, n=77, questions=11, values=2),
    VariableSymbols(hops=0, n=64),
]


def read(words: list[str]) -> tuple[dict[str, str], list[tuple[int, str]], list[str]]:
    """What a text says: names and what each is given, questions with their places, and noise."""
    given: dict[str, str] = {}
    asked, noise, at = [], [], 1
    assert words[0] == "^"
    while at < len(words):
        if words[at] == "=":
            name, source = words[at + 1 : at + 3]
            assert name.startswith("x")
            assert name not in given, "a name is given something once"
            # told forward: what it is given from is known
            assert not source.startswith("x") or source in given
            given[name] = source
            at += 3
        elif words[at] == "?":
            asked.append((at + 1, words[at + 1]))
            at += 2
        else:
            assert words[at].startswith("~")
            noise.append(words[at])
            at += 1
    return given, asked, noise


def follow(given: dict[str, str], name: str) -> tuple[str, int]:
    """The end of a name's chain, and the hops there."""
    hops = 0
    while given[name].startswith("x"):
        name, hops = given[name], hops + 1
    return given[name], hops


@pytest.mark.parametrize("task", TASKS, ids=str)
@pytest.mark.parametrize("split", SPLITS)
def test_every_label_is_what_the_text_says(task, split):
    batch = task.batch(split, 3, 2000, 16)
    assert batch.tokens.max() < task.vocab_size
    assert batch.tokens.shape == batch.targets.shape
    if split != "train":
        assert batch.tokens.shape[1] == task.n
    for tokens, targets, hops in zip(batch.tokens, batch.targets, batch.info["hops"], strict=True):
        words = task.show(tokens)
        given, asked, _ = read(words)
        expected = np.full_like(targets, IGNORE)
        counted = []
        for at, name in asked:
            value, count = follow(given, name)
            expected[at] = int(value.removeprefix("v"))
            counted.append(count)
        if split == "train":
            for at in range(2, len(words)):
                if words[at - 2] == "=" and words[at][0] in "xv":
                    expected[at] = int(follow(given, words[at - 1])[0].removeprefix("v"))
        assert targets.tolist() == expected.tolist()
        assert [int(h) for h in hops if h >= 0] == counted
        assert len({name for _, name in asked}) == len(asked)
        assert max(counted) <= task.hops


def test_the_example_of_the_file_is_read_as_it_says():
    text = "^ = x2 v1 ~0 = x5 v0 = x0 x2 ~0 = x3 x0 = x1 x5 ? x3 ? x5"
    given, asked, noise = read(text.split())
    assert [follow(given, name) for _, name in asked] == [("v1", 2), ("v0", 0)]
    assert len(noise) == 2


@pytest.mark.parametrize(
    ("task", "statements", "noise"),
    [
        (VariableSymbols(n=128, noise=0.25), 27, 30),
        (VariableSymbols(n=128, noise=0.0), 37, 0),
        (VariableSymbols(n=1024, statements=30), 30, 917),
        (VariableSymbols(n=1024, statements=30, noise_kind="filler"), 30, 917),
    ],
)
def test_statements_and_noise_fill_n(task, statements, noise):
    for tokens in task.batch("test", 0, 0, 4).tokens:
        given, asked, symbols = read(task.show(tokens))
        assert (len(given), len(symbols), len(asked)) == (statements, noise, 8)
        if task.noise_kind == "filler":
            assert set(symbols) == {"~0"}


def test_assignments_as_noise_lead_nowhere_and_are_not_asked_for():
    task = VariableSymbols(n=200, noise=0.5, noise_kind="assignments")
    for tokens in task.batch("test", 0, 0, 8).tokens:
        given, asked, _ = read(task.show(tokens))
        lost = {name for name, source in given.items() if source.startswith("~")}
        assert len(lost) == 31
        assert not lost & set(given.values())
        assert not lost & {name for _, name in asked}


def test_every_number_of_hops_is_asked_for_before_one_is_again():
    task = VariableSymbols(n=200, noise=0.0, chains=2, hops=4, questions=7)
    for hops in task.batch("test", 0, 0, 32).info["hops"]:
        counts = np.bincount(hops, minlength=5)
        assert counts.min() >= 1
        assert counts.max() <= 2


def test_deep_questions_only_where_wanted():
    task = VariableSymbols(n=256, names=128, noise=0.0, chains=2, hops=16, min_hops=16)
    hops = task.batch("test", 0, 0, 32).info["hops"]
    assert set(np.unique(hops)) == {-1, 16}
    assert (hops == 16).any(1).mean() > 0.9
    assert task.batch("train", 0, 10**6, 32).info["hops"].min() == 0


def test_training_holds_at_one_hop_and_then_rises():
    task = VariableSymbols(min_n=128, curriculum_hold=10, curriculum_steps=5, hops=4)
    deepest = [int(task.batch("train", 0, step, 64).info["hops"].max()) for step in range(40)]
    assert deepest[:15] == [1] * 15
    assert deepest[15:] == [min(4, 2 + (step - 15) // 5) for step in range(15, 40)]
    free = dataclasses.replace(task, curriculum_steps=0)
    assert free.batch("train", 0, 0, 64).info["hops"].max() == 4


def test_training_lengths_vary_and_grow_with_the_hops():
    task = VariableSymbols(n=512, min_n=64, names=128, hops=3, curriculum_hold=200,
                           curriculum_steps=200)  # fmt: skip
    lengths = [task.batch("train", 0, step, 1).tokens.shape[1] for step in range(800)]
    for begin, most in ((0, 128), (400, 256), (600, 512)):
        there = lengths[begin : begin + 200]
        assert min(there) < 70
        assert 0.9 * most < max(there) <= most
    # as many of 64 to 128 tokens as of 256 to 512
    assert 0.2 < np.mean([n < 128 for n in lengths[600:]]) < 0.46
    assert 0.2 < np.mean([n > 256 for n in lengths[600:]]) < 0.46


def test_short_training_texts_have_noise_too():
    task = VariableSymbols(n=1024, min_n=64, statements=100, names=128, curriculum_steps=0)
    for step in range(20):
        tokens = task.batch("train", 0, step, 1).tokens
        given, _, noise = read(task.show(tokens[0]))
        assert len(given) <= 100
        assert len(noise) >= 0.24 * (len(tokens[0]) - 17)


def test_training_tells_more_chains_at_a_time_while_they_are_short():
    task = VariableSymbols(n=256, min_n=256, names=128, chains=2, hops=16, curriculum_hold=10)
    given = [read(task.show(text))[0] for text in task.batch("train", 0, 0, 8).tokens]
    # a chain of two is told in two of 59 assignments, with others between them
    apart = [
        list(told).index(name) - list(told).index(source)
        for told in given
        for name, source in told.items()
        if source.startswith("x")
    ]
    assert np.median(apart) > 10


def test_one_seed_the_same_bytes():
    task = VariableSymbols()
    batch, again = (task.batch("train", 1, 500, 8) for _ in range(2))
    assert batch.tokens.tobytes() == again.tokens.tobytes()
    assert batch.targets.tobytes() == again.targets.tobytes()
    other = task.batch("train", 2, 500, 8)
    assert other.tokens.tobytes() != batch.tokens.tobytes()
    pinned = " ".join(task.show(task.batch("test", 0, 0, 2).tokens[0])[:12])
    assert pinned == "^ ~5 ~4 = x15 v6 ~4 ~1 = x26 v5 ~0"


def test_no_two_splits_share_the_first_two_names():
    task = VariableSymbols(names=16, n=32, questions=4)
    seen = {split: set() for split in SPLITS}
    for split in SPLITS:
        for step in range(20):
            for tokens in task.batch(split, 0, step, 64).tokens:
                given, _, _ = read(task.show(tokens))
                seen[split].add(tuple(given)[:2])
    assert not seen["train"] & seen["valid"]
    assert not seen["train"] & seen["test"]
    assert not seen["valid"] & seen["test"]
    # every pair is of some split, and half of them train
    assert 100 < len(seen["train"]) < 140
    assert len(set.union(*seen.values())) == 16 * 15


def test_metrics_are_of_the_questions_and_by_hops():
    task = VariableSymbols(hops=3, questions=4)
    batch = task.batch("train", 0, 10**6, 32)
    losses = np.zeros(batch.targets.shape)
    right = task.summarise(task.count(batch.targets, losses, batch))
    assert right["accuracy"] == right["exact_match"] == 1
    assert [right[f"accuracy/hops={h:02d}"] for h in range(4)] == [1] * 4
    wrong = batch.targets.copy()
    wrong[:, : -2 * task.questions] = 0  # what training asks besides is not counted
    assert task.summarise(task.count(wrong, losses, batch))["accuracy"] == 1
    wrong[:, -1] = -1
    metrics = task.summarise(task.count(wrong, losses, batch))
    assert metrics["accuracy"] == 0.75
    assert metrics["exact_match"] == 0


def test_131072_tokens():
    task = VariableSymbols(n=131_072, names=40_000, hops=32)
    batch = task.batch("test", 0, 0, 1)
    assert batch.tokens.shape == (1, 131_072)
    given, asked, _ = read(task.show(batch.tokens[0]))
    assert len(given) == 32_763
    assert batch.targets[0, asked[0][0]] == int(follow(given, asked[0][1])[0][1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 20}, "n=20: expected an integer at least 23"),
        ({"min_n": 200}, "min_n=200: expected an integer in 23..128"),
        ({"noise": 1.0}, r"noise=1.0: expected a share in \[0, 1\)"),
        ({"noise": -0.1}, "noise=-0.1"),
        ({"noise_kind": "words"}, "noise_kind='words': expected one of filler, symbols"),
        ({"statements": 38}, r"statements=38: expected an integer in 2\.\.27"),
        ({"names": 20}, "names=20: a text of n=128 tokens gives 27 names"),
        ({"names": 8}, "names=8: expected an integer at least 16"),
        ({"min_hops": 9}, r"min_hops=9: expected an integer in 0\.\.8"),
        ({"chains": 0}, "chains=0"),
        ({"values": 1}, "values=1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        VariableSymbols(**options)
