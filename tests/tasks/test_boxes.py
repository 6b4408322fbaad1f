"""Generated Boxes stories, re-told by a simulator that reads nothing but the English text."""

import dataclasses
import hashlib
import re

import numpy as np
import pytest

from chacal.tasks import IGNORE, OBJECTS, Batch, Boxes, parse_story, simulate
from chacal.tasks.base import stream, uniforms

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
    for split in ("train", "valid", "test"):
        batch = task.batch(split, 4, 2, 12)
        for i, text in enumerate(full_texts(task, batch)):
            assert retell(text, task.boxes, task.max_items) == (batch.info["updates"][i], text)


def test_only_the_answer_is_asked_and_targets_are_the_next_token():
    task = Boxes()
    batch = task.batch("train", 0, 0, 30)
    for tokens, targets, text in zip(
        batch.tokens, batch.targets, full_texts(task, batch), strict=True
    ):
        asked = targets[targets != IGNORE]
        story, answer = re.fullmatch(r"(.*?\.) (Box A .*)", text).groups()
        assert task.tokenizer.decode(asked) == answer
        start = len(task.tokenizer.encode(story))
        assert (targets[: start - 1] == IGNORE).all()
        row = [*tokens[tokens != 0], asked[-1]]
        assert (row[start:] == asked).all()
        assert task.encode_story(story) == row[:start]


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
    one = Boxes(boxes=7, objects=100, max_items=1, updates=10, **shares)
    three = Boxes(boxes=7, objects=100, max_items=3, min_updates=31, updates=31, **shares)
    assert (
        digest(one.batch("train", 0, 0, 4))
        == "3b3bf28d080704c44127c133b39784432cb6a6b9f3db4cd4def00080fe5ecace"
    )
    assert (
        digest(three.batch("test", 5, 6, 4))
        == "44c4770b5c67234b9a60d1b0d33384d9607c8afe86470caec87620438ff91b2b"
    )
    variants = [("train", 0, 0), ("train", 0, 1), ("train", 1, 0), ("valid", 0, 0)]
    assert len({digest(Boxes().batch(*args, 4)) for args in variants}) == 4


def test_updates_cover_their_range_and_nothing_else():
    task = Boxes(min_updates=2, updates=5)
    assert set(task.batch("train", 0, 0, 100).info["updates"]) == {2, 3, 4, 5}
    exactly = dataclasses.replace(task, min_updates=5)
    assert set(exactly.batch("test", 0, 0, 20).info["updates"]) == {5}


def test_curriculum_raises_the_most_updates_in_training_only():
    task = Boxes(updates=9, curriculum_start=2, curriculum_steps=10)
    most = [task.batch("train", 0, step, 150).info["updates"].max() for step in (0, 9, 10, 35, 999)]
    assert most == [2, 2, 3, 5, 9]
    assert task.batch("valid", 0, 0, 150).info["updates"].max() == 9
    shorter = task.batch("train", 0, 0, 50).tokens.shape[1]
    assert shorter < task.batch("train", 0, 999, 50).tokens.shape[1]


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
    for i in range(18):
        source, target = ("A", "G") if i % 2 == 0 else ("G", "A")
        worst.append(f"Move the {OBJECTS[0]} from Box {source} to Box {target}.")
    story = parse_story(" ".join(worst), 7)
    state = simulate(story, 7, max_items=3)
    assert sum(map(len, state.values())) == 20
    names = [f"Box {b} contains the " + " and the ".join(state[b]) + "." for b in state]
    tokens = THREE.tokenizer.encode(" ".join(worst + names))
    assert len(tokens) <= THREE.length + 1


@pytest.mark.parametrize("task", [Boxes(), THREE, Boxes(boxes=2, updates=7, min_updates=7)])
def test_no_batch_is_longer_than_length(task):
    sizes = [task.batch("train", seed, 0, 50).tokens.shape[1] for seed in range(4)]
    assert max(sizes) <= task.length


def test_tokenizer_round_trips_every_story_and_keeps_updates_short():
    for task in (Boxes(), THREE):
        for text in full_texts(task, task.batch("valid", 1, 1, 40)):
            ids = task.tokenizer.encode(text)
            assert task.tokenizer.decode(ids) == text
            for sentence in re.findall(r"(?:Put|Remove|Move) [^.]*\.", text):
                assert len(task.tokenizer.encode(sentence)) == 3 + ("from Box" in sentence) * (
                    "to Box" in sentence
                )
    assert len(Boxes().tokenizer.encode("Move the contents of Box C to Box A.")) == 3


def test_metrics_of_known_mistakes():
    task = Boxes(boxes=3, min_updates=2, updates=3)
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
    task = Boxes(boxes=4, updates=3)
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
        ({"curriculum_steps": -1}, "curriculum_steps=-1"),
        ({"remove_share": 0, "move_share": 0, "contents_share": 0}, "come to a stop"),
        ({"remove_share": 0, "move_share": 0, "max_items": 2}, "come to a stop"),
    ],
)
def test_bad_values_are_named(config, told):
    with pytest.raises(ValueError, match="expected") as caught:
        Boxes(**config)
    assert told in str(caught.value)
