"""The paper's tables on code and text: as in `tables.py`, functions that only declare cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chacal.experiments.cells import Cell, Evaluation, Table
from chacal.experiments.scales import Given, Scale
from chacal.experiments.text_scales import TEXT_SCALES, TextScale
from chacal.report.paper import figures
from chacal.tasks import Code, Labelled, Language, Scrolls
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.transformers_model import TransformersConfig

ONE_LAYER = 1
"""The paper's "layer 2", counted from 0."""

MISMATCHES = (0.1, 0.5, 0.9)
"""γ at which one layer of a pretrained model is patched, and measured before it is trained."""

SCROLLS = {
    "gov_report": "GovReport",
    "narrative_qa": "NarrativeQA",
    "contract_nli": "ContractNLI",
}
"""The data sets of the paper's table."""

NEW = "none"
"""Given in the place of a pretrained encoder-decoder, where there is none to be had."""

LEAKS = "mean rows (leaks)"


def copilot(scale: Scale) -> Table:
    """tab:copilot_results: our programs, or texts and labels of your own; layer 2 replaced."""
    size, given = TEXT_SCALES[scale.name], scale.given
    given.refuse_but("tab:copilot_results", "train_file", "valid_file", "tokenizer", "pretrained")
    rows = {"Transformer": "dense", "ChaCAL": "chacal"}
    rows |= {f"Block-ChaCAL n//{j}": f"block/{j}" for j in (2, 3, 4)}
    rows |= efficient(size)
    task, model = _code_task(size, given), size.code_model
    if given.pretrained is not None:
        model = TransformersConfig(pretrained=given.pretrained, layers="paper:code")
    note = size.code_note
    if given.train_file or given.pretrained:
        note = f"{scale.name}, with data or a model of the user's own"
    test = Evaluation(examples=size.code_examples, batch_size=min(64, size.code_train.batch_size))
    return Table(
        name="tab:copilot_results",
        metrics=("accuracy", "loss"),
        cells=tuple(
            Cell(
                row=row,
                run=RunConfig(task=task, model=in_layer_2(model, operator), train=size.code_train),
                evaluation=test,
            )
            for row, operator in rows.items()
        ),
        seeds=scale.seeds or 3,
        note=note,
    )


def lm_all(scale: Scale) -> Table:
    """tab:lm_all: from scratch with every layer replaced; fine-tuned with one and with all."""
    size, given = TEXT_SCALES[scale.name], scale.given
    given.refuse_but("tab:lm_all", "train_file", "valid_file", "tokenizer", "pretrained")
    rows = {"dense": "dense", "ChaCAL": "chacal"}
    rows |= {f"Block-ChaCAL n//{j}": f"block/{j}" for j in (2, 3, 4)}
    rows |= {f"Block-ChaCAL n//{j}, {LEAKS}": f"block/{j},rows=mean" for j in (2, 3, 4)}
    rows |= efficient(size)
    text = _language(size.text, given, given.tokenizer or size.text.tokenizer)
    cells = [
        _text_cell(
            f"From scratch: {row}", text, size.text_model.with_operators((op,)), size.text_train
        )
        for row, op in rows.items()
    ]

    model = size.tuned_model
    if given.pretrained is not None:
        model = TransformersConfig(pretrained=given.pretrained)
    tuned = _language(size.tuned_text, given, model.pretrained or size.tuned_text.tokenizer)
    as_it_is = dataclasses.replace(size.tuned_train, steps=0)

    def tell(row: str, operator: str, layers: str, gamma: float, train: TrainConfig) -> None:
        patched = dataclasses.replace(model, operator=with_gamma(operator, gamma), layers=layers)
        cells.append(_text_cell(row, tuned, patched, train))

    one = str(ONE_LAYER)
    tell("Pretrained, as it is", "dense", "all", 0.9, as_it_is)
    for gamma in MISMATCHES:
        tell(f"One layer patched, not trained: ChaCAL, γ={gamma}", "chacal", one, gamma, as_it_is)
    for gamma in MISMATCHES:
        row = f"Fine-tuned, one layer: ChaCAL, γ={gamma}"
        tell(row, "chacal", one, gamma, size.tuned_train)
    for row, operator in rows.items():
        if row.startswith("Block-ChaCAL n//3") or row in efficient(size):
            row = f"Fine-tuned, one layer: {row}"
            tell(row, operator, one, size.tuned_gamma, size.tuned_train)
    for row, operator in rows.items():
        row = f"Fine-tuned, all layers: {row}"
        tell(row, operator, "all", size.tuned_gamma, size.tuned_train)
    return Table(
        name="tab:lm_all",
        metrics=("perplexity", "perplexity_per_word"),
        cells=tuple(cells),
        seeds=size.text_seeds,
        note=size.text_note,
    )


def lm_length_sweep(scale: Scale) -> Table:
    """tab:lm_length_sweep: trained at N and at N/4, tested at N/4, N/2 and N."""
    size, given = TEXT_SCALES[scale.name], scale.given
    given.refuse_but("tab:lm_length_sweep", "train_file", "valid_file", "tokenizer")
    text = _language(size.text, given, given.tokenizer or size.text.tokenizer)
    n = text.window
    rows = {
        "Block-ChaCAL n//3": "block/3",
        f"Block-ChaCAL n//3, {LEAKS}": "block/3,rows=mean",
        "dense": "dense",
        "ChaCAL": "chacal",
        "Window resolvent": efficient(size)["Window resolvent"],
    }
    cells = []
    for row, operator in rows.items():
        for part, trained in ((1, "N"), (4, "N/4")):
            # as many tokens in a step, whatever their windows
            train = dataclasses.replace(
                size.text_train, batch_size=part * size.text_train.batch_size
            )
            task = dataclasses.replace(text, window=n // part)
            # trained at N, it is the run of tab:lm_all; shorter, it must be told of N
            model = dataclasses.replace(size.text_model, positions=0 if part == 1 else n)
            for share, tested in ((4, "N/4"), (2, "N/2"), (1, "N")):
                name = f"{row}, trained at {trained}, tested at {tested}"
                settings = () if share == part else (f"window={n // share}",)
                cells.append(
                    _text_cell(name, task, model.with_operators((operator,)), train, settings)
                )
    cells = [
        dataclasses.replace(cell, paper=figures("tab:lm_length_sweep", cell.row)) for cell in cells
    ]
    return Table(
        name="tab:lm_length_sweep",
        metrics=("perplexity", "perplexity_per_word"),
        cells=tuple(cells),
        seeds=size.text_seeds,
        note=f"{size.text_note}; here N = {n}",
    )


def scrolls(scale: Scale) -> Table:
    """tab:scrolls: BART as it is, fine-tuned, and with its first decoder layer replaced."""
    size, given = TEXT_SCALES[scale.name], scale.given
    given.refuse_but("tab:scrolls", "data", "tokenizer", "pretrained")
    model, note = size.scrolls_model, size.scrolls_note
    if given.pretrained == NEW:
        model = TransformersConfig(architecture="bart", width=128, heads=4, depth=3)
        new = size.scrolls_new
        note = (
            f"{note}; NOT pretrained: BART of 3 + 3 layers, width 128, new weights, and so "
            f"{new.steps} steps of {new.batch_size} at {new.lr:g}"
        )
    elif given.pretrained is not None:
        model = TransformersConfig(pretrained=given.pretrained)
    there = {key: name for key, name in SCROLLS.items() if _has(given.data, key)}
    if not there:
        raise ValueError(
            f"--data is {given.data!r} and holds none of {', '.join(SCROLLS)}; expected a folder "
            f"with one of them, each with train.jsonl and validation.jsonl"
        )
    cells = []
    for key, name in there.items():
        task: Scrolls = dataclasses.replace(
            size.scrolls,
            dataset=key,
            data=given.data or size.scrolls.data,
            tokenizer=given.tokenizer or model.pretrained,
        )
        epoch = -(-task.train_rows // size.scrolls_train.batch_size)
        steps = min(epoch, size.scrolls_steps or epoch)
        tuned = (
            size.scrolls_new
            if given.pretrained == NEW
            else dataclasses.replace(size.scrolls_train, steps=steps, warmup=-(-steps // 10))
        )
        for row, operator, train in (
            ("zero-shot", "dense", dataclasses.replace(tuned, steps=0, warmup=0)),
            ("FT (standard)", "dense", tuned),
            ("FT (modified)", "block/3", tuned),
            ("FT (modified, exact ChaCAL)", "chacal", tuned),
        ):
            run = RunConfig(
                task=task,
                model=dataclasses.replace(model, operator=operator, layers="paper:scrolls"),
                train=train,
            )
            row = f"{name}: {row}"
            test = Evaluation(examples=1, batch_size=8)
            paper = figures("tab:scrolls", row)
            cells.append(Cell(row=row, run=run, evaluation=test, paper=paper))
    missing = [name for key, name in SCROLLS.items() if key not in there]
    left_out = f"; {', '.join(missing)} not in the folder, not run" if missing else ""
    return Table(
        name="tab:scrolls",
        metrics=("rouge1", "rouge2", "rougeL", "rouge", "f1", "em"),
        cells=tuple(cells),
        seeds=size.text_seeds,
        note=note + left_out,
    )


def _has(data: str | None, dataset: str) -> bool:
    """Whether a folder has a data set; the hub has all."""
    return data is None or (Path(data) / dataset).is_dir()


def efficient(size: TextScale) -> dict[str, str]:
    """Rows of the operators of our own, and of fixed patterns."""
    return {
        "Window resolvent": f"window@{2 * size.tile}",
        "Pooled resolvent": f"pooled@{size.tile},near=1",
        "Routed resolvent": f"routed@{size.tile},routes=2,parts=3",
        "Pattern of powers": "pattern,offsets=powers",
    }


def with_gamma(operator: str, gamma: float) -> str:
    """A resolvent with another γ than the usual 0.9; ordinary attention has none."""
    return operator if operator == "dense" or gamma == 0.9 else f"{operator},gamma={gamma}"


def in_layer_2(
    model: ModelConfig | TransformersConfig, operator: str
) -> ModelConfig | TransformersConfig:
    """The model with the operator in its second layer only."""
    if isinstance(model, TransformersConfig):
        return model.with_operators((operator,))
    operators = tuple(
        operator if i == ONE_LAYER else text for i, text in enumerate(model.operators)
    )
    return model.with_operators(operators)


def _text_cell(
    row: str,
    task: Language,
    model: TransformersConfig,
    train: TrainConfig,
    settings: tuple[str, ...] = (),
) -> Cell:
    return Cell(
        row=row,
        run=RunConfig(task=task, model=model, train=train),
        # the valid text is measured whole: examples are for tasks that make them
        evaluation=Evaluation(
            examples=1, batch_size=train.batch_size // train.accumulate, settings=settings
        ),
        paper=figures("tab:lm_all", row),
    )


def _language(task: Language, given: Given, tokenizer: str | None) -> Language:
    """The scale's text, or the user's files."""
    files: dict[str, Any] = {}
    if check_both(given):
        files = {"train": given.train_file, "valid": given.valid_file}
    return dataclasses.replace(task, tokenizer=tokenizer, **files)


def _code_task(size: TextScale, given: Given) -> Code | Labelled:
    tokenizer = given.tokenizer or given.pretrained or size.code.tokenizer
    if not check_both(given):
        return dataclasses.replace(size.code, tokenizer=tokenizer)
    return Labelled(
        train_file=given.train_file or "",
        valid_file=given.valid_file or "",
        test_file=given.valid_file,
        tokenizer=tokenizer,
        max_tokens=size.code.max_tokens,
    )


def check_both(given: Given) -> bool:
    """Whether files are given: both of them, or none."""
    files = (given.train_file, given.valid_file)
    if files.count(None) == 1:
        raise ValueError("one of --train-file and --valid-file is given; expected both, or none")
    return None not in files


ON_TEXT: dict[str, Callable[[Scale], Table]] = {
    "tab:lm_all": lm_all,
    "tab:lm_length_sweep": lm_length_sweep,
    "tab:copilot_results": copilot,
    "tab:scrolls": scrolls,
}
"""Tables that take data and models of the user's own."""
