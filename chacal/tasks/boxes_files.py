"""The Boxes files of Kim and Schuster (2023), so that their data trains and evaluates too.

A folder holds {train,dev,test}-t5.jsonl, one example per line:

    sentence         Box 0 contains the letter, Box 1 is empty, Box 2 contains the book and the key.
                     Move the book and the key from Box 2 to Box 1. Box 1 contains the book and the
                     key.
    sentence_masked  ... from Box 2 to Box 1. Box 1 <extra_id_0> .
    masked_content   <extra_id_0> contains the book and the key
    numops           1

The files for zero-shot use, which mask only what follows "contains" and say "nothing" for an empty
box, are read as well. Text is cut into words, and the grammar's fixed phrases into one token each;
the vocabulary is what the train file holds. With `tokenizer`, the same text goes to a pretrained
model. The loss counts the masked content and the period that ends it.

Lines that follow each other ask for the boxes of one story. With `together` training reads them as
one text, a sentence for each box: seven answers for hardly more tokens than one. Tests do not.
"""

import os
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chacal._echo import shown
from chacal._plain import added
from chacal.tasks.base import IGNORE, Batch, Totals, check_split, option
from chacal.tasks.phrases import PAD
from chacal.tasks.stored import StoredTask, read_jsonl
from chacal.tasks.tokenizers import load_tokenizer, opening

MASK = "<extra_id_0>"
FILES = {"train": "train-t5.jsonl", "valid": "dev-t5.jsonl", "test": "test-t5.jsonl"}
"""The file of each split."""

_BOX = r"(?:Box|Container) \w+"
_PIECE = re.compile(
    rf" Move the contents of {_BOX}| (?:Move|Put|Remove) the| (?:contains|and) the| is empty"
    rf"| (?:from|to|into) {_BOX}\.?|,? {_BOX}| ?[^\s.,]+| ?[.,]"
)
_ASKED = re.compile(rf" {_BOX}(?: contains)?$")
"""The end of a prompt: which box is asked for."""


def items(content: str) -> frozenset[str]:
    """The things that a box's description names, in no order; none if it says that it is empty."""
    told = content.strip().rstrip(".").strip()
    if told in ("is empty", "nothing", "contains nothing"):
        return frozenset()
    parts = re.split(r",? and |, ", told.removeprefix("contains").strip())
    return frozenset(told.strip().removeprefix("the ") for told in parts)


class Row(NamedTuple):
    """A text's tokens, where answers begin and end in them, and how often their box was changed.

    `known` says whether the train file has all of its words.
    """

    tokens: list[int]
    answers: list[tuple[int, int]]
    numops: int
    known: bool = True


class Example(NamedTuple):
    """One line of a file; `where` names both."""

    where: str
    prompt: str
    content: str
    numops: int


def _example(where: str, row: dict[str, Any]) -> Example:
    for key, kind in (("sentence_masked", str), ("masked_content", str), ("numops", int)):
        if key not in row:
            raise ValueError(f"{where}: the key {shown(key)} is missing")
        if type(row[key]) is not kind:
            expected = "a string" if kind is str else "an integer"
            raise ValueError(f"{where}: {key}={shown(row[key])}: expected {expected}")
    prompt, mask, _ = row["sentence_masked"].partition(MASK)
    prompt = " ".join(prompt.split())
    content = " ".join(row["masked_content"].replace(MASK, " ").split()).rstrip(" .")
    if not mask or not prompt:
        raise ValueError(f"{where}: sentence_masked: expected text before {MASK}")
    if not content:
        raise ValueError(f"{where}: masked_content: expected what {MASK} stands for")
    return Example(where, prompt, content, row["numops"])


def read_examples(path: str) -> list[Example]:
    """The examples of one file; ValueError names the file and the line at fault."""
    examples = [_example(where, row) for where, row in read_jsonl(path)]
    if not examples:
        raise ValueError(f"{path}: expected at least one example")
    return examples


def _story(example: Example) -> str:
    return _ASKED.sub("", example.prompt)


def by_story(examples: list[Example]) -> list[list[Example]]:
    """Examples that follow each other and ask for boxes of one story, together."""
    return [list(some) for _, some in groupby(examples, key=_story)]


def tell(asked: list[Example]) -> tuple[str, list[tuple[int, int]]]:
    """A story and all that is asked of it, with its answers, and where each begins and ends."""
    text, answers = "", []
    for example in asked:
        prompt = example.prompt.removeprefix(_story(example)) if text else example.prompt
        answer = f" {example.content}."
        answers.append((len(text + prompt), len(text + prompt + answer)))
        text += prompt + answer
    return text, answers


def _cut(text: str) -> list[str]:
    return _PIECE.findall(" " + text)


@dataclass(frozen=True, kw_only=True)
class BoxesFiles(StoredTask):
    """Kim and Schuster's Boxes: what one box holds after a story, read from their files."""

    data: str = option("", "folder with train-t5.jsonl, dev-t5.jsonl and test-t5.jsonl")
    tokenizer: str | None = added(
        None, help="file, folder or hub name of a tokenizer; default: words and fixed phrases"
    )
    train_name: str = added(FILES["train"], help="name of the file to train on, in the same folder")
    together: bool = added(
        False, help="train on all lines of a story as one text that asks for one box after another"
    )

    name: ClassVar[str] = "boxes-files"
    metric: ClassVar[str] = "exact_match"
    maximise: ClassVar[bool] = True
    generates: ClassVar[bool] = True
    free_running: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.data, str) or not os.path.isdir(self.data):
            raise ValueError(f"data={shown(self.data)}: expected a folder with {self.train_name}")
        for split in ("train", "valid"):
            if not os.path.isfile(self._path(split)):
                raise ValueError(f"{self._path(split)}: no such file")

    def _path(self, split: str) -> str:
        return os.path.join(self.data, self.train_name if split == "train" else FILES[split])

    @cached_property
    def _files(self) -> dict[str, list[Example]]:
        return {}

    def examples(self, split: str) -> list[Example]:
        """The examples of a split, in the file's order."""
        check_split(split)
        if split not in self._files:
            self._files[split] = read_examples(self._path(split))
        return self._files[split]

    @cached_property
    def _rows(self) -> dict[str, list[Row]]:
        return {}

    def rows(self, split: str) -> list[Row]:
        """Every example of a split as tokens."""
        if split not in self._rows:
            told = self.examples(split)
            texts = by_story(told) if self.together and split == "train" else [[e] for e in told]
            self._rows[split] = (
                [self._encode(asked) for asked in texts]
                if self._tokenizer is None
                else self._encode_all(texts)
            )
        return self._rows[split]

    def _encode(self, asked: list[Example]) -> Row:
        """In phrases; one that the train file lacks is padding, and the text then lost."""
        text, answers = tell(asked)
        tokens: list[int] = []
        places = []
        end = 0
        for first, last in answers:
            tokens += [self.ids.get(piece, 0) for piece in _cut(text[end:first].strip())]
            begun = len(tokens)
            tokens += [self.ids.get(piece, 0) for piece in _cut(text[first:last].strip())]
            places.append((begun, len(tokens)))
            end = last
        return Row(tokens, places, asked[0].numops, known=0 not in tokens)

    def _encode_all(self, texts: list[list[Example]]) -> list[Row]:
        """Through the tokenizer, to which no word is new."""
        told = [tell(asked) for asked in texts]
        made = self._tokenizer.encode_batch([text for text, _ in told], add_special_tokens=False)
        begin = opening(self._tokenizer)
        rows = []
        for asked, (_, answers), text in zip(texts, told, made, strict=True):
            ends = [end for _, end in text.offsets]
            # from the first token that reaches into an answer to its last one
            places = [
                (len(begin) + bisect_right(ends, first), len(begin) + bisect_right(ends, last))
                for first, last in answers
            ]
            rows.append(Row([*begin, *text.ids], places, asked[0].numops))
        return rows

    @cached_property
    def _tokenizer(self) -> Any:
        return None if self.tokenizer is None else load_tokenizer(self.tokenizer)

    @cached_property
    def phrases(self) -> tuple[str, ...]:
        """The token strings by id: the padding, the period, and what the train file holds."""
        texts = (text for e in self.examples("train") for text in (e.prompt, e.content))
        pieces = {piece for text in texts for piece in _cut(text)}
        return (PAD, ".", *sorted(pieces - {"."}))

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token string."""
        return {phrase: i for i, phrase in enumerate(self.phrases)}

    @property
    def vocab_size(self) -> int:
        """Phrases, with the padding; or the tokenizer's tokens."""
        if self._tokenizer is not None:
            return int(self._tokenizer.get_vocab_size())
        return len(self.phrases)

    @property
    def num_classes(self) -> int:
        """The next token."""
        return self.vocab_size

    @cached_property
    def length(self) -> int:
        """The longest text of any of the files."""
        return max(len(row.tokens) - 1 for split in self.splits for row in self.rows(split))

    @property
    def splits(self) -> tuple[str, ...]:
        """Those whose file is there."""
        return tuple(split for split in FILES if os.path.isfile(self._path(split)))

    def total(self, split: str) -> int:
        """Lines of the split's file, or stories."""
        return len(self.rows(split) if self.together else self.examples(split))

    def pick(self, split: str, chosen: np.ndarray) -> Batch:
        """The texts of these numbers; of one with words that are not known, nothing is asked."""
        rows = self.rows(split)
        picked = [rows[i] for i in chosen]
        n = max(len(row.tokens) for row in picked) - 1
        tokens = np.zeros((len(picked), n), dtype=np.int64)
        targets = np.full_like(tokens, IGNORE)
        for i, row in enumerate(picked):
            tokens[i, : len(row.tokens) - 1] = row.tokens[:-1]
            for first, last in row.answers if row.known else ():
                targets[i, first - 1 : last - 1] = row.tokens[first:last]
        numops = np.array([row.numops for row in picked], dtype=np.int64)
        known = np.array([row.known for row in picked])
        return Batch(tokens, targets, {"numops": numops, "known": known})

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy of the content's tokens; order-insensitive exact match, by numops.

        An example matches when the predicted content, up to its first period, names the same set
        of things. Predictions are the model's free-running answer (`free_running`), so that one
        told in another order can match. An example with a word that the train file lacks never
        does; `unknown_words` is their share, told where there are any.
        """
        asked = batch.targets != IGNORE
        right = asked & (predictions == batch.targets)
        known = batch.info["known"]
        match = known & [
            items(self.decode(guess[at])) == items(self.decode(target[at]))
            for guess, target, at in zip(predictions, batch.targets, asked, strict=True)
        ]
        totals = {
            "loss": (float(losses.sum()), float(asked.sum())),
            "accuracy": (float(right.sum()), float(asked.sum())),
            "exact_match": (float(match.sum()), float(len(match))),
            "unknown_words": (float((~known).sum()), float(len(known))),
        }
        for numops in np.unique(batch.info["numops"]).tolist():
            group = match[batch.info["numops"] == numops]
            totals[f"exact_match/numops={numops}"] = (float(group.sum()), float(len(group)))
        return totals

    def summarise(self, totals: Totals) -> dict[str, float]:
        """Means; of unknown words only where there are any."""
        means = super().summarise(totals)
        if not totals["unknown_words"][0]:
            del means["unknown_words"]
        return means

    def decode(self, tokens: np.ndarray) -> str:
        """The text of a content's tokens, up to its first period."""
        told = (
            "".join(self.show(tokens))
            if self._tokenizer is None
            else self._tokenizer.decode(tokens.tolist())
        )
        return str(told.partition(".")[0].strip())

    def describe(self) -> str:
        """One line for a person."""
        size = f"{len(self.examples('train'))} training examples"
        if self.together:
            size += f" in {self.total('train')} texts"
        unit = f"{self.vocab_size} phrases" if self.tokenizer is None else self.tokenizer
        return f"boxes-files: {size}, {unit}, from {self.data}"

    def show(self, tokens: np.ndarray) -> list[str]:
        """The phrases of one example."""
        if self._tokenizer is not None:
            return [self._tokenizer.decode([int(t)]) for t in tokens]
        return [self.phrases[i] for i in np.asarray(tokens).tolist()]
