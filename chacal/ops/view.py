"""What a tile of rows sees: a window, or whole tiles near it, and means of what is farther."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

RUN = 128
"""Rows that are solved at once, at most: with more, what they see leaves the cache."""


@dataclass(frozen=True)
class View:
    """What a tile of rows sees.

    Attributes:
        tile: rows solved at once; without a window, the block size.
        window: how many keys, its own among them, a row sees; None for no limit.
        near: whole tiles before a row's own that it sees key by key; None for a window.
        pool: whether earlier tiles are seen through their means.
        drop: whether a row may not hop to itself on the way.
    """

    tile: int
    window: int | None = None
    near: int | None = None
    pool: bool = False
    drop: bool = False

    def tiles(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Rows first to last in runs that end at multiples of `tile`."""
        a = first
        while a < last:
            b = min(last, a - a % self.tile + self.tile)
            yield a, b
            a = b

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Tiles, and of long ones as many rows as are well solved at once."""
        for a, b in self.tiles(first, last):
            for at in range(a, b, RUN):
                yield at, min(b, at + RUN)

    def far_tiles(self, a: int) -> int:
        """How many tiles lie before those that the rows of the tile of row a see key by key."""
        return 0 if self.near is None else max(0, a // self.tile - self.near)

    def means(self, a: int) -> int:
        """How many tiles the rows of the tile of row a see through their means."""
        return self.far_tiles(a) if self.pool else 0

    def first_key(self, a: int) -> int:
        """The first key that any row from a on sees by itself."""
        if self.window is not None:
            return max(0, a - self.window + 1)
        return self.far_tiles(a) * self.tile

    @property
    def span(self) -> int:
        """The most keys that a tile sees by themselves, its own among them."""
        return self.tile + (self.window or (self.near or 0) * self.tile)

    def pooled(self, x: Tensor) -> Tensor:
        """(B, n, d) -> (B, blocks, d): means of the whole blocks; no blocks without pooling."""
        blocks = x.shape[1] // self.tile if self.pool else 0
        return x[:, : blocks * self.tile].unflatten(1, (blocks, self.tile)).mean(2)

    def bias(self, rows: int, keys: int, like: Tensor) -> Tensor:
        """(rows, keys) of 0 and -inf for rows that are the last of these keys."""
        t = torch.arange(keys - rows, keys, device=like.device)[:, None]
        s = torch.arange(keys, device=like.device)
        hidden = s > t
        if self.window is not None:
            hidden |= t - s >= self.window
        return torch.zeros(rows, keys, dtype=like.dtype, device=like.device).masked_fill_(
            hidden, -math.inf
        )
