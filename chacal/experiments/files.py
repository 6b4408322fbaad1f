"""Where the files of a sweep lie, and how they are written."""

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


def write_json(path: Path, data: Any) -> None:
    """A JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(data, indent=1) + "\n").encode())
