"""The text of help(), which every Python has, so that no file is needed.

It is the language reference that `help()` shows (`pydoc_data.topics`, about 460,000 bytes of
English and code). Every tenth topic is valid, every tenth test. Topics quote each other, so a
perplexity here compares models and measures none; and it belongs to a version of Python, whose text
`describe_help` names by its hash.
"""

import hashlib

HELP = "help"
"""The source's name."""


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError(
            "this Python comes without pydoc_data, the text of help(); expected a whole one, or "
            "files of your own (the task language with train and valid)"
        ) from None
    return dict(sorted(topics.items()))


def help_text(split: str) -> bytes:
    """The topics of a split: every tenth is valid, every tenth test."""
    places = {"valid": (4,), "test": (9,)}.get(split, (0, 1, 2, 3, 5, 6, 7, 8))
    return "\n".join(t for i, t in enumerate(_topics().values()) if i % 10 in places).encode()


def describe_help() -> str:
    """Which text it is, in a few words."""
    text = "\n".join(_topics().values()).encode()
    return f"Python's help(), {len(text):,} bytes ({hashlib.sha256(text).hexdigest()[:8]})"
