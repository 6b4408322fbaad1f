"""What scores of all yardsticks share: the part with two operations and more, and macro means."""

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

HARD = 2
"""Operations from which on an answer has to be followed through the text."""


def with_hard(scores: dict[str, T], operations: int) -> dict[str, T]:
    """The scores of one document, once more as `..._2plus` where it has two operations or more.

    The harness takes each metric's mean over the documents that have it.
    """
    hard = {f"{name}_2plus": score for name, score in scores.items()}
    return scores | (hard if operations >= HARD else {})


def macro(scores: Iterable[tuple[int, float]]) -> float:
    """The mean over numbers of operations of the mean over documents of that number."""
    groups: dict[int, list[float]] = defaultdict(list)
    for operations, score in scores:
        groups[operations].append(score)
    return sum(sum(group) / len(group) for group in groups.values()) / len(groups)
