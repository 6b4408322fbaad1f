"""Boxes at a given n, and counted by the block borders that the needed chains cross.

Block-ChaCAL cuts A at the borders of blocks of n // j tokens. What that costs a story depends on
where its chains lie: the same story has chains that cross borders where n is its own length, and
fits into one block where n is j times as long. `PaddedBoxes` sets n; `CountedBoxes` counts.

A chain goes from a box's token in the answer back to the sentence that names what it holds
(`stories.needed_positions`):

    position   2      6      10     14        tokens of the chain, root first
    block      0      1      2      3         blocks of 4: 3 borders, and 3 hops that cross one
    block      0      0      1      1         blocks of 8: 1 border, and 1 hop that crosses it
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from chacal.tasks.base import IGNORE, Batch, Totals, by_group, check_int, option
from chacal.tasks.boxes import Boxes
from chacal.tasks.stories import needed_positions, parse_story


def crossed(positions: Sequence[int], block_size: int) -> tuple[int, int]:
    """Borders between the ends of a chain, and how many of its hops cross at least one.

    Args:
        positions: of the chain's tokens, in descending order.
        block_size: tokens per block; the first block begins at 0.
    """
    blocks = [position // block_size for position in positions]
    return blocks[0] - blocks[-1], sum(a != b for a, b in pairwise(blocks))


@dataclass(frozen=True, kw_only=True)
class PaddedBoxes(Boxes):
    """Boxes in batches of one length: the same stories, with padding behind them."""

    pad: int = option(0, "tokens per example, at least; 0: as long as the batch's longest story")

    name: ClassVar[str] = "boxes-padded"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(self, "pad", 0)

    @property
    def length(self) -> int:
        """The longest story, or the padded length."""
        return max(self.pad, super().length)

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """The stories of `Boxes` with the same arguments."""
        batch = super().batch(split, seed, step, size)
        more = ((0, 0), (0, max(0, self.pad - batch.tokens.shape[1])))
        return Batch(
            np.pad(batch.tokens, more),
            np.pad(batch.targets, more, constant_values=IGNORE),
            batch.info,
        )

    def describe(self) -> str:
        """One line for a person."""
        return super().describe() + (f", n >= {self.pad}" if self.pad else "")


@dataclass(frozen=True, kw_only=True)
class CountedBoxes(PaddedBoxes):
    """Boxes with exact match also by borders and by crossing hops, the most of any box."""

    divisor: int = option(8, "blocks of n // divisor tokens")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(self, "divisor", 1)

    @classmethod
    def of(cls, task: Boxes, divisor: int) -> "CountedBoxes":
        """The same stories and the same padding, counted."""
        own: dict[str, Any] = {f.name: getattr(task, f.name) for f in fields(task)}
        return cls(**{**own, "divisor": divisor})

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """As `Boxes`, and by what the story's chains cross."""
        exact = ~((batch.targets != IGNORE) & (predictions != batch.targets)).any(1)
        borders, crossings = self.crossings(batch)
        return (
            super().count(predictions, losses, batch)
            | by_group("exact_match/borders", borders, exact)
            | by_group("exact_match/crossings", crossings, exact)
        )

    def crossings(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """(B,) borders and (B,) crossing hops of every story: those of its worst chain."""
        block_size = max(1, batch.tokens.shape[1] // self.divisor)
        worst = []
        for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
            # the first asked position is the last token of the story
            end = int((targets != IGNORE).argmax()) + 1
            story = parse_story("".join(self.show(tokens[1:end])), self.boxes)
            chains = needed_positions(story, self.boxes, self.max_items).values()
            worst.append(np.max([crossed(chain, block_size) for chain in chains], axis=0))
        borders, crossings = np.array(worst).T
        return borders, crossings
