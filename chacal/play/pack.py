"""A trained run -> the folder that comes with the package: its weights at half the size.

    python -m chacal.play.pack runs/play-dense boxes-dense

Half precision is for the file only; a model computes in float32 as always. `result.json` still has
the run's own figures, and `chacal eval` on the packed folder says what the rounded weights reach.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from chacal.play.models import CHECKPOINTS
from chacal.training.checkpoint import load_checkpoint, save_checkpoint
from chacal.training.runs import RunFolder


def pack(run: Path, folder: Path) -> Path:
    """Copy a complete run's best weights, rounded, and what it was made with."""
    source = RunFolder.open(run)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "environment.json", "result.json"):
        shutil.copyfile(source.path / name, folder / name)
    tensors, progress = load_checkpoint(source.best)
    half = {
        name: tensor.to(torch.float16) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    save_checkpoint(RunFolder(folder).best, half, progress)
    return folder


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]), CHECKPOINTS / sys.argv[2]))
