"""Public yardsticks for lm-evaluation-harness: task files, and what they call.

    lm_eval --include_path "$(chacal eval-tasks)" --tasks chacal_variables --model hf \\
        --model_args pretrained=FOLDER --trust_remote_code

The harness finds the YAML files in `tasks_path()`; they name functions of this room, which make
documents of other people's files and score answers. Beside every score stand those of answers that
need no understanding, on the same documents.
"""

from pathlib import Path


def tasks_path() -> Path:
    """The folder for the harness's `--include_path`."""
    return Path(__file__).parent / "tasks"
