"""One job of a sweep: train a run, then measure it in every way that some table asks for.

Everything is skipped that is there already, so a job that was stopped goes on, and a job that was
finished does nothing. A lock on the folder makes a second sweep wait for the first.

As a program (`python -m chacal.experiments.job`, the job as a line of JSON on standard input) it is
what a sweep with several jobs at once starts. The input stays open for as long as the job is
wanted: it ends with the sweep.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chacal._echo import one_line
from chacal._files import read_json
from chacal._orphans import end_with_input
from chacal._plain import from_plain, member, to_plain
from chacal.experiments.cells import Evaluation, run_id
from chacal.experiments.look import look_at_run
from chacal.operators import spelled_out
from chacal.tasks import Boxes, CountedBoxes
from chacal.training.config import RunConfig
from chacal.training.distributed import Group
from chacal.training.evaluate import evaluate, load_run, override, setting
from chacal.training.lock import alone
from chacal.training.loop import train
from chacal.training.memory import check_evaluation
from chacal.training.runs import Interrupted, RunFolder, write_atomic
from chacal.training.torchrun import rank

TEST_SEED = 0
"""Of the test examples: the same for every run of every seed."""

LOOKED_AT = 64
"""Examples over which shares of attention mass are averaged."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run and everything that is measured of it."""

    run: RunConfig
    evaluations: tuple[Evaluation, ...]

    @property
    def id(self) -> str:
        """The name of its folder."""
        return run_id(self.run)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` takes back."""
        return {"run": self.run.to_json(), "evaluations": to_plain(self.evaluations)}

    @classmethod
    def from_json(cls, data: Any) -> Job:
        """The job that plain data describes."""
        return cls(
            run=RunConfig.from_json(data["run"]),
            evaluations=tuple(from_plain(Evaluation, e, "evaluation") for e in data["evaluations"]),
        )


def is_done(job: Job, folder: Path) -> bool:
    """Whether nothing of the job is left to do."""
    names = ["result.json", *(f"{e.id}.json" for e in job.evaluations)]
    return all((folder / name).exists() for name in names)


def failure_file(folder: Path) -> Path:
    """Where a job that failed says why; beside its folder, which it may not have made."""
    return folder.with_name(folder.name + ".failed.json")


def record_failure(folder: Path, why: str) -> None:
    """Say why a job failed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(failure_file(folder), (json.dumps({"why": why}, indent=2) + "\n").encode())


def perform(job: Job, folder: Path) -> None:
    """Do what is left of a job."""
    first = rank() == 0
    if not first:  # torchrun's other processes train along and leave the rest to the first
        train(job.run, folder, resume=True, quiet=True)
        return
    with alone(folder, wait=True):
        failure_file(folder).unlink(missing_ok=True)
        evaluations = job.evaluations
        if _lacks_weights(job, folder):
            # a clone has the figures but no weights: train again, and measure all of it again
            evaluations = tuple(dict.fromkeys([*evaluations, *_measured(folder)]))
            old = ("result.json", "last.safetensors", "metrics.jsonl")
            for name in (*old, *(f"{e.id}.json" for e in evaluations)):
                (folder / name).unlink(missing_ok=True)
        train(job.run, folder, resume=True, quiet=True, locked=True)
        for evaluation in evaluations:
            if not (folder / f"{evaluation.id}.json").exists():
                _measure(folder, evaluation)
        if job.run.model.pretrained is not None:
            # gigabytes each; a new evaluation trains again, as in a clone
            for name in ("last.safetensors", "best.safetensors"):
                (folder / name).unlink(missing_ok=True)


def _lacks_weights(job: Job, folder: Path) -> bool:
    finished = (folder / "result.json").exists() and not is_done(job, folder)
    return finished and not (folder / "best.safetensors").exists()


def _measured(folder: Path) -> list[Evaluation]:
    files = sorted(folder.glob("evaluation-*.json"))
    return [
        Evaluation.from_stored(
            member(read_json(file), "evaluation", dict[str, Any], str(file)), str(file)
        )
        for file in files
    ]


def _measure(folder: Path, evaluation: Evaluation) -> None:
    model, run = load_run(
        folder, operators=evaluation.operators or None, qk_norm=evaluation.qk_norm
    )
    config = run.config()
    task = config.task
    if evaluation.divisor and isinstance(task, Boxes):
        task = CountedBoxes.of(task, evaluation.divisor)
    if evaluation.settings:
        task = override(task, dict(setting(text) for text in evaluation.settings))
    on_gpu = torch.cuda.is_available() and config.train.device != "cpu"
    device = torch.device("cuda" if on_gpu else "cpu")
    check_evaluation(dataclasses.replace(config, task=task), evaluation.batch_size, device.type)
    metrics = evaluate(
        model.to(device),
        task,
        split="test",
        seed=TEST_SEED,
        examples=evaluation.examples,
        batch_size=evaluation.batch_size,
        sampled=config.train.sampled,
        group=Group(0, 1, device),
    )
    record: dict[str, Any] = {
        "evaluation": to_plain(evaluation),
        "task": task.describe(),
        "operators": [spelled_out(str(op)) for op in model.operators],
        "causal": all(op.causal for op in model.operators),
        "split": "test",
        "seed": TEST_SEED,
        "metrics": metrics,
    }
    if evaluation.look:
        record["look"] = look_at_run(folder, folder / "look", TEST_SEED, LOOKED_AT)[0]
        record["look"]["files"] = [f"look/{Path(f).name}" for f in record["look"]["files"]]
        del record["look"]["run"]
    RunFolder(folder).write(f"{evaluation.id}.json", record)


def main() -> int:
    """Perform the job on standard input, while that is open; exit codes as the command's."""
    asked = json.loads(sys.stdin.readline())
    end_with_input()
    sys.argv = asked["command"]  # run folders tell the command that a person gave
    folder = Path(asked["folder"])
    try:
        perform(Job.from_json(asked["job"]), folder)
    except (Interrupted, KeyboardInterrupt):
        return 130
    except Exception as error:  # whatever it is, the other jobs go on
        record_failure(folder, describe_error(error))
        return 1
    return 0


def describe_error(error: BaseException) -> str:
    """An error in one line, with its kind where the text alone would not tell."""
    text = one_line(str(error)) or "no message"
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main())
