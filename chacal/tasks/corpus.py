"""Text as tokens, with the words and bytes that each token owns.

Perplexity per token depends on the tokenizer; two other figures do not. Per *word*, as WikiText
counts: the pieces between spaces and line ends, and each line end as one more (its <eos>). Per
*byte* of UTF-8, in bits. A token owns the words that start, and the bytes that lie, after the token
before it and up to its own end.

A file of more than `LARGE` bytes is encoded in pieces, cut after line ends, into arrays on disk
that later runs find again: WikiText-103's train text is 540 MB. Whether it is one piece or many
changes tokens at the cuts only, which are the same every time.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chacal._files import cache_folder

LARGE = 64 * 2**20
PIECE = 16 * 2**20
"""Bytes from which a file is encoded in pieces, and of a piece."""

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


def is_large(path: Path) -> bool:
    """Whether a file is encoded in pieces."""
    return path.stat().st_size > LARGE


def encode_large(path: Path, tokenizer: Any, where: str) -> Corpus:
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


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """A file in pieces of about `size` bytes, each cut after a line end."""
    with open(path, "rb") as file:
        while piece := file.read(size):
            yield piece + file.readline()
