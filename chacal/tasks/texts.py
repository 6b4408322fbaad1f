"""Texts with answers inside, through any tokenizer: which tokens are asked, and where.

    text      " ann = red\n tom = ann\n\n tom is red\n"
    answer                                    ^^^^
    tokens     ann  =  red \n tom  =  ann \n\n  tom   is
    targets     -   -   -   -  -   -   -    -    -    red

An answer is a stretch of the text. Every token that overlaps it is asked, at the token before it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from chacal.tasks.base import IGNORE
from chacal.tasks.tokenizers import opening

PAD = "<pad>"


class ThroughTokenizer:
    """What a task has whose examples are text: stands before `Task` among a task's bases."""

    _tokenizer: Any
    """Of the `tokenizers` package, or something like it."""

    @property
    def vocab_size(self) -> int:
        """The tokenizer's."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def num_classes(self) -> int:
        """The next token."""
        return self.vocab_size

    def show(self, tokens: np.ndarray) -> list[str]:
        """The tokens' texts."""
        return [self._tokenizer.decode([int(t)]) for t in tokens]


class Encoding(NamedTuple):
    """What `tokenizers` gives, as far as it is used here."""

    ids: list[int]
    offsets: list[tuple[int, int]]


def cut(tokenizer: Any, text: str) -> Encoding:
    """A text's tokens, after those that the tokenizer begins every text with."""
    told, first = tokenizer.encode(text, add_special_tokens=False), opening(tokenizer)
    return Encoding([*first, *told.ids], [(0, 0)] * len(first) + list(told.offsets))


class Asked(NamedTuple):
    """A text as tokens: `targets` by place, and the number of the answer each is a part of."""

    tokens: list[int]
    targets: dict[int, int]
    parts: dict[int, int]


def ask(tokenizer: Any, text: str, answers: Sequence[tuple[int, int]]) -> Asked:
    """Cut a text that tells its answers; what follows the last is left out.

    Args:
        tokenizer: of the `tokenizers` package, or `Words`.
        text: with its answers.
        answers: where each begins and ends, in order.
    """
    told = cut(tokenizer, text)
    targets: dict[int, int] = {}
    parts: dict[int, int] = {}
    at = 0
    for part, (begin, end) in enumerate(answers):
        while at < len(told.ids) and told.offsets[at][1] <= begin:
            at += 1
        while at < len(told.ids) and told.offsets[at][0] < end:
            targets[at - 1], parts[at - 1] = told.ids[at], part
            at += 1
    return Asked(told.ids[: max(targets) + 1], targets, parts)


def ask_untold(tokenizer: Any, text: str, places: Sequence[int], answers: Sequence[str]) -> Asked:
    """Cut a text that does not tell its answers: each is one token, asked where a question ends.

    Args:
        tokenizer: as for `ask`.
        text: without answers.
        places: where each question ends.
        answers: what would follow.
    """
    told = cut(tokenizer, text)
    ends = [end for _, end in told.offsets]
    targets: dict[int, int] = {}
    parts: dict[int, int] = {}
    for part, (place, answer) in enumerate(zip(places, answers, strict=True)):
        at = int(np.searchsorted(ends, place))
        ids = tokenizer.encode(answer, add_special_tokens=False).ids
        if len(ids) != 1:
            raise ValueError(
                f"told=False: the answer {answer!r} is {len(ids)} tokens of this tokenizer; "
                f"expected one, or answers that stand in the text (told=True)"
            )
        targets[at], parts[at] = ids[0], part
    return Asked(told.ids, targets, parts)


def stack(rows: Sequence[Asked]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of one length, padded behind.

    Returns:
        (B, n) tokens, (B, n) targets, and (B, n) numbers of the answers, -1 where none is asked.
    """
    tokens = np.zeros((len(rows), max(len(row.tokens) for row in rows)), dtype=np.int64)
    targets, parts = np.full_like(tokens, IGNORE), np.full_like(tokens, -1)
    for i, row in enumerate(rows):
        tokens[i, : len(row.tokens)] = row.tokens
        for place, target in row.targets.items():
            targets[i, place], parts[i, place] = target, row.parts[place]
    return tokens, targets, parts


def right_answers(wrong: np.ndarray, parts: np.ndarray, answers: int) -> np.ndarray:
    """Which answers have no wrong token.

    Args:
        wrong: (B, n) asked tokens that are not as they should be.
        parts: (B, n) of `stack`.
        answers: most answers of a row.

    Returns:
        (B, answers); True also for answers that a row does not have.
    """
    keys = np.arange(len(wrong))[:, None] * answers + parts
    return np.bincount(keys[wrong], minlength=len(wrong) * answers).reshape(-1, answers) == 0


class Words:
    """A closed language's own tokens: words with the space before them, signs and line ends."""

    _PIECE = re.compile(r" ?\w+| ?[^\w\s]|\n+")

    def __init__(self, texts: Iterable[str]) -> None:
        """Of all the words that these texts have, in order; the padding is token 0."""
        found = dict.fromkeys(piece for text in texts for piece in self._PIECE.findall(text))
        self.pieces = (PAD, *found)
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}

    def encode(self, text: str, add_special_tokens: bool = False) -> Encoding:
        """Tokens, and where in the text each begins and ends."""
        found = list(self._PIECE.finditer(text))
        return Encoding([self.ids[m[0]] for m in found], [m.span() for m in found])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens."""
        return "".join(self.pieces[i] for i in ids)

    def get_vocab_size(self) -> int:
        """Pieces, with the padding."""
        return len(self.pieces)
