"""What runs and curves left in their folders, typed: an ill-typed field is named with its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chacal._files import read_json
from chacal._plain import member
from chacal.report.pictures import Mass
from chacal.report.results import CostPoint


@dataclass(frozen=True, kw_only=True)
class Look:
    """What `look.py` left of a run's attention.

    Attributes:
        files: pictures, as names within the run's folder.
        mass: where it lies, a curve for each layer; that of equal weights is the last.
    """

    files: tuple[str, ...]
    mass: tuple[Mass, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run that was trained and measured.

    Attributes:
        steps: that it was trained for.
        seconds: that they took.
        metrics: of the test set, breakdowns too.
        look: None where its attention was not looked at.
    """

    steps: int
    seconds: float
    metrics: dict[str, float]
    look: Look | None


def read_measured(result: Path, evaluation: Path, wanted: str) -> Measured:
    """A run by its two files.

    Args:
        result: its result.json.
        evaluation: how it was measured.
        wanted: a metric that there must be: the task's own.
    """
    trained, record = read_json(result), read_json(evaluation)
    metrics = member(record, "metrics", dict[str, float], str(evaluation))
    member(metrics, wanted, float, f"{evaluation}: metrics")
    return Measured(
        steps=member(trained, "steps", int, str(result)),
        seconds=member(trained, "seconds", float, str(result)),
        metrics=metrics,
        look=_look(record["look"], f"{evaluation}: look") if record.get("look") else None,
    )


def _look(data: Any, where: str) -> Look:
    files = member(data, "files", tuple[str, ...], where)
    mass = member(data, "mass", tuple[Mass, ...], where)
    if len(mass) < 2:
        raise ValueError(f"{where}: mass has {len(mass)} curve(s); expected a layer's and the last")
    return Look(files=files, mass=mass)


def read_failure(file: Path) -> str:
    """Why a job or a curve failed."""
    return str(member(read_json(file), "why", str, str(file)))


def read_curve(file: Path) -> tuple[tuple[CostPoint, ...], str]:
    """A curve's points, and why it ends before its last size."""
    record = read_json(file)
    points: tuple[CostPoint, ...] = member(record, "points", tuple[CostPoint, ...], str(file))
    return points, member(record, "stopped", str, str(file))


def read_machine(file: Path, within: str = "") -> str:
    """What figures were made on, in a line: a file's machine, or that of a field of it."""
    data, where = read_json(file), str(file)
    if within:
        data, where = member(data, within, dict[str, Any], where), f"{where}: {within}"
    cpu, torch, python = (member(data, name, str, where) for name in ("cpu", "torch", "python"))
    threads = member(data, "threads", int, where)
    return f"{cpu}, {threads} thread(s), torch {torch}, Python {python}"
