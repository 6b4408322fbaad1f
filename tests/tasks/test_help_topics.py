"""The text of help(): real, whole, the same each time, with parts of its own for every split."""

import numpy as np
import pytest

from chacal.tasks import IGNORE, Language


def test_windows_are_text_and_targets_the_next_bytes():
    task = Language(test="help", window=64)
    batch = task.batch("train", 0, 0, 4)
    assert (batch.targets[:, :-1] == batch.tokens[:, 1:]).all()
    assert task.batch("train", 0, 0, 4).tokens.tobytes() == batch.tokens.tobytes()
    text = "".join(chr(t) for t in task.batch("valid", 0, 0, 64).tokens.ravel())
    assert " the " in text


def test_one_pass_asks_for_every_byte_but_the_first():
    task = Language(test="help", window=512)
    for split in ("valid", "test"):
        asked = [
            int((task.batch(split, 0, i, 16).targets != IGNORE).sum())
            for i in range(task.batches(split, 16))
        ]
        assert sum(asked) == len(task.corpus(split).tokens) - 1 > 10_000
    sizes = [len(task.corpus(split).tokens) for split in ("train", "valid", "test")]
    assert sizes[0] > sum(sizes[1:])


def test_metrics_and_description():
    task = Language(test="help", window=32)
    batch = task.batch("test", 0, 0, 2)
    losses = np.full(batch.targets.shape, np.log(2.0))
    metrics = task.summarise(task.count(batch.targets, losses, batch))
    assert metrics["perplexity"] == pytest.approx(2.0)
    assert metrics["bits_per_byte"] == pytest.approx(1.0)
    assert task.describe().startswith("language: Python's help()")
    with pytest.raises(ValueError, match="window=0"):
        Language(test="help", window=0)
