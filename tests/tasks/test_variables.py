"""Chains of assignments: an independent reader derives every answer, and every count of hops."""

import re

import numpy as np
import pytest

from chacal.tasks import IGNORE, SPLITS, Variables
from chacal.tasks.base import group_of

FORMS = {
    "plain": {},
    "untold": {"told": False},
    "noise": {"noise": 1.5},
    "shuffled": {"order": "shuffled"},
    "backward": {"order": "backward", "noise": 0.3},
    "shallow": {"hops": 2},
    "lookups": {"hops": 0, "chains": 1},
}


@pytest.fixture(scope="module")
def word_tokenizer(tmp_path_factory):
    """A byte-level BPE that has learned some words, so that they are one token."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    words = [a + b + c for a in "bdfgk" for b in "aeiou" for c in ("rl", "st", "n")]
    colours = "red blue green black white brown pink gold is"
    text = [f" {word} = {word}" for word in words] + [colours] * 2 + [f" {colours}"] * 2
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(text * 3, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


def read(text):
    """What a text says: assignments, and the asked names with their answers."""
    told, _, questions = text.partition("\n\n")
    given = dict(re.findall(r"^ (\w+) = (\w+)$", told, re.M))
    return given, re.findall(r"^ (\w+) is ?(\w*)$", questions, re.M)


def follow(given, name):
    """The names on the way to a value, and the value."""
    way = [name]
    while given[way[-1]] in given:
        way.append(given[way[-1]])
    return way, given[way[-1]]


def texts(task, split="valid", size=24, step=0):
    return [task.tell(world)[0] for world in task.worlds(split, 0, step, size)]


@pytest.mark.parametrize("form", FORMS)
def test_every_answer_is_what_the_text_says(form):
    task = Variables(statements=14, min_statements=4, pool=60, **{"chains": 3, **FORMS[form]})
    batch = task.batch("valid", 0, 0, 24)
    for row, text in enumerate(texts(task)):
        given, questions = read(text)
        assert len(given) == 14
        assert len(questions) == 8
        asked = batch.targets[row] != IGNORE
        said = [task.show([t])[0].strip() for t in batch.targets[row][asked]]
        before: set[str] = set()
        for i, (name, answer) in enumerate(questions):
            way, value = follow(given, name)
            assert said[i] == value
            assert answer == (value if task.told else "")
            hops = next((n for n, step in enumerate(way) if step in before), len(way) - 1)
            assert batch.info["hops"][row, i] == hops
            before |= {name} if task.told else set()
            assert task.hops is None or len(way) - 1 <= task.hops
        # at the place of a question stands " is", and its name before it
        places = np.flatnonzero(asked)
        assert {task.show([batch.tokens[row, at]])[0] for at in places} == {" is"}
        names = [task.show([batch.tokens[row, at - 1]])[0].strip() for at in places]
        assert names == [name for name, _ in questions]
    assert batch.tokens.shape[1] <= task.length


def test_the_order_of_statements_is_as_asked():
    for order, right in (("forward", 1.0), ("backward", 0.0)):
        task = Variables(statements=20, pool=60, order=order)
        places = []
        for text in texts(task):
            given, _ = read(text)
            at = {name: i for i, name in enumerate(given)}
            places += [at[source] < at[name] for name, source in given.items() if source in at]
        assert np.mean(places) == right
    shuffled = texts(Variables(statements=20, pool=60, order="shuffled"))
    orders = [list(read(text)[0]) for text in shuffled]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_noise_stands_anywhere_and_says_nothing():
    task = Variables(statements=10, min_statements=4, pool=60, noise=2.0)
    lines = [text.partition("\n\n")[0].split("\n") for text in texts(task)]
    noisy = [[" = " not in line for line in text] for text in lines]
    assert {sum(row) for row in noisy} == {20}
    assert {row[0] for row in noisy} == {row[-1] for row in noisy} == {True, False}


def test_one_seed_the_same_bytes_and_no_text_in_two_splits():
    task = Variables(statements=5, min_statements=3, chains=2, pool=9, questions=2)
    again = Variables(statements=5, min_statements=3, chains=2, pool=9, questions=2)
    seen = {}
    for split in SPLITS:
        batch = task.batch(split, 3, 7, 64)
        assert batch.tokens.tobytes() == again.batch(split, 3, 7, 64).tokens.tobytes()
        assert batch.tokens.tobytes() != task.batch(split, 4, 7, 64).tokens.tobytes()
        told = [text.partition("\n\n")[0] for text in texts(task, split, 300, step=10**6)]
        seen[split] = set(told)
    assert not seen["train"] & seen["valid"]
    assert not seen["train"] & seen["test"]
    assert not seen["valid"] & seen["test"]


def test_training_texts_grow_and_tests_do_not():
    task = Variables(statements=12, min_statements=4, pool=60, curriculum_steps=3)

    def counts(split, step):
        return {len(world.statements) for world in task.worlds(split, 0, step, 64)}

    assert counts("train", 0) == {4, 5}
    assert counts("train", 6) == {4, 5, 6, 7}
    assert counts("train", 999) == set(range(4, 13))
    assert counts("valid", 0) == counts("test", 0) == {12}


def test_scores_are_of_whole_answers_and_by_hops():
    task = Variables(statements=14, pool=60)
    batch = task.batch("test", 0, 0, 16)
    losses = np.where(batch.targets != IGNORE, 2.0, 0.0)
    got = task.summarise(task.count(batch.targets, losses, batch))
    assert (got["loss"], got["accuracy"], got["exact_match"]) == (2.0, 1.0, 1.0)
    groups = {name: group_of(name) for name in got if group_of(name)}
    assert {g.metric for g in groups.values()} == {"exact_match"}
    assert {g.at for g in groups.values()} == set(batch.info["hops"].ravel().tolist())
    # wrong where there is more than one hop
    row, place = np.nonzero(batch.targets != IGNORE)
    deep = batch.info["hops"][row, batch.info["parts"][row, place]] > 1
    guesses = batch.targets.copy()
    guesses[row[deep], place[deep]] = 0
    got = task.summarise(task.count(guesses, losses, batch))
    assert {got[name] for name, g in groups.items() if g.at <= 1} == {1.0}
    assert {got[name] for name, g in groups.items() if g.at > 1} == {0.0}
    assert got["exact_match"] == pytest.approx(1 - deep.mean())


@pytest.mark.parametrize("names", ["words", "pairs", "letters"])
def test_a_tokenizer_cuts_the_same_world(word_tokenizer, names):
    task = Variables(
        statements=12, min_statements=4, pool=49, names=names, tokenizer=word_tokenizer
    )
    batch = task.batch("valid", 0, 0, 8)
    for row, text in enumerate(texts(task, size=8)):
        given, questions = read(text)
        whole = "".join(task.show(batch.tokens[row]))
        assert whole.startswith(text[: text.rindex(" is") + 3])
        parts = batch.info["parts"][row]
        for i, (name, answer) in enumerate(questions):
            assert "".join(task.show(batch.targets[row][parts == i])) == f" {answer}"
            assert follow(given, name)[1] == answer
    if names == "words":
        one = task.show(batch.tokens[0])[0]
        assert re.fullmatch(r" [a-z]{3,6}", one)
    assert batch.tokens.shape[1] <= task.length


def test_an_answer_of_several_tokens_must_stand_in_the_text(byte_tokenizer):
    task = Variables(names="letters", tokenizer=byte_tokenizer, told=False)
    with pytest.raises(ValueError, match=r"' \w+' is \d tokens.*told=True"):
        task.batch("train", 0, 0, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chains": 9}, r"chains=9: expected an integer in 1\.\.8"),
        ({"statements": 2}, "statements=2: expected an integer at least 3"),
        ({"order": "sorted"}, "order='sorted': expected one of forward, backward, shuffled"),
        ({"names": "pairs"}, "names='pairs': expected a tokenizer"),
        ({"pool": 20}, "20 names for 36 statements"),
        ({"noise": -1.0}, "noise=-1.0: expected a finite number"),
    ],
)
def test_what_cannot_be_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Variables(**settings)


def test_too_few_words_in_a_tokenizer_are_told(byte_tokenizer):
    task = Variables(tokenizer=byte_tokenizer)
    with pytest.raises(ValueError, match=r"has 0 words that are one token; .* names=letters"):
        task.batch("train", 0, 0, 2)
