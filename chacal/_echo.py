"""What an error says of what it was given: as much as a person reads, in one line.

A story of a megabyte, or a file that is one long line, would bury what is wrong with it.
"""

from __future__ import annotations

from typing import Any

MOST_SHOWN = 300
"""Characters of a value that are told."""

MOST_SAID = 1900
"""Characters of a whole message."""


def shown(value: Any) -> str:
    """`repr` of what was given; of a long one, both ends and how long it is."""
    # a repr of all of it would only be thrown away
    if isinstance(value, (str, bytes)) and len(value) > MOST_SHOWN:
        half = MOST_SHOWN // 2
        return f"{value[:half]!r} ... {value[-half:]!r} ({len(value):,} characters)"
    return cut(repr(value), MOST_SHOWN)


def cut(text: str, most: int) -> str:
    """A text without its middle where it is longer than `most`."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... ({len(text):,} characters) ... {text[-(most // 2) :]}"


def one_line(text: str) -> str:
    """A message for a terminal: cut, in one line, and nothing in it that a terminal would obey."""
    plain = " ".join(cut(text, MOST_SAID).split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in plain)
