"""SCROLLS: a long text in, a short one out, for an encoder-decoder.

    tokens   <s> input </s> <pad> ... | </s> <s> output       input_tokens, then the output part
    targets                             <s> output </s>       of the output part only

The data sets are GovReport (a summary; ROUGE), NarrativeQA (an answer; F1) and ContractNLI (a
choice; exact match), each a folder with train.jsonl and validation.jsonl of `id`, `input` and
`output`; or the hub's zip file of the same (its loading script is no longer supported); or, to try
the machinery, `help`: paragraphs of help() and their first words. Of several rows of one id the
outputs are references of one question. The test split is the validation file: the outputs of
SCROLLS' own are not public, and the paper reports the validation's too.

Long inputs are cut at their end: questions stand first. Special tokens are BART's by name; bytes
(no tokenizer) come after three of them. Metrics are those of `scrolls_scores.py`, of greedy
answers.
"""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chacal._echo import shown
from chacal.tasks.base import (
    IGNORE,
    Batch,
    Totals,
    check_choice,
    check_int,
    check_split,
    option,
    ratios,
    stream,
)
from chacal.tasks.help_topics import HELP, help_text
from chacal.tasks.hub import download
from chacal.tasks.scrolls_scores import ROUGE, exact_match, f1, geometric_mean, rouge, rouge_scorer
from chacal.tasks.stored import StoredTask, parse_jsonl, read_jsonl
from chacal.tasks.tokenizers import load_tokenizer

REPOSITORY = "tau/scrolls"
DATASETS = {"gov_report": "rouge", "narrative_qa": "f1", "contract_nli": "em"}
"""Data set -> its figure."""

TRAIN_ROWS = {"gov_report": 17_457, "narrative_qa": 55_003, "contract_nli": 7_191}
"""Rows of the hub's train files."""

FILES = {"train": "train.jsonl", "valid": "validation.jsonl", "test": "validation.jsonl"}


class Question(NamedTuple):
    """An input and its references."""

    input: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Scrolls(StoredTask):
    """A data set of SCROLLS, for an encoder-decoder."""

    dataset: str = option("contract_nli", f"one of {', '.join(DATASETS)}")
    data: str | None = option(None, "folder that holds the data set's; help; none for the hub")
    tokenizer: str | None = option(
        None, "file, folder or hub name, with BART's special tokens; default: bytes"
    )
    input_tokens: int = option(1024, "longest input; the rest is cut")
    output_tokens: int = option(256, "longest output, and longest answer")
    limit: int = option(0, "questions that are measured, from the file's start; 0 for all")

    name: ClassVar[str] = "scrolls"
    metric: ClassVar[str] = "score"
    maximise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice(self, "dataset", tuple(DATASETS))
        check_int(self, "input_tokens", 3)
        check_int(self, "output_tokens", 3)
        check_int(self, "limit", 0)
        if self.data not in (None, HELP):
            for file in (FILES["train"], FILES["valid"]):
                if not (Path(str(self.data)) / self.dataset / file).is_file():
                    raise ValueError(
                        f"data={shown(self.data)}: expected a folder with {self.dataset}/{file}"
                    )

    @cached_property
    def _tokenizer(self) -> Any:
        return None if self.tokenizer is None else load_tokenizer(self.tokenizer)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The numbers of BART's special tokens, under the names of a config's fields."""
        names = {"bos_token_id": "<s>", "pad_token_id": "<pad>", "eos_token_id": "</s>"}
        if self._tokenizer is None:
            found: dict[str, Any] = dict(zip(names, range(3), strict=True))
        else:
            found = {field: self._tokenizer.token_to_id(text) for field, text in names.items()}
        if None in found.values():
            raise ValueError(
                f"tokenizer={shown(self.tokenizer)}: it lacks one of {', '.join(names.values())}; "
                f"expected BART's, or one with these tokens"
            )
        return {**found, "decoder_start_token_id": found["eos_token_id"]}

    @property
    def vocab_size(self) -> int:
        """Bytes and three special tokens, or the tokenizer's vocabulary."""
        return 259 if self._tokenizer is None else int(self._tokenizer.get_vocab_size())

    @property
    def num_classes(self) -> int:
        """The next token."""
        return self.vocab_size

    @property
    def inputs(self) -> int:
        """Tokens of a row that are the encoder's."""
        return self.input_tokens

    @property
    def padding(self) -> int:
        """The tokenizer's own, or that of bytes."""
        return self.special_tokens["pad_token_id"]

    @property
    def length(self) -> int:
        """Both parts of a row."""
        return self.input_tokens + self.output_tokens

    @property
    def usual_length(self) -> int:
        """The input, and of an answer, which is as short as it likes, its first token."""
        return self.input_tokens + 1

    @property
    def train_rows(self) -> int:
        """Rows of the train file; of the hub's, without reading it."""
        if self.data is None:
            return TRAIN_ROWS[self.dataset]
        return len(self.questions("train"))

    @cached_property
    def _questions(self) -> dict[str, list[Question]]:
        return {}

    def questions(self, split: str) -> list[Question]:
        """A split's questions; those of one id are one, but for training. Read once."""
        check_split(split)
        if split not in self._questions:
            merged: dict[str, Question] = {}
            for i, row in enumerate(self._rows(split)):
                key = f"{i}" if split == "train" else row["id"]
                before = merged[key].outputs if key in merged else ()
                merged[key] = Question(row["input"], (*before, row["output"]))
            told = list(merged.values())
            if not told:
                raise ValueError(f"{self.dataset}/{FILES[split]}: the file is empty")
            self._questions[split] = told[: self.limit or None] if split != "train" else told
        return self._questions[split]

    def _rows(self, split: str) -> Iterator[dict[str, str]]:
        if self.data == HELP:
            paragraphs = help_text("train" if split == "train" else "valid").decode().split("\n\n")
            for i, text in enumerate(p for p in paragraphs[:80] if len(p.split()) > 8):
                yield {"id": str(i), "input": text, "output": " ".join(text.split()[:4])}
            return
        if self.data is None:
            file = f"{self.dataset}/{FILES[split]}"
            path = download(REPOSITORY, f"{self.dataset}.zip")
            try:
                with zipfile.ZipFile(path) as archive, archive.open(file) as lines:
                    yield from _checked(parse_jsonl(lines, f"{path}: {file}"))
            except (zipfile.BadZipFile, KeyError):
                raise ValueError(f"{path}: expected a zip file with {file} in it") from None
            return
        yield from _checked(read_jsonl(str(Path(self.data) / self.dataset / FILES[split])))

    def encode(self, text: str, longest: int) -> list[int]:
        """<s>, as much of the text as fits, </s>."""
        ids = (
            [byte + 3 for byte in text.encode()[:longest]]
            if self._tokenizer is None
            else self._tokenizer.encode(text, add_special_tokens=False).ids
        )
        special = self.special_tokens
        return [special["bos_token_id"], *ids[: longest - 2], special["eos_token_id"]]

    def decode(self, ids: np.ndarray) -> str:
        """The text of an answer, up to its </s>."""
        special = self.special_tokens
        kept: list[int] = []
        for token in (int(i) for i in ids):
            if token == special["eos_token_id"]:
                break
            if token not in special.values():
                kept.append(token)
        if self._tokenizer is not None:
            return str(self._tokenizer.decode(kept))
        return bytes(token - 3 for token in kept).decode("utf-8", "replace")

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Train: the step-th part of epochs, each shuffled by the seed. Else: in file order."""
        if split == "train":
            told = self.questions(split)
            at = np.arange(step * size, (step + 1) * size)
            orders = {
                epoch: stream("scrolls", seed, epoch)
                .random_sample(len(told))
                .argsort(kind="stable")
                for epoch in {int(i) for i in at // len(told)}
            }
            return self.pick(
                split, np.array([orders[int(i) // len(told)][i % len(told)] for i in at])
            )
        return super().batch(split, seed, step, size)

    def total(self, split: str) -> int:
        """Questions of a split."""
        return len(self.questions(split))

    def pick(self, split: str, chosen: np.ndarray) -> Batch:
        """The questions of these numbers."""
        if DATASETS[self.dataset] == "rouge":
            rouge_scorer()
        told = self.questions(split)
        sources = [self.encode(told[i].input, self.input_tokens) for i in chosen]
        outputs = [self.encode(told[i].outputs[0], self.output_tokens) for i in chosen]
        # an answer may be as long as allowed; what is learned is as long as it is
        n = max(map(len, outputs)) if split == "train" else self.output_tokens
        tokens = np.full((len(chosen), self.input_tokens + n), self.special_tokens["pad_token_id"])
        targets = np.full((len(chosen), n), IGNORE)
        for i, (source, output) in enumerate(zip(sources, outputs, strict=True)):
            tokens[i, : len(source)] = source
            tokens[i, self.input_tokens] = self.special_tokens["decoder_start_token_id"]
            tokens[i, self.input_tokens + 1 : self.input_tokens + len(output)] = output[:-1]
            targets[i, : len(output)] = output
        info = {"question": chosen, "train": np.full(len(chosen), split == "train")}
        return Batch(tokens.astype(np.int64), targets.astype(np.int64), info)

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """The loss of the first reference; the answers' scores against all."""
        asked = batch.targets != IGNORE
        told = self.questions("train" if batch.info["train"].any() else "valid")
        totals: dict[str, list[float]] = {}
        for guess, number in zip(predictions, batch.info["question"], strict=True):
            answer, outputs = self.decode(guess), told[int(number)].outputs
            if DATASETS[self.dataset] == "rouge":
                scores = rouge(answer, outputs)
            else:
                score = f1 if DATASETS[self.dataset] == "f1" else exact_match
                scores = {DATASETS[self.dataset]: score(answer, outputs)}
            for name, value in scores.items():
                totals.setdefault(name, []).append(value)
        return {
            "loss": (float(losses[asked].sum(dtype=np.float64)), float(asked.sum())),
            **{name: (sum(values), float(len(values))) for name, values in totals.items()},
        }

    def summarise(self, totals: Totals) -> dict[str, float]:
        """Means; of ROUGE, the geometric mean of the means; `score` is the data set's figure."""
        mean = ratios(totals)
        figure = DATASETS[self.dataset]
        if figure == "rouge":
            mean["rouge"] = geometric_mean([mean[kind] for kind in ROUGE])
        return {**mean, "score": mean[figure]}

    def describe(self) -> str:
        """One line for a person."""
        source = {None: f"the hub's {REPOSITORY}", HELP: "Python's help()"}.get(
            self.data, self.data
        )
        unit = "bytes" if self.tokenizer is None else f"tokens of {self.tokenizer}"
        first = f", the first {self.limit} questions measured" if self.limit else ""
        return (
            f"scrolls: {self.dataset} of {source}, {self.input_tokens} {unit} in and at most "
            f"{self.output_tokens} out{first}"
        )

    def show(self, tokens: np.ndarray) -> list[str]:
        """Every token as text."""
        return [self.decode(tokens[i : i + 1]) for i in range(len(tokens))]


def _checked(rows: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, str]]:
    for where, row in rows:
        if not all(isinstance(row.get(name), str) for name in ("id", "input", "output")):
            raise ValueError(f"{where}: expected an object with id, input and output")
        yield row
