"""`chacal eval`: a trained run on any examples, with other operators swapped in if wanted."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chacal.bench.timing import check_threads
from chacal.operators import Operator, parse_operator, split_operators
from chacal.ops.inputs import check_count
from chacal.tasks import Boxes, CountedBoxes, Task
from chacal.training.config import RunConfig
from chacal.training.display import Display
from chacal.training.distributed import Group
from chacal.training.evaluate import count_examples, evaluate, load_run, override, setting
from chacal.training.memory import check_evaluation
from chacal.training.transformers_model import TransformersConfig


def evaluate_run(
    run: str | Path,
    *,
    split: str = "test",
    seed: int = 0,
    examples: int | None = None,
    batch_size: int | None = None,
    operator: str | None = None,
    operators: str | None = None,
    top_k: int | None = None,
    qk_norm: float | None = None,
    settings: tuple[str, ...] = (),
    borders: int | None = None,
    threads: int = 1,
    quiet: bool = False,
) -> dict[str, Any]:
    """Metrics of a trained run.

    Args:
        run: its folder.
        split: which examples.
        seed: of generated examples; the run's own seed gives those it was tested on.
        examples: how many; of a stored split a fixed sample, 0 for all. None: 2,048, or as many as
            the run was tested on where it fine-tuned a pretrained model.
        batch_size: sequences at once. None: 64, or that run's own.
        operator: an operator for the last layer, instead of the trained one; a resolvent that
            says no γ has the one that the layer learned, if it did.
        operators: an operator for every layer, as in "dense,block/3"; γ likewise.
        top_k: prune A to this many entries a row, in every layer whose operator can.
        qk_norm: temperature of QK-norm in all layers, instead of the trained one.
        settings: fields of the task to change, as in "min_updates=10".
        borders: count exact match also by how many borders of blocks of n // borders the needed
            chains cross (Boxes).
        threads: CPU threads; 0 leaves it to torch.
        quiet: show no progress.

    Returns:
        metrics, with what they are of.
    """
    check_count("examples", examples or 0, least=0)
    check_count("batch_size", 1 if batch_size is None else batch_size)
    check_count("seed", seed, least=0, bits=63)
    check_threads(threads, least=0)
    if threads:
        torch.set_num_threads(threads)
    model, folder = load_run(run)
    texts = [str(op) for op in model.operators]
    if operator is not None and operators is not None:
        raise ValueError("operator and operators are both given; expected one of them")
    if operator is not None:
        texts[-1] = _swapped_in(operator, model.operators[-1])
    if operators is not None:
        given = split_operators(operators)
        beyond = [None] * (len(given) - len(texts))  # load_run refuses more than there are layers
        texts = [
            _swapped_in(text, trained)
            for text, trained in zip(given, (*model.operators, *beyond), strict=False)
        ]
    if top_k is not None:
        texts = [_pruned(text, top_k) for text in texts]
    if texts != [str(op) for op in model.operators] or qk_norm is not None:
        model, folder = load_run(run, operators=tuple(texts), qk_norm=qk_norm)
    config = folder.config()
    examples, batch_size = _how_much(config, examples, batch_size)
    trained = config.task
    task = override(trained, dict(setting(text) for text in settings))
    model_config = config.model.with_operators(tuple(texts))
    check_evaluation(dataclasses.replace(config, task=task, model=model_config), batch_size)
    if _language(task) != _language(trained):
        raise ValueError(
            f"{', '.join(settings)} changes what the tokens mean; expected fields that leave the "
            f"vocabulary as the run was trained with"
        )
    if borders is not None:
        if not isinstance(task, Boxes):
            raise ValueError(f"borders is {borders}; {task.name} is not counted by them, Boxes is")
        task = CountedBoxes.of(task, borders)
    count = count_examples(task, split, examples, sampled=True)
    begun = time.monotonic()
    with Display(str(folder.path), 1, task.metric, visible=not quiet) as show:
        metrics = evaluate(
            model,
            task,
            split=split,
            seed=seed,
            examples=examples,
            batch_size=batch_size,
            group=Group(0, 1, torch.device("cpu")),
            sampled=True,
            report=show.evaluation(split),
        )
    return {
        "task": task.describe(),
        "operators": texts,
        "causal": all(op.causal for op in model.operators),
        "split": split,
        "examples": count,
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 3),
        "metrics": metrics,
    }


def _how_much(config: RunConfig, examples: int | None, batch_size: int | None) -> tuple[int, int]:
    """What is given, or what suits the model: 2,048 examples take a pretrained one an hour."""
    large = isinstance(config.model, TransformersConfig) and config.model.pretrained is not None
    usual = (config.train.test_examples, config.train.batch_size) if large else (2048, 64)
    return usual[0] if examples is None else examples, usual[
        1
    ] if batch_size is None else batch_size


def _language(task: Task) -> tuple[object, ...]:
    """What a model's inputs and outputs mean."""
    words = task.show(np.arange(task.vocab_size)) if task.symbols == 1 else []
    return task.vocab_size, task.num_classes, task.symbols, task.period, words


def _swapped_in(text: str, trained: Operator | None) -> str:
    """An operator in the place of a trained one: if it says no γ, with the γ that was learned."""
    operator = parse_operator(text)
    says = any(part.strip().startswith("gamma=") for part in text.split(","))
    if operator.has_gamma and not says and trained is not None and trained.learn is not None:
        # the field is there, as was just seen; the base class has none
        operator = dataclasses.replace(operator, gamma=trained.learn)  # type: ignore[call-arg]
    return str(operator)


def _pruned(text: str, top_k: int) -> str:
    operator = parse_operator(text)
    if not any(f.name == "top_k" for f in dataclasses.fields(operator)):
        raise ValueError(f"top_k is {top_k}; {operator} cannot prune, only dense and chacal can")
    # the field is there, as was just seen; the base class has none
    return str(dataclasses.replace(operator, top_k=top_k))  # type: ignore[call-arg]
