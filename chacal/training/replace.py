"""A run that replaces another (`--force`) takes its place only once it has something itself.

The old run's files are set aside in the folder, and go when the new run has its first checkpoint.
If it ends before, they come back. Killed at any point in between, no file of the old run is lost:

    .replacing/   files are being set aside; they come back
    .replaced/    all are; they come back unless the new run has its config.json
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from chacal.training.lock import LOCK

FILES = (
    "config.json", "environment.json", "metrics.jsonl", "last.safetensors", "best.safetensors",
    "result.json",
)  # fmt: skip
"""Of a run."""

REPLACING, REPLACED = ".replacing", ".replaced"

OURS = re.compile(r"evaluation-\w+\.json|attention-layer\d+\.png|mass\.png|look")
"""What else chacal puts into a run's folder."""

TEMPORARY = re.compile(r"\.(\w+(?:-\w+)*\.\w+)\.\d+")
"""What `write_atomic` writes beside, and a kill leaves."""


def contents(folder: Path) -> tuple[set[str], set[str]]:
    """Names of what a folder holds, and of temporary files; the house's own are not told."""
    names = {path.name for path in folder.iterdir()} - {REPLACING, REPLACED}
    names = {name for name in names if not name.startswith(LOCK)}
    temporary = {
        name for name in names if (found := TEMPORARY.fullmatch(name)) and is_ours(found.group(1))
    }
    return names - temporary, temporary


def is_ours(name: str) -> bool:
    """Whether a run's folder may have a file of this name."""
    return name in FILES or OURS.fullmatch(name) is not None


def set_aside(folder: Path) -> None:
    """Make room for a new run."""
    if (folder / REPLACED).exists():  # a run that replaces one that never had anything
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        return
    (folder / REPLACING).mkdir()
    _move(folder, folder / REPLACING)
    os.replace(folder / REPLACING, folder / REPLACED)


def settle(folder: Path) -> None:
    """The new run has something: the old one goes."""
    if (folder / REPLACED).is_dir():
        shutil.rmtree(folder / REPLACED)


def put_back(folder: Path) -> bool:
    """Undo `set_aside`, unless the new run has something; whether there was anything to undo."""
    if not (folder / REPLACED).is_dir():
        return False
    if _has_something(folder):
        settle(folder)
        return False
    recover(folder)
    if (folder / REPLACED).is_dir():
        # config.json is the first: without it, `recover` goes on where this is cut off
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        recover(folder)
    return True


def recover(folder: Path) -> None:
    """Bring a folder that was left in the middle to the state before, or to the one after."""
    if _has_something(folder):
        settle(folder)
    began = (folder / "config.json").exists()
    for name in (REPLACING, REPLACED):
        if (folder / name).is_dir() and not (name == REPLACED and began):
            _move(folder / name, folder)
            (folder / name).rmdir()


def _has_something(folder: Path) -> bool:
    return (folder / "config.json").exists() and (folder / "last.safetensors").exists()


def _move(source: Path, to: Path) -> None:
    """Every file of a run; config.json is the last, and says that all are there."""
    for name in reversed(FILES):
        if (source / name).exists():
            os.replace(source / name, to / name)
