"""A run's folder: what was asked, on what machine, how it went, and what came of it.

config.json        the RunConfig
environment.json   versions, processor, threads, the command
metrics.jsonl      one line per logged step and per evaluation
last.safetensors   everything needed to resume, bit for bit
best.safetensors   the weights that did best on the valid split
result.json        the final figures; there only when the run is complete
.lock              who is at it, while a process is (`lock.py`)
.replaced/         the run that was here, until this one has a checkpoint (`replace.py`)
"""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from chacal._echo import shown
from chacal._files import parse_json, read_json
from chacal._plain import member
from chacal._version import __version__
from chacal.operators import former_text
from chacal.training.config import RunConfig
from chacal.training.replace import FILES, contents, is_ours, put_back, recover, set_aside
from chacal.training.torchrun import world_size
from chacal.training.transformers_model import TransformersConfig

RESULT = {
    "task": str, "operators": tuple[str, ...], "causal": bool, "valid": dict[str, float],
    "test": dict[str, float] | None, "best_step": int, "steps": int, "stopped": str,
    "seconds": float, "parameters": int,
}  # fmt: skip
"""Fields of result.json that are read again."""


class Interrupted(Exception):
    """Asked to stop: the last finished step is saved and the run can be resumed."""


class RunFolder:
    """Paths and files of one run; `replaces` where it takes the place of another."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.last = self.path / "last.safetensors"
        self.best = self.path / "best.safetensors"
        self.replaces = False

    def begin(self, config: RunConfig, *, force: bool, resume: bool) -> None:
        """Make a folder with its config and environment, for a new run.

        A run that is there is set aside if forced to (`replace.py`), and not touched otherwise.
        What was killed before it had its config.json is begun again if it is to be resumed.
        """
        try:
            str(self.path).encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{shown(str(self.path))} is not UTF-8, and safetensors reads nothing from such a "
                f"folder; expected another name"
            ) from None
        if self.path.exists():
            names, temporary = contents(self.path)
            if names:
                self._refuse_strangers(names, force)
                self.replaces = True
                set_aside(self.path)
            elif temporary and not (force or resume):
                raise ValueError(
                    f"{self.path} holds nothing but what a run wrote that was killed at its start "
                    f"({min(temporary)}); expected a new folder (--resume or --force begins it "
                    f"again)"
                )
        self.path.mkdir(parents=True, exist_ok=True)
        self.write("config.json", config.to_json())
        self.write("environment.json", environment(config.train.threads))

    def _refuse_strangers(self, names: set[str], force: bool) -> None:
        """Only a run, or the rest of one, may be replaced, and only if that is asked for."""
        what, goes_on = "already holds a run", "--resume goes on with it, "
        try:
            self.config()
        except ValueError as error:
            strangers = sorted(name for name in names if not is_ours(name))
            # config.json is a name that others use too
            if strangers or names == {"config.json"}:
                named = (strangers or ["config.json"])[0]
                raise ValueError(
                    f"{self.path} holds other files ({named}); expected a new folder"
                ) from None
            why = error if "config.json" in names else "its config.json is gone"
            what, goes_on = f"holds what is left of a run ({why})", ""
        if not force:
            raise ValueError(
                f"{self.path} {what}; expected a new folder ({goes_on}--force replaces it)"
            )

    def clear(self) -> None:
        """Finish what a kill left half done; for who holds the folder's lock."""
        if self.path.is_dir():
            recover(self.path)

    def drop_temporary(self) -> None:
        """Remove what a kill left of files that were being written; with the lock, too."""
        for name in contents(self.path)[1]:
            (self.path / name).unlink(missing_ok=True)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A folder that holds a run."""
        run = cls(path)
        if not (run.path / "config.json").is_file():
            raise ValueError(f"{run.path} holds no run; expected a folder with config.json")
        if folders := [name for name in FILES if (run.path / name).is_dir()]:
            raise ValueError(f"{run.path / folders[0]} is a folder; expected a file of a run")
        return run

    def config(self) -> RunConfig:
        """What was asked."""
        data = self.read("config.json")
        try:
            return RunConfig.from_json(data)
        except ValueError as error:
            raise ValueError(f"{self.path / 'config.json'}: {error}") from None

    def ensure_same(self, config: RunConfig) -> None:
        """Refuse to resume what was another run.

        Over how many processes a text goes changes nothing of it but the time.
        """
        there = self.config()
        context = there.train.context_parallel
        config = replace(config, train=replace(config.train, context_parallel=context))
        if there == config:
            return
        ours, theirs = config.to_json(), there.to_json()
        differ = [
            f"{part}.{name} is {shown(ours[part].get(name))} and was "
            f"{shown(theirs[part].get(name))}"
            for part in theirs
            for name in {**theirs[part], **ours[part]}
            if ours[part].get(name) != theirs[part].get(name)
        ]
        raise ValueError(f"{self.path} holds another run; expected the same to resume: {differ[0]}")

    def read(self, name: str) -> Any:
        """A JSON file of the folder."""
        return read_json(self.path / name)

    def result(self) -> dict[str, Any]:
        """What came of the run."""
        path = self.path / "result.json"
        data: dict[str, Any] = read_json(path)
        for name, hint in RESULT.items():
            member(data, name, hint, str(path))
        if "examples" in data:  # a run of an earlier version does not say how many
            member(data, "examples", dict[str, int], str(path))
        return data

    def write(self, name: str, data: Any) -> None:
        """A JSON file, whole or not at all."""
        write_atomic(self.path / name, (json.dumps(data, indent=2) + "\n").encode())

    def log(self, **values: Any) -> None:
        """One more line of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with naming(path), open(path, "a") as file:
            file.write(json.dumps(values) + "\n")

    def rewind(self, step: int) -> None:
        """Drop the metrics of steps after `step`, and a last line that was cut off."""
        path = self.path / "metrics.jsonl"
        lines = _lines(path)
        kept = []
        for number, line in enumerate(lines, 1):
            where = f"{path}, line {number}"
            try:
                if member(parse_json(line, where), "step", int, where) <= step:
                    kept.append(line + b"\n")
            except ValueError as error:
                if number < len(lines):
                    raise ValueError(
                        f"{error} (take the line out to go on without it, or --force replaces the "
                        f"run)"
                    ) from None
        write_atomic(path, b"".join(kept))


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; expected a file") from None


def default_folder(config: RunConfig) -> Path:
    """runs/TASK-OPERATORS-seedN, in characters that every file system takes.

    In the words that were there first, so that --resume finds an older run. Of a pretrained model,
    the name and the layers stand in it too.
    """
    operators = "+".join(map(former_text, config.model.operators)).replace("/", "_")
    operators = operators.replace(":", "_")
    if isinstance(config.model, TransformersConfig) and config.model.pretrained:
        whose = Path(config.model.pretrained).name.removesuffix(".gguf")
        layers = "" if operators == "dense" else f"-{config.model.layers.replace(':', '_')}"
        operators = f"{whose}-{operators}{layers}"
    task = config.identity()["task"]["name"]
    return Path("runs") / f"{task}-{operators}-seed{config.train.seed}"


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside, force to disk, rename: a reader sees the old file or the new, never half."""
    # others who share the folder may have our number, on machines of their own
    beside = path.with_name(f".{path.name}.{os.getpid()}{secrets.randbelow(10**6):06}")
    try:
        with naming(path), open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of a write with the file's name in it: that of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def is_full(error: OSError) -> bool:
    """Whether a disk, or what one may have of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def keeping_the_old(run: RunFolder) -> Iterator[None]:
    """If a run ends before it has anything, what it replaces comes back; a full disk is told of."""
    try:
        yield
    except BaseException as error:  # Ctrl-C too
        back = run.replaces and put_back(run.path)
        if not isinstance(error, OSError) or not is_full(error):
            raise
        how = f"make room, then go on with --resume --out {run.path}"
        how = "the run that was there is back: make room, then --force" if back else how
        raise ValueError(
            f"{error.filename or run.path} cannot be written: {error.strerror}; all that was "
            f"written before is kept ({how})"
        ) from None


def environment(threads: int) -> dict[str, Any]:
    """What a figure was made with: versions, processor, and the command if there was one."""
    from chacal.bench.timing import machine

    return {
        "chacal": __version__,
        **machine(threads or torch.get_num_threads()),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "processes": world_size(),
        "command": shlex.join(["chacal", *sys.argv[1:]]) if _is_command() else None,
        "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _is_command() -> bool:
    return Path(sys.argv[0]).name in ("chacal", "__main__.py")
