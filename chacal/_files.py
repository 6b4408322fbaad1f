"""Files that all rooms share: the one reader of JSON, since files come from strangers too, and the
folder where what can be made again is kept.

Whatever a file holds, the answer is plain data or one line that names the file. What plain data
means is `_plain.py`'s part.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MOST_NESTED = 64
"""Lists and objects within each other; ours have ten at most, and Python ends at about 1000."""


def cache_folder() -> Path:
    """Where what was fetched or made once is kept: streamed text, tokens, compiled libraries."""
    return Path(os.environ.get("CHACAL_CACHE") or Path.home() / ".cache" / "chacal")


def read_json(path: Path) -> Any:
    """A JSON file, or a ValueError that names it."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no plain file"
        raise ValueError(f"{path} is {kind}; expected a JSON file")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path} is not there; expected a JSON file") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return parse_json(data, str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """JSON text as plain data: UTF-8, numbers of 64 bits, nested no deeper than is sane.

    Args:
        text: in UTF-8 where it is bytes; the mark that some editors put before it is passed over.
        where: how errors name it.
    """
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        data = json.loads(text, parse_int=_whole)
        if "\\u" in text:  # half of a pair is valid JSON, and can be written nowhere
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeError:
        raise ValueError(f"{where} is not UTF-8 text; expected JSON") from None
    except json.JSONDecodeError as error:
        what = f"not JSON: {error}" if text.strip() else "empty; expected JSON"
        raise ValueError(f"{where} is {what}") from None
    except RecursionError:
        raise ValueError(_too_deep(where)) from None
    except ValueError as error:
        raise ValueError(f"{where} holds {error}") from None
    if _depth(data) > MOST_NESTED:
        raise ValueError(_too_deep(where))
    return data


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**63:
        raise ValueError(f"a whole number of {len(digits)} digits; expected at most 64 bits")
    return value


def _too_deep(where: str) -> str:
    return f"{where} is nested more than {MOST_NESTED} deep; expected a file that chacal wrote"


def _depth(data: Any) -> int:
    """How many lists and objects lie within each other, counted without recursion."""
    depth, level = 0, [data]
    while level := [part for part in level if isinstance(part, (list, dict))]:
        depth += 1
        level = [
            inner for part in level for inner in (part.values() if isinstance(part, dict) else part)
        ]
    return depth
