"""What a kernel has to do, counted, and a model of the time that this takes; nothing here is
measured.

Work is counted in multiply-adds of tensor cores at the rate of half precision: a product of float32
parts counts as often as its parts are multiplied (`PRODUCTS`). The least possible is that of flash
attention without a wasted entry: n (n+1) / 2 entries of A, each once in a product with d channels
and once in one with d_v (forward), or three times and twice (backward).

Bytes are counted twice: to and from memory if every tensor goes there once, which is the least;
and from the cache to the multiprocessors, where a tile of rows reads all keys and values before
it, so that larger tiles read less. FlashAttention-2's tiles of 128 rows are the measure there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chacal.kernels.configs import Config

PRODUCTS = {"bf16x3": 3, "tf32x3": 6, "ieee": 8}
"""Half-precision products that one in float32 costs: three of half parts; three of tf32 at half
the rate; on gfx942 one at an eighth of it."""
FLASH_ROWS = 128
EFFICIENCY = 0.5
"""Of its peak, what a card is supposed to reach in either kernel."""
HANDOVER = 3e-6
"""Seconds that are supposed to pass from one tile's Z to the next's: a counter's way through the
cache, a load, two products and a store."""


@dataclass(frozen=True)
class Peak:
    """A card's peaks, as its vendor gives them: half-precision multiply-adds and bytes a second."""

    name: str
    products: float
    bytes: float


PEAKS = {
    "sm_80": Peak("A100 SXM 80 GB", 312e12 / 2, 2.04e12),
    "sm_90": Peak("H100 SXM", 989e12 / 2, 3.35e12),
    "sm_100": Peak("B200", 2250e12 / 2, 8.0e12),
    "gfx942": Peak("MI300X", 1307e12 / 2, 5.3e12),
}


@dataclass(frozen=True)
class Shape:
    """What is computed: `pairs` sequences times heads, of n tokens and channels of `itemsize`
    bytes."""

    n: int
    pairs: int
    d: int
    d_v: int
    itemsize: int = 2


@dataclass(frozen=True)
class Cost:
    """Multiply-adds; bytes to and from memory; bytes from the cache; tiles that follow one
    another."""

    work: float
    memory: float
    cache: float
    chain: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.work + other.work,
            self.memory + other.memory,
            self.cache + other.cache,
            self.chain + other.chain,
        )

    def seconds(self, peak: Peak) -> float:
        """The model: the card at EFFICIENCY of its peak, or tiles one after another if that is
        more."""
        busy = max(self.work / peak.products, self.memory / peak.bytes) / EFFICIENCY
        return max(busy, self.chain * HANDOVER)


def flash_forward(shape: Shape) -> Cost:
    """Flash attention: q, k, v are read, the output and a log-sum-exp written."""
    entries = shape.n * (shape.n + 1) / 2
    row = shape.itemsize * (2 * shape.d + 2 * shape.d_v) + 4
    return Cost(
        shape.pairs * entries * (shape.d + shape.d_v),
        shape.pairs * shape.n * row,
        shape.pairs * entries / FLASH_ROWS * shape.itemsize * (shape.d + shape.d_v),
    )


def flash_backward(shape: Shape) -> Cost:
    """Flash attention's: five products; reads q, k, v, o, do and two numbers, writes dq, dk, dv.

    dq is added up in float32 and then rounded.
    """
    entries = shape.n * (shape.n + 1) / 2
    row = shape.itemsize * (4 * shape.d + 4 * shape.d_v) + 8 + 8 * shape.d
    return Cost(
        shape.pairs * entries * (3 * shape.d + 2 * shape.d_v),
        shape.pairs * shape.n * row,
        shape.pairs * entries / FLASH_ROWS * (shape.itemsize * (shape.d + shape.d_v) + 4 * shape.d),
    )


def inverse_work(tile: int) -> int:
    """Multiply-adds of a tile's inverse: six products in each square of 16, then two for each
    merge."""
    work, m = 6 * (tile // 16) * 16**3, 16
    while m < tile:
        work += (tile // (2 * m)) * 2 * m**3
        m *= 2
    return work


def solve_work(shape: Shape, tile: int, precision: str) -> int:
    """A tile's inverse and its product with d_v columns."""
    return PRODUCTS[precision] * (inverse_work(tile) + tile**2 * shape.d_v)


def forward_cost(shape: Shape, config: Config, precision: str) -> Cost:
    """The forward kernel: whole tiles; the scores of the last two are made twice."""
    tile, tiles = config.tile, math.ceil(shape.n / config.tile)
    squares = tiles * (tiles + 1) / 2
    score = config.repeats * shape.d
    work = squares * tile**2 * (score + shape.d_v) + 2 * tiles * tile**2 * score
    work += tiles * solve_work(shape, tile, precision)
    row = shape.itemsize * (2 * shape.d + 3 * shape.d_v) + 4
    read = (squares + 2 * tiles) * tile * shape.itemsize * (shape.d + shape.d_v)
    return Cost(shape.pairs * work, shape.pairs * shape.n * row, shape.pairs * read, tiles)


def adjoint_cost(shape: Shape, config: Config, precision: str) -> Cost:
    """The first of the backward's launches: the scores of the own tile are made twice."""
    tile, tiles = config.tile, math.ceil(shape.n / config.tile)
    squares = tiles * (tiles + 1) / 2
    score = config.repeats * shape.d
    work = squares * tile**2 * (score + shape.d_v) + tiles * tile**2 * score
    work += tiles * solve_work(shape, tile, precision)
    # q, k, Y, dY and the log-sum-exp are read, W, G and δ written
    row = shape.itemsize * (2 * shape.d + 4 * shape.d_v) + 8
    read = (squares + tiles) * tile * shape.itemsize * (shape.d + shape.d_v)
    return Cost(shape.pairs * work, shape.pairs * shape.n * row, shape.pairs * read, tiles)


def gradient_cost(shape: Shape, config: Config) -> Cost:
    """The second: four products; nothing waits."""
    tile, tiles = config.tile, math.ceil(shape.n / config.tile)
    squares = tiles * (tiles + 1) / 2
    # two of them have a square of A as their result, and two channels
    work = squares * tile**2 * (config.repeats * (shape.d + shape.d_v) + 2 * shape.d)
    # q, k, Z, W and two numbers are read; dk, and dq in float32 and then rounded, written
    row = shape.itemsize * (4 * shape.d + 2 * shape.d_v) + 8 + 8 * shape.d
    read = squares * tile * (shape.itemsize * (shape.d + shape.d_v) + 4 * shape.d)
    return Cost(shape.pairs * work, shape.pairs * shape.n * row, shape.pairs * read)
