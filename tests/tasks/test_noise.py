"""Noise: nothing to learn, and the figures that say so."""

import math

import numpy as np
import pytest

from chacal.tasks import Noise


def test_targets_are_the_next_tokens():
    batch = Noise(window=16).batch("train", 0, 0, 8)
    assert batch.tokens.shape == batch.targets.shape == (8, 16)
    assert (batch.targets[:, :-1] == batch.tokens[:, 1:]).all()
    again = Noise(window=16).batch("train", 0, 0, 8)
    assert again.tokens.tobytes() == batch.tokens.tobytes()
    assert Noise(window=16).batch("valid", 0, 0, 8).tokens.tobytes() != batch.tokens.tobytes()


def test_symbols_are_as_likely_as_each_other_and_do_not_depend_on_the_past():
    batch = Noise(alphabet=4, window=64).batch("test", 0, 0, 512)
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (batch.tokens.ravel(), batch.targets.ravel()), 1)
    # 32,768 draws over 16 pairs: one in 16 each, to five standard deviations
    assert abs(pairs / pairs.sum() - 1 / 16).max() < 5 * math.sqrt(1 / 16 / pairs.sum())


def test_equal_chances_cost_log_v_and_nothing_lies_below():
    task = Noise(alphabet=4, window=8)
    batch = task.batch("test", 0, 0, 4)
    metrics = task.summarise(
        task.count(batch.targets, np.full(batch.targets.shape, math.log(4)), batch)
    )
    assert metrics["loss"] == pytest.approx(math.log(4))
    assert metrics["below_floor"] == pytest.approx(0)
    assert metrics["accuracy"] == 1
    knowing = task.summarise(task.count(batch.targets, np.zeros(batch.targets.shape), batch))
    assert knowing["below_floor"] == pytest.approx(math.log(4))


def test_bad_fields_are_named():
    with pytest.raises(ValueError, match="alphabet=1"):
        Noise(alphabet=1)
    with pytest.raises(ValueError, match="window=0"):
        Noise(window=0)
