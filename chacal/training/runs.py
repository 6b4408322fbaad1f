"""A run's folder: what was asked, on what machine, how it went, and what came of it.

config.json        the RunConfig
environment.json   versions, processor, threads, the command
metrics.jsonl      one line per logged step and per evaluation
last.safetensors   everything needed to resume, bit for bit
best.safetensors   the weights that did best on the valid split
result.json        the final figures; there only when the run is complete
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

from chacal._version import __version__
from chacal.operators import former_text
from chacal.training.config import RunConfig
from chacal.training.torchrun import world_size
from chacal.training.transformers_model import TransformersConfig

FILES = (
    "config.json", "environment.json", "metrics.jsonl", "last.safetensors", "best.safetensors",
    "result.json",
)  # fmt: skip


class Interrupted(Exception):
    """Asked to stop: the last finished step is saved and the run can be resumed."""


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.last = self.path / "last.safetensors"
        self.best = self.path / "best.safetensors"

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], config: RunConfig, *, force: bool = False
    ) -> RunFolder:
        """A new folder with its config and environment; an old one is not touched unless forced."""
        run = cls(path)
        if run.path.exists():
            if not run.path.is_dir():
                raise ValueError(f"{run.path} is a file; expected a folder that is not there yet")
            if any(run.path.iterdir()):
                try:
                    run.config()
                except ValueError:
                    raise ValueError(
                        f"{run.path} holds other files; expected a new folder"
                    ) from None
                if not force:
                    raise ValueError(
                        f"{run.path} already holds a run; expected a new folder "
                        f"(--resume goes on with it, --force replaces it)"
                    )
                for name in FILES:
                    (run.path / name).unlink(missing_ok=True)
        run.path.mkdir(parents=True, exist_ok=True)
        run.write("config.json", config.to_json())
        run.write("environment.json", environment(config.train.threads))
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A folder that holds a run."""
        run = cls(path)
        if not (run.path / "config.json").is_file():
            raise ValueError(f"{run.path} holds no run; expected a folder with config.json")
        return run

    def config(self) -> RunConfig:
        """What was asked."""
        try:
            return RunConfig.from_json(self.read("config.json"))
        except ValueError as error:
            raise ValueError(f"{self.path / 'config.json'}: {error}") from None

    def read(self, name: str) -> Any:
        """A JSON file of the folder."""
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            raise ValueError(f"{self.path} has no {name}") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"{self.path / name} is not JSON: {error}") from None

    def write(self, name: str, data: Any) -> None:
        """A JSON file, whole or not at all."""
        write_atomic(self.path / name, (json.dumps(data, indent=2) + "\n").encode())

    def log(self, **values: Any) -> None:
        """One more line of metrics.jsonl."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(values) + "\n")

    def rewind(self, step: int) -> None:
        """Drop the metrics of steps after `step`, and a line that was cut off."""
        path = self.path / "metrics.jsonl"
        kept = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (json.JSONDecodeError, KeyError):
                continue
        write_atomic(path, "".join(kept).encode())


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
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


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
