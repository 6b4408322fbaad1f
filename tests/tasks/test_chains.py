"""Chains and multi-property chains against simulators that follow one pointer at a time."""

import hashlib

import numpy as np
import pytest

from chacal.tasks import IGNORE, Batch, Chains, Properties

CHAINS = Chains(blocks=5, block_size=4)


def digest(batch: Batch) -> str:
    return hashlib.sha256(batch.tokens.tobytes() + batch.targets.tobytes()).hexdigest()


def end_of_chain(symbols: list[int], width: int, position: int) -> int:
    """The value a position leads to, by walking (position = block * width + offset)."""
    block, offset = divmod(position, width)
    while block > 0:
        offset = symbols[block * width + offset]
        block -= 1
    return symbols[offset] - width


@pytest.mark.parametrize("task", [CHAINS, Chains(), Chains(blocks=7, block_size=2)])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_every_label_is_the_end_of_its_chain(task, split):
    batch = task.batch(split, 3, 1, 5)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        assert len(tokens) == task.length
        walked = [end_of_chain(tokens, task.block_size, i) for i in range(len(tokens))]
        assert targets == walked


def test_block_zero_holds_all_values_and_later_blocks_all_indices():
    task = CHAINS
    blocks = np.sort(task.batch("train", 0, 0, 20).tokens.reshape(20, 5, 4), axis=-1)
    assert (blocks[:, 0] == [4, 5, 6, 7]).all()
    assert (blocks[:, 1:] == [0, 1, 2, 3]).all()


@pytest.mark.parametrize("layout", ["stacked", "interleaved"])
def test_properties_follow_their_own_chains(layout):
    task = Properties(properties=3, blocks=5, block_size=4, layout=layout)
    batch = task.batch("test", 1, 2, 6)
    n, p, s = 20, 3, 4
    assert batch.tokens.shape == ((6, n, p) if layout == "stacked" else (6, n * p))
    different = 0
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        for r in range(p):
            mine = tokens.ravel()[r::p] - 2 * s * r
            assert 0 <= mine.min() <= mine.max() < 2 * s
            walked = [end_of_chain(mine.tolist(), s, i) for i in range(n)]
            assert targets.ravel()[r::p].tolist() == walked
        different += int((tokens.ravel()[0::p] != tokens.ravel()[1::p] - 2 * s).sum())
    assert different > 6 * n / 2


def test_one_property_is_plain_chains_byte_for_byte():
    plain = CHAINS.batch("train", 7, 9, 8)
    stacked = Properties(properties=1, blocks=5, block_size=4).batch("train", 7, 9, 8)
    assert stacked.tokens.shape == plain.tokens.shape
    assert stacked.tokens.tobytes() == plain.tokens.tobytes()
    assert stacked.targets.tobytes() == plain.targets.tobytes()


def test_interleaving_only_serialises():
    stacked = Properties(properties=2, blocks=5, block_size=4)
    flat = Properties(properties=2, blocks=5, block_size=4, layout="interleaved")
    a, b = stacked.batch("train", 0, 0, 3), flat.batch("train", 0, 0, 3)
    assert a.tokens.reshape(3, -1).tobytes() == b.tokens.tobytes()
    assert (stacked.symbols, stacked.period, stacked.length) == (2, 4, 20)
    assert (flat.symbols, flat.period, flat.length) == (1, 8, 40)


def test_same_arguments_same_bytes_and_others_differ():
    assert (
        digest(CHAINS.batch("train", 0, 0, 4))
        == "a8e44bf35548216172f6b665a55e448d4c2fb97f9bf187d707ad2a69fc9065ff"
    )
    task = Properties(properties=2, blocks=5, block_size=4)
    assert (
        digest(task.batch("valid", 5, 6, 4))
        == "15712ed3c3dd5942bfe87adfc5869cfa5974379731b3b463d3c12725178fb377"
    )
    variants = [("train", 0, 0), ("train", 0, 1), ("train", 1, 0), ("valid", 0, 0)]
    assert len({digest(CHAINS.batch(*args, 4)) for args in variants}) == 4


def test_splits_share_no_first_two_blocks():
    seen = {}
    for split in ("train", "valid", "test"):
        rows = [CHAINS.batch(split, seed, 0, 300).tokens[:, :8] for seed in (0, 1)]
        seen[split] = {row.tobytes() for row in np.concatenate(rows)}
        assert len(seen[split]) > 50
    assert not seen["train"] & seen["valid"]
    assert not seen["train"] & seen["test"]
    assert not seen["valid"] & seen["test"]


def test_metrics_of_known_mistakes():
    batch = CHAINS.batch("train", 0, 0, 2)
    guess = batch.targets.copy()
    guess[0, 19] = (guess[0, 19] + 1) % 4  # block 4, one of 8 targets
    guess[0, 4] = (guess[0, 4] + 1) % 4  # block 1
    losses = np.full(guess.shape, 0.5)
    got = CHAINS.summarise(CHAINS.count(guess, losses, batch))
    assert got == {
        "loss": 0.5,
        "accuracy": 38 / 40,
        "exact_match": 0.5,
        "accuracy/depth=00": 1.0,
        "accuracy/depth=01": 7 / 8,
        "accuracy/depth=02": 1.0,
        "accuracy/depth=03": 1.0,
        "accuracy/depth=04": 7 / 8,
    }


def test_ignored_targets_are_not_counted():
    batch = CHAINS.batch("train", 0, 0, 1)
    targets = batch.targets.copy()
    targets[:, 4:] = IGNORE
    masked = Batch(batch.tokens, targets, {})
    got = CHAINS.count(batch.targets, np.zeros(targets.shape), masked)
    assert got["accuracy"] == (4.0, 4.0)
    assert got["exact_match"] == (1.0, 1.0)
    assert "accuracy/depth=01" not in got


@pytest.mark.parametrize("layout", ["stacked", "interleaved"])
def test_accuracy_by_property(layout):
    task = Properties(properties=2, blocks=4, block_size=4, layout=layout)
    batch = task.batch("train", 0, 0, 1)
    guess = batch.targets.copy()
    guess.reshape(-1)[1::2] = -1
    got = task.summarise(task.count(guess, np.zeros(guess.shape), batch))
    assert got["accuracy/property=00"] == 1.0
    assert got["accuracy/property=01"] == 0.0
    assert got["accuracy"] == 0.5
    assert got["exact_match"] == 0.0


def test_show_tells_values_from_indices():
    tokens = np.array([5, 4, 7, 6, 1, 0, 3, 2] + [0, 1, 2, 3] * 3)
    assert CHAINS.show(tokens)[:6] == ["v1", "v0", "v3", "v2", "1", "0"]
    task = Properties(properties=2, blocks=5, block_size=4)
    batch = task.batch("train", 0, 0, 1)
    shown = task.show(batch.tokens[0])
    first, second = batch.tokens[0, 0]
    assert shown[0] == f"v{first - 4}|v{second - 12}"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Chains(blocks=1), "blocks=1: expected an integer at least 2"),
        (lambda: Chains(block_size=2.0), "block_size=2.0"),
        (lambda: Chains(blocks=True), "blocks=True"),
        (lambda: Chains(blocks=3, block_size=2), "blocks=3 with block_size=2"),
        (lambda: Properties(properties=0), "properties=0"),
        (lambda: Properties(layout="flat"), "layout='flat': expected one of stacked, interleaved"),
        (lambda: CHAINS.batch("dev", 0, 0, 1), "split='dev': expected one of train, valid, test"),
    ],
)
def test_bad_values_are_named(make, told):
    with pytest.raises(ValueError, match="expected") as caught:
        make()
    assert told in str(caught.value)
