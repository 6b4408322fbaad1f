"""Language modelling as in the paper's tables: `Text` from any source, through any tokenizer.

Sources are those of `hub.py`. Tokens are bytes; those of a pretrained model's tokenizer
(`tokenizers.py`); or, with `bpe:SIZE`, of a byte-level BPE that is made from the train text, for
small models that should see more than a sentence.

A file of more than `LARGE` bytes is encoded in pieces, cut after line ends, into arrays on disk
that later runs find again: WikiText-103's train text is 540 MB. Whether it is one piece or many
changes tokens at the cuts only, which are the same every time.
"""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from chacal.tasks.base import check_int, option
from chacal.tasks.hub import cache_folder, local_text, parse_source
from chacal.tasks.manual import help_text
from chacal.tasks.text import Corpus, Text, TextBacked, as_bytes, encode
from chacal.tasks.tokenizers import load_tokenizer

HELP = "help"
"""The source that every Python has."""

LARGE = 64 * 2**20
PIECE = 16 * 2**20
"""Bytes from which a file is encoded in pieces, and of a piece."""


@dataclass(frozen=True, kw_only=True)
class Language(TextBacked):
    """Next-token prediction on text from a file, from the hub, or from Python's help()."""

    train: str = option(HELP, "file, hub:NAME[@CONFIG]:SPLIT[:MB], or help for Python's help()")
    valid: str = option(HELP, "the same, to validate on; perplexity is reported on it")
    tokenizer: str | None = option(
        None, "file, folder or hub name, or bpe:SIZE to make one of the train text; default: bytes"
    )
    window: int = option(256, "tokens per example")
    eval_tokens: int = option(0, "tokens of the valid text that are asked, from its start; 0: all")

    name: ClassVar[str] = "lm"
    metric: ClassVar[str] = "perplexity"
    maximise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_int(self, "window", 1)
        check_int(self, "eval_tokens", 0)
        for field in ("train", "valid"):
            source = getattr(self, field)
            if source != HELP and parse_source(source) is None and not os.path.isfile(source):
                raise ValueError(f"{field}={source!r}: expected the path of an existing file")

    @cached_property
    def _text(self) -> Text:
        return _Sources(self)

    def describe(self) -> str:
        """One line for a person."""
        unit = "bytes" if self.tokenizer is None else f"tokens of {self.tokenizer}"
        told = "Python's help()" if self.train == HELP else self.train
        first = f", the first {self.eval_tokens:,} tokens" if self.eval_tokens else ""
        measured = "its own valid part" if self.valid == HELP else self.valid
        return f"lm: {told} in windows of {self.window} {unit}; measured on {measured}{first}"


class _Sources(Text):
    """`Text` whose files are sources; its test split is the valid one, as in the paper."""

    def __init__(self, task: Language) -> None:
        own = {"window": task.window, "tokenizer": task.tokenizer}
        files = {"train_file": task.train, "valid_file": task.valid, "test_file": task.valid}
        for name, value in {**files, **own, "_eval_tokens": task.eval_tokens}.items():
            object.__setattr__(self, name, value)

    @cached_property
    def _tokenizer(self) -> Any:
        if self.tokenizer is None or not self.tokenizer.startswith("bpe:"):
            return None if self.tokenizer is None else load_tokenizer(self.tokenizer)
        size = self.tokenizer.removeprefix("bpe:")
        if not size.isdigit() or int(size) < 257:
            raise ValueError(f"tokenizer={self.tokenizer!r}: expected bpe:SIZE of at least 257")
        return make_tokenizer(_raw(self.train_file, "train"), int(size))

    def _read(self, field: str) -> Corpus:
        split = field.removesuffix("_file")
        source = getattr(self, field)
        where = f"{split}={source!r}"
        path = None if source == HELP else local_text(source)
        if path is not None and path.stat().st_size > LARGE and self._tokenizer is not None:
            corpus = _read_large(path, self._tokenizer, where)
        else:
            raw = _raw(source, "valid" if split == "test" else split)
            corpus = (
                as_bytes(raw) if self._tokenizer is None else encode(raw, self._tokenizer, where)
            )
        limit: int = getattr(self, "_eval_tokens", 0)
        if split == "train" or not limit:
            return corpus
        # the first token is seen and not asked
        return Corpus(*(array[: limit + 1] for array in corpus))


def make_tokenizer(raw: bytes, size: int) -> Any:
    """A byte-level BPE of so many tokens, from a text."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise ValueError(
            f"tokenizer='bpe:{size}': making it needs the package 'tokenizers' (pip install "
            f"tokenizers); without it, leave `tokenizer` out to model bytes"
        ) from None
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(raw.decode("utf-8", "replace").splitlines(keepends=True), trainer)
    return made


def _raw(source: str, split: str) -> bytes:
    if source == HELP:
        return help_text(split)
    raw = local_text(source).read_bytes()
    if not raw:
        raise ValueError(f"{split}={source!r}: the file is empty")
    return raw


def _read_large(path: Path, tokenizer: Any, where: str) -> Corpus:
    """A file's tokens as arrays on disk, made on the first call."""
    at = path.stat()
    key = f"{path.resolve()} {at.st_size} {at.st_mtime_ns} {PIECE} {tokenizer.to_str()}"
    folder = cache_folder() / "tokens" / hashlib.sha256(key.encode()).hexdigest()[:16]
    kinds: dict[str, Any] = {
        "tokens": np.dtype("<u4"),
        "words": np.dtype("<u2"),
        "bytes": np.dtype("<u2"),
    }
    if not (folder / "bytes.bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        parts = {name: folder / f"{name}.{os.getpid()}.part" for name in kinds}
        opened = {name: open(part, "wb") for name, part in parts.items()}  # noqa: SIM115 - closed below
        try:
            for piece in pieces(path, PIECE):
                corpus = encode(piece, tokenizer, where)
                for name, kind in kinds.items():
                    opened[name].write(getattr(corpus, name).astype(kind).tobytes())
        finally:
            for file in opened.values():
                file.close()
        for name, part in parts.items():  # "bytes" last: it says that all are there
            os.replace(part, folder / f"{name}.bin")
    return Corpus(*(np.memmap(folder / f"{n}.bin", kind, "r") for n, kind in kinds.items()))


def pieces(path: Path, size: int) -> Any:
    """A file in pieces of about `size` bytes, each cut after a line end."""
    with open(path, "rb") as file:
        while piece := file.read(size):
            yield piece + file.readline()
