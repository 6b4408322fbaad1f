"""Generated Boxes stories, re-told by a simulator that reads nothing but the English text."""

import dataclasses
import hashlib
import re

import numpy as np
import pytest

from chacal.tasks import IGNORE, OBJECTS, Batch, Boxes, parse_story, simulate
from chacal.tasks.base import stream, uniforms
from chacal.tasks.phrases import PAD, START

LATE = 10**6  # a training step at which every curriculum has reached its end
THREE = Boxes(max_items=3, updates=31, min_updates=31)


def digest(batch: Batch) -> str:
    return hashlib.sha256(batch.tokens.tobytes() + batch.targets.tobytes()).hexdigest()


def full_texts(task: Boxes, batch: Batch) -> list[str]:
    """Story and answer of each example; the inputs lack only the last target."""
    return [
        task.tokenizer.decode([*tokens, targets[targets != IGNORE][-1]])
        for tokens, targets in zip(batch.tokens, batch.targets, strict=True)
    ]


def retell(text: str, boxes: int, room: int) -> tuple[int, str]:
    """A story's updates, and its text with the answer it has to have.

    Things know their place and when they came, the opposite of boxes that know their things.
    """
    place: dict[str, tuple[str, int]] = {}
    story = re.split(r"(?<=\.) ", text)
    updates = 0
    for clock, told in enumerate(story):
        words = told.rstrip(".").split(" ")
        if words[0] == "Box":
            break
        updates += words[0] != "The"
        if words[:3] == ["Move", "the", "contents"]:
            moved = [t for t, (box, _) in place.items() if box == words[5]]
            assert moved, told
            assert words[5] != words[-1], told
            in_order = sorted(moved, key=lambda t: place[t][1])
            for i, thing in enumerate(in_order):
                place[thing] = (words[-1], clock * 100 + i)
        else:
            thing = words[1] if words[0] == "The" else words[2]
            if words[0] in ("The", "Put"):
                assert thing not in place, told
            else:
                assert place[thing][0] == words[5], told
            if words[0] == "Remove":
                del place[thing]
            else:
                assert words[0] != "Move" or words[5] != words[-1], told
                place[thing] = (words[-1], clock * 100)
        held = [box for box, _ in place.values()]
        assert all(held.count(box) <= room for box in held), told
    answer = []
    for box in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:boxes]:
        inside = sorted((when, thing) for thing, (where, when) in place.items() if where == box)
        things = " and ".join(f"the {thing}" for _, thing in inside)
        answer.append(f"Box {box} contains {things}." if inside else f"Box {box} is empty.")
    return updates, " ".join([*story[:clock], *answer])


@pytest.mark.parametrize(
    "task",
    [
        Boxes(),
        THREE,
        Boxes(boxes=2, objects=50, updates=12, max_items=2),
        Boxes(boxes=3, objects=4, updates=20, move_share=0, contents_share=0),
        Boxes(updates=20, put_share=0, remove_share=2, contents_share=1, max_items=3),
        Boxes(updates=40, put_share=5, remove_share=0, boxes=4, max_items=2),
        Boxes(updates=40, put_share=0, remove_share=0, move_share=0, boxes=3, max_items=3),
        Boxes(updates=40, put_share=0, remove_share=1, move_share=0, boxes=3, max_items=3),
        Boxes(updates=40, put_share=0, remove_share=0, contents_share=0, boxes=2),
    ],
    ids=lambda task: task.describe(),
)
def test_answers_follow_from_the_stories(task):
    for split, step in (("train", 2), ("train", LATE), ("valid", 2), ("test", 2)):
        batch = task.batch(split, 4, step, 12)
        for i, text in enumerate(full_texts(task, batch)):
            assert retell(text, task.boxes, task.max_items) == (batch.info["updates"][i], text)


@pytest.mark.parametrize("step", [0, LATE])
@pytest.mark.parametrize("task", [Boxes(), THREE], ids=["one", "three"])
def test_only_the_answer_is_asked_and_targets_are_the_next_token(task, step):
    batch = task.batch("train", 0, step, 30)
    for tokens, targets, text in zip(
        batch.tokens, batch.targets, full_texts(task, batch), strict=True
    ):
        asked = targets[targets != IGNORE]
        story, answer = re.fullmatch(r"(.*?\.) (Box A .*)", text).groups()
        assert task.tokenizer.decode(asked) == answer
        start = 1 + len(task.tokenizer.encode(story))
        assert (targets[: start - 1] == IGNORE).all()
        row = [*tokens[tokens != 0], asked[-1]]
        assert row == [1, *task.tokenizer.encode(text)]
        assert (row[start:] == asked).all()
        assert (targets[start - 1 : len(row) - 1] == asked).all()
        assert (tokens[: len(row) - 1] == row[:-1]).all()
        assert task.encode_story(story) == row[:start]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_every_sequence_starts_with_a_start_that_is_never_a_target(split):
    for task in (Boxes(), THREE, Boxes(boxes=2, updates=0)):
        start = task.tokenizer.ids[START]
        assert (task.tokenizer.ids[PAD], start) == (0, 1)
        batch = task.batch(split, 0, LATE, 40)
        assert ((batch.tokens == start).sum(1) == 1).all()
        assert (batch.tokens[:, 0] == start).all()
        assert (batch.targets[:, 0] == IGNORE).all()
        assert not np.isin(batch.targets, [0, start]).any()
        assert task.show(batch.tokens[0])[0] == "<start>"


def test_tokens_and_targets_of_a_told_batch_by_hand():
    task = Boxes(boxes=3, objects=20, min_updates=2, updates=2, max_items=2)
    batch = task.batch("valid", 0, 8, 1)
    story = [
        *("<start>", " The", " book", " is in Box", " C."),
        *(" Move the contents of Box", " C", " to Box", " A."),
        *(" Put the", " ring", " into Box", " A."),
    ]
    answer = [
        *(" Box A", " contains the book", " and the ring", ". Box B", " is empty"),
        *(". Box C", " is empty", "."),
    ]
    assert task.show(batch.tokens[0]) == story + answer[:-1]
    asked = ["-" if t == IGNORE else task.tokenizer.phrases[t] for t in batch.targets[0]]
    assert asked == ["-"] * (len(story) - 1) + answer


def test_splits_share_no_initial_state():
    task = Boxes(boxes=3, objects=20, updates=0, max_items=2)
    seen = {}
    for split in ("train", "valid", "test"):
        texts = full_texts(task, task.batch(split, 0, 0, 400))
        seen[split] = {frozenset(re.findall(r"The (\w+) is in Box (\w)", t)) for t in texts}
        assert len(seen[split]) > 50
    assert not seen["train"] & seen["valid"]
    assert not seen["train"] & seen["test"]
    assert not seen["valid"] & seen["test"]


def test_same_arguments_same_bytes_and_others_differ():
    shares = {"put_share": 1, "remove_share": 1, "move_share": 1, "contents_share": 3}
    rising = {"curriculum_start": 0, "curriculum_hold": 200, "curriculum_steps": 60}
    short = Boxes(boxes=7, objects=100, max_items=1, updates=10, **shares, **rising)
    one = dataclasses.replace(short, curriculum_steps=0)
    three = Boxes(boxes=7, objects=100, max_items=3, min_updates=31, updates=31, **shares)
    assert (
        digest(one.batch("train", 0, 0, 4))
        == "784fc44d2354e4fbe13e860b0678ef19cb07d68a67f63f7f7d7a00c747556729"
    )
    assert (
        digest(three.batch("test", 5, 6, 4))
        == "d5cd94934cbc63a2af530674c836e604d29e253e39d062132fcca02ebd4291a0"
    )
    assert (
        digest(short.batch("train", 0, 500, 4))
        == "65d054e252b26a44517c48331ddc699e15b669765bff8134d3ab8686a44aeb26"
    )
    variants = [("train", 0, 0), ("train", 0, 1), ("train", 1, 0), ("valid", 0, 0)]
    assert len({digest(one.batch(*args, 4)) for args in variants}) == 4
    assert len({digest(short.batch(*args, 4)) for args in variants}) == 4


def test_updates_cover_their_range_and_nothing_else():
    task = Boxes(min_updates=2, updates=5, curriculum_steps=0)
    assert set(task.batch("train", 0, 0, 100).info["updates"]) == {2, 3, 4, 5}
    exactly = dataclasses.replace(task, min_updates=5)
    assert set(exactly.batch("test", 0, 0, 20).info["updates"]) == {5}


def test_curriculum_raises_the_most_updates_in_training_only():
    task = Boxes(updates=9, curriculum_start=2, curriculum_hold=0, curriculum_steps=10)
    most = [task.batch("train", 0, step, 150).info["updates"].max() for step in (0, 9, 10, 35, 999)]
    assert most == [2, 2, 3, 5, 9]
    assert task.batch("valid", 0, 0, 150).info["updates"].max() == 9
    shorter = task.batch("train", 0, 0, 50).tokens.shape[1]
    assert shorter < task.batch("train", 0, 999, 50).tokens.shape[1]


def test_curriculum_begins_to_rise_when_its_hold_is_over():
    def told(task, split, step):
        return set(task.batch(split, 0, step, 150).info["updates"].tolist())

    task = Boxes(updates=9, curriculum_start=2, curriculum_hold=25, curriculum_steps=10)
    most = {0: 2, 24: 2, 25: 2, 34: 2, 35: 3, 44: 3, 45: 4, 94: 8, 95: 9, 105: 9, LATE: 9}
    for step, reached in most.items():
        assert told(task, "train", step) == set(range(reached + 1)), step
    for split in ("valid", "test"):
        assert told(task, split, 0) == set(range(10))
    no_curriculum = dataclasses.replace(task, curriculum_steps=0)
    assert told(no_curriculum, "train", 0) == set(range(10))
    at_least = dataclasses.replace(task, min_updates=4)
    assert told(at_least, "train", 0) == {4}
    assert told(at_least, "train", 54) == {4}
    assert told(at_least, "train", 55) == {4, 5}


def test_by_default_training_begins_without_updates_and_holds():
    most = {0: 0, 199: 0, 200: 0, 259: 0, 260: 1, 319: 1, 320: 2, 799: 9, 800: 10, LATE: 10}
    for step, reached in most.items():
        assert Boxes().batch("train", 0, step, 150).info["updates"].max() == reached, step
    assert Boxes().batch("valid", 0, 0, 150).info["updates"].max() == 10


def test_shares_decide_which_operations_are_told():
    def told(**shares):
        task = Boxes(updates=30, min_updates=30, **shares)
        text = " ".join(full_texts(task, task.batch("train", 0, 0, 20)))
        names = ("Put the", "Remove the", "Move the contents", r"Move the (?!contents)")
        return [len(re.findall(name, text)) for name in names]

    moves = told(put_share=0, remove_share=0, move_share=0)
    assert moves[2] == 600
    puts, removes, contents, single = told(contents_share=3)
    assert puts + removes + contents + single == 600
    assert contents > 2 * single > 0
    assert puts > 0 < removes


def test_31_updates_take_at_most_200_tokens_in_the_worst_case():
    for task in (Boxes(updates=31), THREE):
        assert task.length + 1 <= 200
    worst = [f"The {OBJECTS[i]} is in Box {b}." for i, b in enumerate("ABCDEFG")]
    worst += [f"Put the {OBJECTS[i]} into Box {b}." for i, b in enumerate("ABCDEFABCDEF", 7)]
    worst += [f"Put the {OBJECTS[19]} into Box G."]
    for i in range(17):
        source, target = ("A", "G") if i % 2 == 0 else ("G", "A")
        worst.append(f"Move the {OBJECTS[0]} from Box {source} to Box {target}.")
    worst += [f"Put the {OBJECTS[20]} into Box A."]
    story = parse_story(" ".join(worst), 7)
    assert [s.kind == "is" for s in story].count(False) == 31
    state = simulate(story, 7, max_items=3)
    assert sum(map(len, state.values())) == 21
    names = [f"Box {b} contains the " + " and the ".join(state[b]) + "." for b in state]
    tokens = THREE.tokenizer.encode(" ".join(worst + names))
    # start, 7 + 31 sentences of 4, 7 names, 21 things, and the period that is only predicted
    assert 1 + len(tokens) == 1 + 4 * 38 + 7 + 21 + 1 == THREE.length + 1


def test_length_is_reached_with_one_item_per_box():
    told = [f"The {OBJECTS[i]} is in Box {b}." for i, b in enumerate("BCDEFG")]
    told += [
        f"Move the contents of Box {'BCDEFGA'[i % 7]} to Box {'ABCDEFG'[i % 7]}." for i in range(31)
    ]
    task = Boxes(updates=31)
    state = simulate(parse_story(" ".join(told), 7), 7, max_items=1)
    told += [
        f"Box {b} contains the {i[0]}." if i else f"Box {b} is empty." for b, i in state.items()
    ]
    # start, 6 + 31 sentences of 4, 7 names with what each holds, and the last period
    tokens = [1, *task.tokenizer.encode(" ".join(told))]
    assert len(tokens) == 1 + 4 * 37 + 14 + 1 == task.length + 1


@pytest.mark.parametrize("task", [Boxes(), THREE, Boxes(boxes=2, updates=7, min_updates=7)])
def test_no_batch_is_longer_than_length(task):
    sizes = [task.batch("train", seed, LATE, 50).tokens.shape[1] for seed in range(4)]
    assert max(sizes) <= task.length


def test_tokenizer_round_trips_every_story_and_every_sentence_is_four_tokens():
    for task in (Boxes(), THREE):
        for text in full_texts(task, task.batch("valid", 1, 1, 40)):
            ids = task.tokenizer.encode(text)
            assert task.tokenizer.decode(ids) == text
            sentences = re.findall(r"(?:The|Put|Remove|Move) [^.]*\.", text)
            cut = [task.tokenizer.encode(sentence) for sentence in sentences]
            assert {len(tokens) for tokens in cut} == {4}
            assert [t for tokens in cut for t in tokens] == ids[: 4 * len(sentences)]
            for sentence, tokens in zip(sentences, cut, strict=True):
                assert task.tokenizer.phrases[tokens[-1]] == sentence[-3:]
    assert len(Boxes().tokenizer.encode("Move the contents of Box C to Box A.")) == 4


def test_metrics_of_known_mistakes():
    task = Boxes(boxes=3, min_updates=2, updates=3, curriculum_steps=0)
    batch = task.batch("train", 0, 1, 3)
    updates = batch.info["updates"].tolist()
    assert sorted(set(updates)) == [2, 3]
    asked = [np.flatnonzero(row != IGNORE) for row in batch.targets]
    guess = batch.targets.copy()
    guess[batch.targets == IGNORE] = 5  # what is said in the story does not matter
    guess[0, asked[0][-1]] = 0  # the final period: the last box is wrong
    guess[1, asked[1][0]] = 0  # " Box A": no box's state is wrong, the answer is
    got = task.summarise(task.count(guess, np.where(batch.targets != IGNORE, 2.0, 0.0), batch))
    total = sum(map(len, asked))
    assert got["loss"] == 2.0
    assert got["accuracy"] == (total - 2) / total
    assert got["box_accuracy"] == 8 / 9
    assert got["exact_match"] == 1 / 3
    right = [False, False, True]
    for u in (2, 3):
        mine = [r for r, updates_of in zip(right, updates, strict=True) if updates_of == u]
        assert got[f"exact_match/updates={u:02d}"] == sum(mine) / len(mine)


def test_box_accuracy_puts_each_mistake_in_its_box():
    task = Boxes(boxes=4, updates=3, curriculum_steps=0)
    batch = task.batch("train", 0, 0, 1)
    names = [i for i, t in enumerate(task.show(batch.tokens[0])) if re.match(r"\.? Box", t)]
    for wrong in range(3):
        guess = batch.targets.copy()
        guess[0, names[wrong] : names[wrong + 1]] = 0
        assert task.count(guess, guess * 0.0, batch)["box_accuracy"] == (3.0, 4.0)


def test_story_is_what_batches_are_made_of():
    task = Boxes()
    story, state = task.story(uniforms(stream("any")), "valid", 6)
    assert simulate(story, 7, 1) == state
    assert [s.kind for s in story].count("is") == len(story) - 6


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"boxes": 27}, "boxes=27: expected an integer in 2..26"),
        ({"boxes": 1}, "boxes=1"),
        ({"objects": 1000}, "objects=1000"),
        ({"objects": 1, "boxes": 2}, "objects=1 with boxes=2"),
        ({"max_items": 0}, "max_items=0"),
        ({"updates": 3, "min_updates": 4}, "min_updates=4: expected an integer in 0..3"),
        ({"updates": "3"}, "updates='3'"),
        ({"put_share": -1.0}, "put_share=-1.0"),
        ({"move_share": float("nan")}, "move_share=nan"),
        ({"curriculum_start": -1}, "curriculum_start=-1: expected an integer at least 0"),
        ({"curriculum_hold": -1}, "curriculum_hold=-1: expected an integer at least 0"),
        ({"curriculum_hold": 2.0}, "curriculum_hold=2.0"),
        ({"curriculum_steps": -1}, "curriculum_steps=-1"),
        ({"remove_share": 0, "move_share": 0, "contents_share": 0}, "come to a stop"),
        ({"remove_share": 0, "move_share": 0, "max_items": 2}, "come to a stop"),
    ],
)
def test_bad_values_are_named(config, told):
    with pytest.raises(ValueError, match="expected") as caught:
        Boxes(**config)
    assert told in str(caught.value)
