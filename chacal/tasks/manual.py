"""Manual: language modelling on text that every Python has, so that no file is needed.

The text is the language reference that `help()` shows (`pydoc_data.topics`, about 460,000 bytes of
English and code), byte by byte, in windows as `Text` cuts them. Every tenth topic is valid, every
tenth test. Topics quote each other, so a perplexity here compares models and measures none; and it
belongs to a version of Python, whose text `describe` names by its hash.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from chacal.tasks.base import check_int, option
from chacal.tasks.text import Corpus, Text, TextBacked, as_bytes


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError(
            "this Python comes without pydoc_data, the text of help(); expected a whole one, or "
            "the task 'text' with files of your own"
        ) from None
    return dict(sorted(topics.items()))


def help_text(split: str) -> bytes:
    """The topics of a split: every tenth is valid, every tenth test."""
    places = {"valid": (4,), "test": (9,)}.get(split, (0, 1, 2, 3, 5, 6, 7, 8))
    return "\n".join(t for i, t in enumerate(_topics().values()) if i % 10 in places).encode()


class _Topics(Text):
    """`Text` whose files are topics."""

    def __post_init__(self) -> None:
        check_int(self, "window", 1)

    def _read(self, field: str) -> Corpus:
        return as_bytes(help_text(field.removesuffix("_file")))


@dataclass(frozen=True, kw_only=True)
class Manual(TextBacked):
    """Next-byte prediction on the text of Python's help()."""

    window: int = option(256, "bytes per example")

    name: ClassVar[str] = "manual"
    metric: ClassVar[str] = "perplexity"
    maximise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_int(self, "window", 1)

    @cached_property
    def _text(self) -> Text:
        # the names only say that the splits are there
        return _Topics(window=self.window, train_file="-", valid_file="-", test_file="-")

    def describe(self) -> str:
        """One line for a person."""
        text = "\n".join(_topics().values()).encode()
        mark = hashlib.sha256(text).hexdigest()[:8]
        return f"manual: Python's help(), {len(text):,} bytes ({mark}), in windows of {self.window}"
