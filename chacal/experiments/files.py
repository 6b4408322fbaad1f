"""Where the files of a sweep lie, and how they are read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chacal.training.runs import write_atomic


def table_file(name: str, out: Path) -> Path:
    """Where a table is: a colon is not for file names."""
    return out / "tables" / f"{name.replace(':', '-')}.json"


def timing_file(name: str, out: Path) -> Path:
    """Where the times of its evaluations are."""
    return out / "tables" / f"{name.replace(':', '-')}.timing.json"


def read_json(path: Path) -> Any:
    """A JSON file, or a ValueError that names it."""
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def write_json(path: Path, data: Any) -> None:
    """A JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(data, indent=1) + "\n").encode())
