"""Borders that chains cross, against chains written out by hand; padding that changes no story."""

import numpy as np
import pytest

from chacal.tasks import Boxes, CountedBoxes, PaddedBoxes
from chacal.tasks.base import IGNORE, Batch
from chacal.tasks.borders import crossed

TASK = Boxes(boxes=3, objects=10, updates=4)


@pytest.mark.parametrize(
    ("positions", "block_size", "expected"),
    [
        ([14, 10, 6, 2], 4, (3, 3)),
        ([14, 10, 6, 2], 8, (1, 1)),
        ([14, 10, 6, 2], 16, (0, 0)),
        ([14, 10, 6, 2], 1, (12, 3)),
        ([15, 1], 4, (3, 1)),  # one hop over three borders
        ([9], 4, (0, 0)),  # a box that no sentence names
        ([8, 7], 8, (1, 1)),
    ],
)
def test_crossed_by_hand(positions, block_size, expected):
    assert crossed(positions, block_size) == expected


def batch_of(story: str, answer: list[str], n: int) -> Batch:
    """One story as the task would make it, padded to n tokens."""
    ids = TASK.tokenizer.ids
    tokens = TASK.encode_story(story)
    start = len(tokens)
    tokens += [ids[piece] for piece in answer]
    padded = np.zeros((1, n), dtype=np.int64)
    targets = np.full((1, n), IGNORE)
    padded[0, : len(tokens) - 1] = tokens[:-1]
    targets[0, start - 1 : len(tokens) - 1] = tokens[start:]
    return Batch(padded, targets, {"updates": np.array([2])})


def test_a_story_counts_by_its_worst_chain():
    # tokens:  0 start; 1-4 "The camera is in Box A."; 5-8 contents A -> B; 9-12 contents B -> C;
    # the answer's boxes: 13 " Box A", 15 ". Box B", 17 ". Box C"
    story = (
        "The camera is in Box A. Move the contents of Box A to Box B. "
        "Move the contents of Box B to Box C."
    )
    answer = [" Box A", " is empty", ". Box B", " is empty", ". Box C", " contains the camera", "."]
    batch = batch_of(story, answer, 19)
    # chain of C: 17 -> 12 ("C.") -> 8 ("B.") -> 4 ("A."); of A: 13 -> 6; of B: 15 -> 10
    for divisor, borders, crossings in (
        (1, 0, 0),  # one block of 19
        (2, 1, 1),  # blocks of 9: 17, 12 | 8, 4
        (4, 3, 3),  # blocks of 4: 17 is in 4, 12 in 3, 8 in 2, 4 in 1
        (3, 2, 2),  # blocks of 6: 17, 12 in 2; 8 in 1; 4 in 0
    ):
        counted = CountedBoxes.of(TASK, divisor)
        found = counted.crossings(batch)
        assert [int(x[0]) for x in found] == [borders, crossings], divisor
        totals = counted.count(batch.targets, np.zeros(batch.targets.shape), batch)
        assert totals[f"exact_match/borders={borders:02d}"] == (1.0, 1.0)
        assert totals[f"exact_match/crossings={crossings:02d}"] == (1.0, 1.0)
        wrong = np.where(batch.targets == IGNORE, batch.targets, 0)
        totals = counted.count(wrong, np.zeros(batch.targets.shape), batch)
        assert totals[f"exact_match/borders={borders:02d}"] == (0.0, 1.0)


def test_every_story_falls_into_one_group():
    counted = CountedBoxes.of(TASK, 8)
    batch = counted.batch("test", 0, 0, 64)
    totals = counted.count(batch.targets, np.zeros(batch.targets.shape), batch)
    for label in ("exact_match/borders", "exact_match/crossings", "exact_match/updates"):
        assert sum(n for name, (_, n) in totals.items() if name.startswith(label)) == 64


def test_padding_changes_nothing_but_n():
    plain = TASK.batch("valid", 3, 5, 16)
    padded = PaddedBoxes(boxes=3, objects=10, updates=4, pad=99)
    batch = padded.batch("valid", 3, 5, 16)
    n = plain.tokens.shape[1]
    assert batch.tokens.shape == (16, 99)
    assert batch.tokens[:, :n].tobytes() == plain.tokens.tobytes()
    assert (batch.tokens[:, n:] == 0).all()
    assert (batch.targets[:, n:] == IGNORE).all()
    assert padded.length == 99
    zeros = np.zeros(batch.targets.shape)
    ours = padded.count(batch.targets, zeros, batch)
    assert ours == TASK.count(plain.targets, zeros[:, :n], plain)
    same = PaddedBoxes(boxes=3, objects=10, updates=4)
    assert same.batch("valid", 3, 5, 16).tokens.tobytes() == plain.tokens.tobytes()
    with pytest.raises(ValueError, match="pad=-1"):
        PaddedBoxes(pad=-1)


def test_stories_that_fit_in_a_block_cross_nothing():
    long = CountedBoxes.of(PaddedBoxes(boxes=3, objects=10, updates=4, pad=3 * TASK.length), 3)
    borders, crossings = long.crossings(long.batch("test", 0, 0, 64))
    assert not borders.any()
    assert not crossings.any()
    short = CountedBoxes.of(TASK, 3)
    assert short.crossings(short.batch("test", 0, 0, 64))[0].max() > 0
