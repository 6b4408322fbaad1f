"""Labelled: texts to classify, from JSONL files of one `text` and one `label` per line.

    {"text": "x = 1\\ny = x\\n", "label": "1"}

The reader for data of your own beside `Code`: the class is asked at a text's last token. Labels are
strings or whole numbers; the classes are those of the train file. A text longer than `max_tokens`
keeps its end, where a question stands.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from chacal._echo import shown
from chacal.tasks.base import SPLITS, Batch, Totals, check_int, check_split, option
from chacal.tasks.code import count_answers, pad_and_ask
from chacal.tasks.stored import StoredTask, read_jsonl
from chacal.tasks.tokenizers import load_tokenizer, opening

Rows = list[tuple[list[int], int]]


@dataclass(frozen=True, kw_only=True)
class Labelled(StoredTask):
    """The class of a text, from JSONL files of your own."""

    train_file: str = option("", "JSONL file to train on: text and label on every line")
    valid_file: str = option("", "JSONL file to validate on")
    test_file: str | None = option(None, "JSONL file to test on, if any")
    tokenizer: str | None = option(
        None, "file, folder or hub name of a tokenizer; default: bytes of UTF-8"
    )
    max_tokens: int = option(512, "longest text in tokens; of a longer one, the end is kept")

    name: ClassVar[str] = "labelled"
    metric: ClassVar[str] = "accuracy"
    maximise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int(self, "max_tokens", 1)
        for field in ("train_file", "valid_file", "test_file"):
            path = getattr(self, field)
            if path is None and field == "test_file":
                continue
            if not isinstance(path, str) or not os.path.isfile(path):
                raise ValueError(
                    f"{field}={shown(path)}: expected the path of an existing JSONL file"
                )

    @cached_property
    def _tokenizer(self) -> Any:
        return None if self.tokenizer is None else load_tokenizer(self.tokenizer)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Labels of the train file, sorted."""
        return tuple(sorted({label for _, label, _ in self._told("train")}))

    @cached_property
    def _rows(self) -> dict[str, Rows]:
        return {}

    def rows(self, split: str) -> Rows:
        """A split's texts as tokens, with their classes; read once."""
        check_split(split)
        if split not in self._rows:
            numbers = {label: i for i, label in enumerate(self.classes)}
            made: Rows = []
            first = opening(self._tokenizer)[: self.max_tokens - 1]
            for text, label, where in self._told(split):
                if label not in numbers:
                    raise ValueError(
                        f"{where}: the label {shown(label)} is in no line of {self.train_file}; "
                        f"expected one of {', '.join(self.classes[:8])}"
                    )
                tokens = self._encode(text)
                if not tokens:
                    raise ValueError(
                        f"{where}: the tokenizer leaves nothing of the text {shown(text)}"
                    )
                made.append(([*first, *tokens[-(self.max_tokens - len(first)) :]], numbers[label]))
            self._rows[split] = made
        return self._rows[split]

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            return list(text.encode())
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _told(self, split: str) -> list[tuple[str, str, str]]:
        """(text, label, file and line) of every line."""
        path = getattr(self, f"{split}_file")
        if path is None:
            raise ValueError(f"{split}_file=None: expected the path of a JSONL file to {split} on")
        told = [(*_checked(row, where), where) for where, row in read_jsonl(path)]
        if not told:
            raise ValueError(f"{split}_file={shown(path)}: the file is empty")
        return told

    @property
    def vocab_size(self) -> int:
        """256 bytes, or the tokenizer's vocabulary."""
        return 256 if self._tokenizer is None else int(self._tokenizer.get_vocab_size())

    @property
    def num_classes(self) -> int:
        """Labels of the train file."""
        return len(self.classes)

    @property
    def length(self) -> int:
        """The longest text of any split, in tokens."""
        return max(len(tokens) for split in self.splits for tokens, _ in self.rows(split))

    @property
    def splits(self) -> tuple[str, ...]:
        """Those with a file."""
        return SPLITS if self.test_file is not None else ("train", "valid")

    def total(self, split: str) -> int:
        """Lines of the split's file."""
        return len(self.rows(split))

    def pick(self, split: str, chosen: np.ndarray) -> Batch:
        """The texts of these lines."""
        rows = self.rows(split)
        picked = [rows[i] for i in chosen]
        tokens, targets = pad_and_ask([t for t, _ in picked], [{len(t) - 1: c} for t, c in picked])
        return Batch(tokens, targets, {})

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy of the answers."""
        return count_answers(predictions, losses, batch)[0]

    def describe(self) -> str:
        """One line for a person."""
        unit = "bytes" if self.tokenizer is None else f"tokens of {self.tokenizer}"
        return f"labelled: {self.train_file}, {self.num_classes} classes, {unit}"

    def show(self, tokens: np.ndarray) -> list[str]:
        """Bytes as characters, or the tokenizer's pieces."""
        if self._tokenizer is not None:
            return [self._tokenizer.id_to_token(int(t)) for t in tokens]
        return [repr(chr(int(t)))[1:-1] for t in tokens]


def _checked(row: dict[str, Any], where: str) -> tuple[str, str]:
    text, label = row.get("text"), row.get("label")
    if not isinstance(text, str) or not text or type(label) not in (str, int):
        raise ValueError(
            f"{where}: expected an object with a 'text' that is not empty and a 'label' that is a "
            f"string or a whole number"
        )
    return text, str(label)
