"""Noise: the next of random tokens, which nobody can know. A canary for leaks of the future.

    tokens    2 0 3 3 1 0 2
    targets   0 3 3 1 0 2 1

Every token is drawn on its own, each symbol as likely as any other, so the past says nothing about
the next one: a causal model's expected loss is at least log V, with equality where it gives every
symbol the same chance. A model that gets below sees tokens that it should not.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chacal.tasks.base import (
    Batch,
    NextToken,
    Totals,
    check_int,
    check_split,
    option,
    ratios,
    stream,
)


@dataclass(frozen=True, kw_only=True)
class Noise(NextToken):
    """Next-token prediction on random tokens: below log V there is a leak."""

    alphabet: int = option(4, "number of symbols, V")
    window: int = option(64, "tokens per example")

    name: ClassVar[str] = "noise"
    metric: ClassVar[str] = "loss"
    maximise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_int(self, "alphabet", 2)
        check_int(self, "window", 1)

    @property
    def floor(self) -> float:
        """log V in nats: the least expected loss of a causal model."""
        return math.log(self.alphabet)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.alphabet

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh noise, every split from a stream of its own."""
        check_split(split)
        drawn = stream("noise", split, seed, step).random_sample((size, self.window + 1))
        tokens = (drawn * self.alphabet).astype(np.int64)
        return Batch(tokens[:, :-1], tokens[:, 1:], {})

    def batches(self, split: str, size: int) -> None:
        """None: noise never runs out."""

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy."""
        right = predictions == batch.targets
        return {
            "loss": (float(losses.sum(dtype=np.float64)), float(right.size)),
            "accuracy": (float(right.sum()), float(right.size)),
        }

    def summarise(self, totals: Totals) -> dict[str, float]:
        """Means, and how many nats a token the loss lies below log V."""
        means = ratios(totals)
        return {**means, "below_floor": self.floor - means["loss"]}

    def describe(self) -> str:
        """One line for a person."""
        return f"noise: {self.window} of {self.alphabet} symbols, log V = {self.floor:.4f} nats"

    def show(self, tokens: np.ndarray) -> list[str]:
        """Symbols as numbers."""
        return [str(t) for t in np.asarray(tokens).tolist()]
