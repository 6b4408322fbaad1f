"""Which layers stand at given shares of a model's depth.

Said here once, for patching (`chacal.hf`, which needs transformers) and for tables (which declare
their cells without it).
"""

from __future__ import annotations

from collections.abc import Sequence


def nearest(free: Sequence[int], shares: Sequence[float], depth: int) -> list[int]:
    """For each share of the depth, the nearest layer that can be patched and is not taken."""
    chosen: list[int] = []
    for share in shares:
        left = (i for i in free if i not in chosen)
        chosen += sorted(left, key=lambda i: abs(i - int(share * depth)))[:1]
    return chosen
