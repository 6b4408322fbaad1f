"""Language modelling in fixed windows, on text from any source, through any tokenizer.

    text     T h e   c a t   s a t
    tokens   T h e _ | c a t _ | ...      window=4
    targets  h e _ c | a t _ s | ...

Training windows start anywhere; those of valid and test follow one another, so that one pass asks
for every token but the text's first, once.

A source is a file; `hub:...`, text of the Hugging Face hub (`hub.py`); or `help`, the text of
Python's help(), whose topics are dealt out to the splits (`help_topics.py`). Tokens are bytes;
those of a pretrained model's tokenizer (`tokenizers.py`); or, with `bpe:SIZE`, of a byte-level BPE
that is made from the train text, for small models that should see more than a sentence.
"""

import math
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from chacal._echo import shown
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
    ratios,
    stream,
)
from chacal.tasks.corpus import Corpus, as_bytes, encode, encode_large, is_large, make_tokenizer
from chacal.tasks.help_topics import HELP, describe_help, help_text
from chacal.tasks.hub import local_text, parse_source
from chacal.tasks.tokenizers import load_tokenizer

VALID = "valid"
"""As the test's source: the valid text. The paper reports perplexity on the one it has."""

LARGEST_VOCABULARY = 10_000_000
"""Tokens of a BPE that is made here; its maker takes the room for all of them at once."""


@dataclass(frozen=True, kw_only=True)
class Language(NextToken):
    """Next-token prediction on text from a file, from the hub, or from Python's help()."""

    train: str = option(HELP, "file, hub:NAME[@CONFIG]:SPLIT[:MB], or help for Python's help()")
    valid: str = option(HELP, "the same, to validate on")
    test: str | None = option(
        VALID, "the same, to test on; valid for the valid text, none for no test"
    )
    tokenizer: str | None = option(
        None, "file, folder or hub name, or bpe:SIZE to make one of the train text; default: bytes"
    )
    window: int = option(256, "tokens per example")
    eval_tokens: int = option(
        0, "tokens of the valid and the test text that are asked, from the start; 0: all"
    )

    name: ClassVar[str] = "language"
    metric: ClassVar[str] = "perplexity"
    maximise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_int(self, "window", 1)
        check_int(self, "eval_tokens", 0)
        for split, source in self._sources.items():
            if not isinstance(source, str):
                raise ValueError(f"{split}={shown(source)}: expected a file, hub:... or {HELP}")
            if source == HELP or parse_source(source) is not None:
                continue
            if not os.path.isfile(source):
                raise ValueError(f"{split}={shown(source)}: expected the path of an existing file")
            if os.path.getsize(source) == 0:
                raise ValueError(f"{split}={shown(source)}: the file is empty")
            if self.tokenizer is None:
                self._check_length(split, os.path.getsize(source))
        if (self.train == HELP) != (self.valid == HELP):
            raise ValueError(
                f"train={shown(self.train)} and valid={shown(self.valid)}: expected a text of "
                f"your own for both, or for neither"
            )

    @property
    def _sources(self) -> dict[str, str]:
        """The splits that have a text of their own, and where it is."""
        own = {"train": self.train, "valid": self.valid}
        return own if self.test in (None, VALID) else {**own, "test": str(self.test)}

    @property
    def splits(self) -> tuple[str, ...]:
        """All, or no test where none is given."""
        return SPLITS if self.test is not None else ("train", "valid")

    def _check_length(self, split: str, tokens: int) -> None:
        # training needs one whole window; a pass over valid or test pads its last one
        needed = self.window + 1 if split == "train" else 2
        if tokens < needed:
            raise ValueError(
                f"{split}={shown(self._sources[split])}: too short, {tokens} tokens; expected at "
                f"least {needed}"
            )

    @cached_property
    def _tokenizer(self) -> Any:
        if self.tokenizer is None or not self.tokenizer.startswith("bpe:"):
            return None if self.tokenizer is None else load_tokenizer(self.tokenizer)
        size = self.tokenizer.removeprefix("bpe:")
        if not size.isdecimal() or len(size) > 9 or not 257 <= int(size) <= LARGEST_VOCABULARY:
            raise ValueError(
                f"tokenizer={shown(self.tokenizer)}: expected bpe:SIZE with 257 to "
                f"{LARGEST_VOCABULARY} tokens"
            )
        return make_tokenizer(self._raw("train"), int(size))

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        return {}

    def corpus(self, split: str) -> Corpus:
        """The split's text, read once."""
        check_split(split)
        if split == "test" and self.test == VALID:
            return self.corpus("valid")
        if split not in self.splits:
            raise ValueError(f"{split}=None: expected a text to {split} on")
        if split not in self._corpora:
            corpus = self._read(split)
            if split != "train" and self.eval_tokens:
                # the first token is seen and not asked
                corpus = Corpus(*(array[: self.eval_tokens + 1] for array in corpus))
            self._check_length(split, len(corpus.tokens))
            self._corpora[split] = corpus
        return self._corpora[split]

    def _read(self, split: str) -> Corpus:
        source = self._sources[split]
        if self._tokenizer is None:
            return as_bytes(self._raw(split))
        where = f"{split}={shown(source)}"
        if source != HELP and is_large(local_text(source)):
            return encode_large(local_text(source), self._tokenizer, where)
        return encode(self._raw(split), self._tokenizer, where)

    def _raw(self, split: str) -> bytes:
        source = self._sources[split]
        if source == HELP:
            return help_text(split)
        try:
            return local_text(source).read_bytes()
        except OSError as error:
            raise ValueError(f"{split}={shown(source)}: cannot be read: {error.strerror}") from None

    @property
    def vocab_size(self) -> int:
        """256 bytes, or the tokenizer's vocabulary."""
        return 256 if self._tokenizer is None else int(self._tokenizer.get_vocab_size())

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Train: windows from places drawn by seed and step. Else: the step-th windows in order."""
        if split == "train":
            # the stream is named after the first of such tasks: another name, other windows
            drawn = stream("text", seed, step).random_sample(size)
            asked = len(self.corpus(split).tokens) - 1
            return self._windows(split, (drawn * (asked - self.window + 1)).astype(np.int64))
        windows = self._count(split)
        return self.pick(split, np.arange(windows)[part(split, step, size, windows)])

    def pick(self, split: str, chosen: np.ndarray) -> Batch:
        """The windows of these numbers, of those that follow one another."""
        return self._windows(split, chosen * self.window)

    def _windows(self, split: str, first: np.ndarray) -> Batch:
        corpus = self.corpus(split)
        asked = len(corpus.tokens) - 1
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
        return None if split == "train" else -(-self._count(split) // size)

    def stored(self, split: str) -> int | None:
        """Windows that follow one another; of training, which draws them, None."""
        return None if split == "train" else self._count(split)

    def _count(self, split: str) -> int:
        return -(-(len(self.corpus(split).tokens) - 1) // self.window)

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
        mean = ratios(totals)
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
        told = describe_help() if self.train == HELP else self.train
        measured = "its own valid part" if self.valid == HELP else self.valid
        first = f", the first {self.eval_tokens:,} tokens" if self.eval_tokens else ""
        tested = "its own test part" if self.test == HELP else self.test
        also = "" if self.test in (None, VALID) else f"; tested on {tested}"
        return (
            f"language: {told} in windows of {self.window} {unit}; measured on {measured}{first}"
            f"{also}"
        )

    def show(self, tokens: np.ndarray) -> list[str]:
        """Bytes as characters (Latin-1 where they are printable), or the tokenizer's pieces."""
        if self._tokenizer is not None:
            return [self._tokenizer.id_to_token(int(t)) for t in tokens]
        return [repr(chr(int(t)))[1:-1] for t in tokens]


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
