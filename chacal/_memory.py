"""What this machine can hold, and the refusal of what it cannot, before it is tried.

A size that does not fit ends in the middle of its work otherwise: in an allocator's error where the
system is careful, and killed without a word where it is not. So who is about to make something
large says how many bytes it takes at least, and is stopped here. The figures are kept low: what
could be held on a good day is never refused.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

LARGEST = 2**63 - 1
"""The largest whole number that torch and NumPy count with."""

CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")
"""Where Linux tells a container's limit, or "max"."""


def machine_bytes() -> int | None:
    """Memory of this machine, or of the container that we are in; None where nobody says."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    try:
        return min(there, int(CONTROL_GROUP.read_text()))
    except (OSError, ValueError):
        return there


def check_fits(what: str, needed: int, advice: str, there: int | None = None) -> None:
    """Raise if `needed` bytes are more than there are.

    Args:
        what: that needs them, as in "a run with width 100000".
        needed: bytes, at least.
        advice: what would need less, as in "a smaller width".
        there: bytes that there are; of this machine's memory unless given.
    """
    there = machine_bytes() if there is None else there
    if there is not None and needed > there:
        raise ValueError(
            f"{what} needs at least {told_bytes(needed)} of memory, and there are "
            f"{told_bytes(there)}; expected {advice}"
        )


def told_bytes(count: int) -> str:
    """ "25,276,518,400 bytes (24 GiB)"; of numbers that nobody reads, the order."""
    if count >= 10**24:
        return f"10^{math.floor(count.bit_length() * math.log10(2))} bytes"
    power = min(6, max(0, (count.bit_length() - 1) // 10))
    unit = ("", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")[power]
    return f"{count:,} bytes" + (f" ({count / 1024**power:,.3g} {unit})" if unit else "")
