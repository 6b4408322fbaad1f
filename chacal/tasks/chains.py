"""Chains of pointers: the smallest task in which depth is composition and nothing else.

`Chains` is the paper's Toy. Three blocks of 4 entities, index symbols 0..3, values v0..v3:

    block      0               1               2
    offset     0  1  2  3      0  1  2  3      0  1  2  3
    tokens    v2 v0 v3 v1      2  0  3  1      1  3  0  2
    target     2  0  3  1      3  2  1  0      2  0  3  1

Block 0 is a shuffle of the values, every later block one of the indices. The token x at offset j of
block b points at offset x of block b-1, and the target is the value at the end of the chain: at
block 2, offset 0, the token 1 points at offset 1 of block 1, whose 0 points at v2 in block 0.
Block b is b hops deep. Values and indices are different symbols: with shared ones a linear map of
the embedding cannot tell a root from a link.

`Properties` gives each entity p properties, each with its own chain. One position, p symbols:

    block      0                  1
    offset     0        1         0        1
    tokens     v1|w0    v0|w1     1|0      0|1
    target     1|0      0|1       0|0      1|1

Entity 0 of block 1 takes its first property from entity 1 and its second from entity 0. That asks
the paper's question, heads against properties: row (b, j) must read property r at offset x_r of the
block before, and the x_r differ. One head has one softmax row, so it must weigh all p offsets at
once, say x_1 and x_2 by one half each. Then property 1 of entity x_1 and property 1 of entity x_2
arrive in the same subspace of V with the same weight, and nothing in the sum says which is which: V
is read where it stands and does not know for whom. Unequal weights favour one property and lose the
others, and every hop mixes again, p^b paths after b hops. With h >= p heads every property has a
row of its own. The layout "interleaved" is the control: the p symbols become p positions, each row
has one pointer again, and one head is enough in principle.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chacal.tasks.base import (
    IGNORE,
    Batch,
    Task,
    Totals,
    by_group,
    check_choice,
    check_int,
    check_split,
    option,
    split_of,
    stream,
)

FEWEST_EXAMPLES = 128
"""Fewer different examples than this could leave a split with none."""


def _key_blocks(blocks: int, block_size: int) -> int:
    """Blocks whose content decides the split: two, or more where two have few permutations."""
    key = 2
    permutations = math.factorial(min(block_size, 8))  # of more, enough, and slow to count
    while permutations**key < FEWEST_EXAMPLES:
        key += 1
    if key > blocks:
        raise ValueError(
            f"blocks={blocks} with block_size={block_size}: fewer than {FEWEST_EXAMPLES} different "
            f"examples to share among train, valid and test; expected blocks of at least {key}"
        )
    return key


def _buckets(keys: np.ndarray) -> np.ndarray:
    """(N, c) symbols -> (N,) hash buckets in 0..3."""
    hashes = np.full(len(keys), 0xCBF29CE484222325, dtype=np.uint64)
    for column in keys.T.astype(np.uint64):
        hashes = (hashes ^ column) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes >> np.uint64(62)


def _draw(
    blocks: int, block_size: int, prop: int, split: str, seed: int, step: int, size: int
) -> np.ndarray:
    """(size, blocks, block_size) permutations; the first blocks alone belong to the split."""
    rng = stream("chains", split, seed, step, prop)
    key = _key_blocks(blocks, block_size)
    owned = np.array([split_of(bucket) == split for bucket in range(4)])
    heads = np.empty((0, key, block_size), dtype=np.int64)
    while len(heads) < size:
        drawn = rng.random_sample((4 * size, key, block_size)).argsort(-1, kind="stable")
        kept = drawn[owned[_buckets(drawn.reshape(len(drawn), -1))]]
        heads = np.concatenate([heads, kept])
    tails = rng.random_sample((size, blocks - key, block_size)).argsort(-1, kind="stable")
    return np.concatenate([heads[:size], tails], axis=1)


def _follow(links: np.ndarray) -> np.ndarray:
    """(B, blocks, s) with values in block 0 and pointers after -> the values they lead to."""
    size, blocks, width = links.shape
    first = np.arange(size)[:, None] * width
    ends = np.empty_like(links)
    ends[:, 0] = links[:, 0]
    for block in range(1, blocks):
        ends[:, block] = ends[:, block - 1].ravel()[first + links[:, block]]
    return ends


def _count(
    predictions: np.ndarray, losses: np.ndarray, targets: np.ndarray, shape: tuple[int, ...]
) -> Totals:
    """Sums for targets that reshape to (B, blocks, s, p)."""
    asked = (targets != IGNORE).reshape(shape)
    right = (predictions == targets).reshape(shape) & asked
    totals = {
        "loss": (float(losses.sum()), float(asked.sum())),
        "accuracy": (float(right.sum()), float(asked.sum())),
        "exact_match": (float((right == asked).all((1, 2, 3)).sum()), float(len(right))),
    }
    depth = np.broadcast_to(np.arange(shape[1])[:, None, None], shape)
    totals |= by_group("accuracy/depth", depth[asked], right[asked])
    if shape[3] > 1:
        prop = np.broadcast_to(np.arange(shape[3]), shape)
        totals |= by_group("accuracy/property", prop[asked], right[asked])
    return totals


@dataclass(frozen=True, kw_only=True)
class Chains(Task):
    """The paper's Toy: at every position, the value at the end of its chain of pointers."""

    blocks: int = option(16, "number of blocks; the deepest chain has one hop less")
    block_size: int = option(8, "entities per block, and index symbols, and value symbols")

    name: ClassVar[str] = "chains"
    metric: ClassVar[str] = "accuracy"
    maximise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int(self, "blocks", 2)
        check_int(self, "block_size", 2)
        _key_blocks(self.blocks, self.block_size)

    @property
    def vocab_size(self) -> int:
        """Index symbols 0..s-1, then value symbols s..2s-1."""
        return 2 * self.block_size

    @property
    def num_classes(self) -> int:
        """One class per value."""
        return self.block_size

    @property
    def length(self) -> int:
        """Positions in every example."""
        return self.blocks * self.block_size

    @property
    def period(self) -> int:
        """Positions per block."""
        return self.block_size

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh chains; no two splits share the first two blocks of an example."""
        check_split(split)
        links = _draw(self.blocks, self.block_size, 0, split, seed, step, size)
        targets = _follow(links)
        links[:, 0] += self.block_size
        return Batch(links.reshape(size, -1), targets.reshape(size, -1), {})

    def batches(self, split: str, size: int) -> None:
        """None: examples never run out."""

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss, accuracy (also by depth) and exact match of whole examples."""
        shape = (len(batch.tokens), self.blocks, self.block_size, 1)
        return _count(predictions, losses, batch.targets, shape)

    def describe(self) -> str:
        """One line for a person."""
        return (
            f"chains: {self.blocks} blocks of {self.block_size} (n={self.length}), "
            f"up to {self.blocks - 1} hops"
        )

    def show(self, tokens: np.ndarray) -> list[str]:
        """Pointers as numbers, values as v0, v1, ..."""
        s = self.block_size
        return [f"v{t - s}" if t >= s else str(t) for t in np.asarray(tokens).tolist()]


@dataclass(frozen=True, kw_only=True)
class Properties(Task):
    """Chains whose entities carry several properties, each with pointers of its own.

    With one property the tokens are those of `Chains` with the same seed, byte for byte.
    Property r has symbols 2sr..2sr+2s-1, so a model may sum the embeddings at a position.
    """

    properties: int = option(2, "properties per entity")
    blocks: int = option(16, "number of blocks; the deepest chain has one hop less")
    block_size: int = option(8, "entities per block, and values per property")
    layout: str = option(
        "stacked", "stacked: an entity's symbols share a position; interleaved: one position each"
    )

    name: ClassVar[str] = "properties"
    metric: ClassVar[str] = "accuracy"
    maximise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int(self, "properties", 1)
        check_int(self, "blocks", 2)
        check_int(self, "block_size", 2)
        check_choice(self, "layout", ("stacked", "interleaved"))
        _key_blocks(self.blocks, self.block_size)

    @property
    def _positions(self) -> int:
        """Positions per entity."""
        return 1 if self.layout == "stacked" else self.properties

    @property
    def vocab_size(self) -> int:
        """Index and value symbols of each property."""
        return self.properties * 2 * self.block_size

    @property
    def num_classes(self) -> int:
        """One class per value, the same for every property."""
        return self.block_size

    @property
    def length(self) -> int:
        """Positions in every example."""
        return self.blocks * self.period

    @property
    def symbols(self) -> int:
        """Tokens per position: all properties when stacked, else one."""
        return self.properties if self.layout == "stacked" else 1

    @property
    def period(self) -> int:
        """Positions per block."""
        return self.block_size * self._positions

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh chains, (B, n, p) stacked or (B, np) with property r of entity j at jp + r.

        One property is an ordinary sequence, (B, n), in both layouts.
        """
        check_split(split)
        s = self.block_size
        tokens, targets = [], []
        for prop in range(self.properties):
            links = _draw(self.blocks, s, prop, split, seed, step, size)
            targets.append(_follow(links))
            links[:, 0] += s
            tokens.append(links + 2 * s * prop)
        shape = (size, self.length, self.properties)[: 3 if self.symbols > 1 else 2]
        return Batch(np.stack(tokens, -1).reshape(shape), np.stack(targets, -1).reshape(shape), {})

    def batches(self, split: str, size: int) -> None:
        """None: examples never run out."""

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """As for `Chains`, and accuracy by property."""
        shape = (len(batch.tokens), self.blocks, self.block_size, self.properties)
        return _count(predictions, losses, batch.targets, shape)

    def describe(self) -> str:
        """One line for a person."""
        return (
            f"properties: {self.properties} per entity ({self.layout}), {self.blocks} blocks of "
            f"{self.block_size} entities (n={self.length}), up to {self.blocks - 1} hops"
        )

    def show(self, tokens: np.ndarray) -> list[str]:
        """Pointers as numbers, values as v0, v1, ..., the symbols of a position joined by "|"."""
        s = self.block_size
        rows = np.asarray(tokens).reshape(self.length, self.symbols).tolist()
        return [
            "|".join(f"v{t % (2 * s) - s}" if t % (2 * s) >= s else str(t % (2 * s)) for t in row)
            for row in rows
        ]
