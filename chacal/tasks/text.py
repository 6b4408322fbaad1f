"""Language modelling on local text files, in fixed windows.

    file     T h e   c a t   s a t
    tokens   T h e _ | c a t _ | ...      window=4
    targets  h e _ c | a t _ s | ...

Training windows start anywhere; those of valid and test follow one another, so that one pass asks
for every token but the file's first, once. Perplexity per token depends on the tokenizer; two other
figures do not. Per *word*, as WikiText counts: the pieces between spaces and line ends, and each
line end as one more (its <eos>). Per *byte* of UTF-8, in bits. A token owns the words that start,
and the bytes that lie, after the token before it and up to its own end.
"""

import math
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chacal.tasks.base import (
    IGNORE,
    SPLITS,
    Batch,
    NextToken,
    Totals,
    check_int,
    check_split,
    option,
    part,
    stream,
)
from chacal.tasks.tokenizers import load_tokenizer

_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


class Corpus(NamedTuple):
    """A file as tokens, with the words and bytes that each token owns."""

    tokens: np.ndarray
    words: np.ndarray
    bytes: np.ndarray


def _word_starts(data: np.ndarray) -> np.ndarray:
    """UTF-8 bytes -> 1 where a word starts and where a line ends."""
    blank = _BLANK[data]
    after_blank = np.concatenate([[True], blank[:-1]])
    return ((~blank & after_blank) | (data == ord("\n"))).astype(np.uint8)


def as_bytes(raw: bytes) -> Corpus:
    """Text whose tokens are its bytes."""
    data = np.frombuffer(raw, dtype=np.uint8)
    return Corpus(data, _word_starts(data), np.ones(len(data), dtype=np.uint8))


def encode(raw: bytes, tokenizer: Any, where: str) -> Corpus:
    """Text through a tokenizer; `where` names it in errors."""
    starts = _word_starts(np.frombuffer(raw, dtype=np.uint8))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text ({error})") from None
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if not encoding.ids:
        return Corpus(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    # offsets count characters; bytes_before[i] turns them into bytes
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    bytes_before = np.concatenate([[0], np.cumsum(widths)])
    words_before = np.concatenate([[0], np.cumsum(starts, dtype=np.int64)])
    ends = np.maximum.accumulate([end for _, end in encoding.offsets])
    ends[-1] = len(text)
    borders = np.concatenate([[0], bytes_before[ends]])
    return Corpus(
        np.array(encoding.ids, dtype=np.int64), np.diff(words_before[borders]), np.diff(borders)
    )


@dataclass(frozen=True, kw_only=True)
class Text(NextToken):
    """Next-token prediction on text files, as bytes or through a tokenizer."""

    train_file: str = option("", "text file to train on")
    valid_file: str = option("", "text file to validate on")
    test_file: str | None = option(None, "text file to test on, if any")
    tokenizer: str | None = option(None, "JSON file of the `tokenizers` package; default: bytes")
    window: int = option(256, "tokens per example")

    name: ClassVar[str] = "text"
    metric: ClassVar[str] = "perplexity"
    maximise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_int(self, "window", 1)
        for field in ("train_file", "valid_file", "test_file", "tokenizer"):
            path = getattr(self, field)
            if path is None and field in ("test_file", "tokenizer"):
                continue
            if not isinstance(path, str) or not os.path.isfile(path):
                raise ValueError(f"{field}={path!r}: expected the path of an existing file")
            if os.path.getsize(path) == 0:
                raise ValueError(f"{field}={path!r}: the file is empty")
        if self.tokenizer is None:
            self._check_length("train_file", os.path.getsize(self.train_file))

    def _check_length(self, field: str, tokens: int) -> None:
        # training needs one whole window; a pass over valid or test pads its last one
        needed = self.window + 1 if field == "train_file" else 2
        if tokens < needed:
            path = getattr(self, field)
            raise ValueError(
                f"{field}={path!r}: too short, {tokens} tokens; expected at least {needed}"
            )

    @cached_property
    def _tokenizer(self) -> Any:
        return None if self.tokenizer is None else load_tokenizer(self.tokenizer)

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        return {}

    def corpus(self, split: str) -> Corpus:
        """The split's file, read once."""
        check_split(split)
        if split not in self._corpora:
            field = f"{split}_file"
            if getattr(self, field) is None:
                raise ValueError(f"{field}=None: expected the path of a text file to {split} on")
            corpus = self._read(field)
            self._check_length(field, len(corpus.tokens))
            self._corpora[split] = corpus
        return self._corpora[split]

    def _read(self, field: str) -> Corpus:
        path = getattr(self, field)
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except OSError as error:
            raise ValueError(f"{field}={path!r}: cannot be read: {error.strerror}") from None
        if self._tokenizer is None:
            return as_bytes(raw)
        return encode(raw, self._tokenizer, f"{field}={path!r}")

    @property
    def vocab_size(self) -> int:
        """256 bytes, or the tokenizer's vocabulary."""
        return 256 if self._tokenizer is None else int(self._tokenizer.get_vocab_size())

    @property
    def splits(self) -> tuple[str, ...]:
        """Those with a file."""
        return SPLITS if self.test_file is not None else ("train", "valid")

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Train: windows from places drawn by seed and step. Else: the step-th windows in order."""
        corpus = self.corpus(split)
        asked = len(corpus.tokens) - 1
        if split == "train":
            drawn = stream("text", seed, step).random_sample(size)
            first = (drawn * (asked - self.window + 1)).astype(np.int64)
        else:
            windows = -(-asked // self.window)
            first = np.arange(windows)[part(split, step, size, windows)] * self.window
        at = first[:, None] + np.arange(self.window)
        real = at < asked
        at = np.minimum(at, asked - 1)
        tokens = np.where(real, corpus.tokens[at].astype(np.int64), 0)
        targets = np.where(real, corpus.tokens[at + 1].astype(np.int64), IGNORE)
        info = {
            "words": np.where(real, corpus.words[at + 1], 0).sum(1, dtype=np.int64),
            "bytes": np.where(real, corpus.bytes[at + 1], 0).sum(1, dtype=np.int64),
        }
        return Batch(tokens, targets, info)

    def batches(self, split: str, size: int) -> int | None:
        """Batches in one pass over valid or test, the last one perhaps smaller; None for train."""
        if split == "train":
            return None
        windows = -(-(len(self.corpus(split).tokens) - 1) // self.window)
        return -(-windows // size)

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """The summed loss against tokens, words and bytes, and token accuracy."""
        asked = batch.targets != IGNORE
        loss = float(losses[asked].sum(dtype=np.float64))
        right = (predictions == batch.targets) & asked
        return {
            "loss": (loss, float(asked.sum())),
            "loss/word": (loss, float(batch.info["words"].sum())),
            "loss/byte": (loss, float(batch.info["bytes"].sum())),
            "accuracy": (float(right.sum()), float(asked.sum())),
        }

    def summarise(self, totals: Totals) -> dict[str, float]:
        """Perplexity per token and per word, bits per byte, loss and accuracy."""
        mean = {name: total / n if n else math.nan for name, (total, n) in totals.items()}
        return {
            "loss": mean["loss"],
            "accuracy": mean["accuracy"],
            "perplexity": _exp(mean["loss"]),
            "perplexity_per_word": _exp(mean["loss/word"]),
            "bits_per_byte": mean["loss/byte"] / math.log(2),
        }

    def describe(self) -> str:
        """One line for a person."""
        unit = "bytes" if self.tokenizer is None else f"tokens of {self.tokenizer}"
        return f"text: {self.train_file} in windows of {self.window} {unit}"

    def show(self, tokens: np.ndarray) -> list[str]:
        """Bytes as characters (Latin-1 where they are printable), or the tokenizer's pieces."""
        if self._tokenizer is not None:
            return [self._tokenizer.id_to_token(int(t)) for t in tokens]
        return [repr(chr(int(t)))[1:-1] for t in tokens]


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


class TextBacked(NextToken):
    """A task that is `Text` on a text of its own, `_text`."""

    @property
    def _text(self) -> Text:
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        """256 bytes, or the tokenizer's vocabulary."""
        return self._text.vocab_size

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """As `Text`: train windows start anywhere, those of valid and test follow one another."""
        return self._text.batch(split, seed, step, size)

    def batches(self, split: str, size: int) -> int | None:
        """Batches in one pass over valid or test; None for train."""
        return self._text.batches(split, size)

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """As `Text`."""
        return self._text.count(predictions, losses, batch)

    def summarise(self, totals: Totals) -> dict[str, float]:
        """Perplexity per token and per word, bits per byte, loss and accuracy."""
        return self._text.summarise(totals)

    def show(self, tokens: np.ndarray) -> list[str]:
        """Bytes as characters, or the tokenizer's pieces."""
        return self._text.show(tokens)
