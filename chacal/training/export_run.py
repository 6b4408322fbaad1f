"""`chacal export`: a fine-tuned run as a folder that other programs load.

A run's checkpoint holds what was learned, under the names of the training loop, and may hold
adapters only. Other programs want the whole model, its operators and its tokenizer in one folder,
as `save_pretrained` writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chacal._echo import shown
from chacal.tasks.tokenizers import transformers_tokenizer
from chacal.training.evaluate import load_run
from chacal.training.runs import RunFolder
from chacal.training.transformers_model import TransformersConfig


def export_run(run: str | Path, out: str | Path) -> dict[str, Any]:
    """Write the best weights of a run, whole, and the model's own tokenizer.

    Args:
        run: folder of a run that fine-tuned a pretrained language model.
        out: folder to be written; new, or empty.

    Returns:
        what was written: the folder, the model's class and its operators by layer.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{shown(str(out))} is there already; expected a new or an empty folder")
    config = RunFolder.open(run).config()
    if not isinstance(config.model, TransformersConfig) or config.model.pretrained is None:
        raise ValueError(
            f"{shown(str(run))} is no run of a pretrained model; expected one that chacal train "
            f"TASK --pretrained FOLDER wrote"
        )
    scores, _ = load_run(run)
    if scores.head is not None:
        raise ValueError(
            f"{shown(str(run))} learned {config.task.name}, by a head of its own that no language "
            f"model has; expected a run whose answers are the model's tokens"
        )
    from chacal.hf.patch import operators_of
    from chacal.hf.tuning import merge_lora

    merge_lora(scores.model)
    tokenizer = transformers_tokenizer(config.model.pretrained)
    scores.model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return {
        "folder": str(out),
        "class": type(scores.model).__name__,
        "operators": {layer: str(op) for layer, op in operators_of(scores.model).items()},
    }
