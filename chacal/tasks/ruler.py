"""RULER's variable tracking (Hsieh et al. 2024): name all variables that have a value.

    Memorize and track the chain(s) of variable assignment hidden in the following text.

    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    VAR ABCDE = 12345
    VAR QRSTU = 67890
    VAR FGHIJ = VAR ABCDE
    ...
    Question: Find all variables that are assigned the value 12345 in the text above. Answer:
    According to the chain(s) of variable assignment in the text above, 2 variables are assigned the
    value 12345, they are: ABCDE FGHIJ

RULER's score is the share of the variables that the answer names. With one chain, which is its
default, naming every variable of the text scores 100 without following anything. So chains are two
here, and the score that counts is of exact sets; RULER's stands beside it as `recall`.

Worlds are those of `variables` (`assignments.py`), of chains that are equally long. Files in
RULER's format can be read in place of the generated tests, and written (`chacal ruler`).
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chacal.tasks.assignments import ORDERS, draw_world, equal_turns
from chacal.tasks.base import (
    IGNORE,
    Batch,
    Task,
    Totals,
    by_group,
    check_choice,
    check_int,
    check_number,
    check_split,
    option,
    split_of,
    stream,
    uniforms,
)
from chacal.tasks.stored import read_jsonl
from chacal.tasks.texts import Asked, ThroughTokenizer, ask, stack
from chacal.tasks.tokenizers import load_tokenizer
from chacal.tasks.variables import LETTERS, letters

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    "{context}\nQuestion: Find all variables that are assigned the value {value} in the text above."
)
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} "
    "variables are assigned the value {value}, they are:"
)
END = "\n"
"""What ends an answer."""

FIRST_VALUE, VALUES = 10_000, 90_000
"""Values are numbers of five digits."""


class Question(NamedTuple):
    """A text with its question, what the answer begins with, and the variables to name."""

    text: str
    prefix: str
    names: tuple[str, ...]

    @property
    def hops(self) -> int:
        """Of the variable that is farthest from the value."""
        return len(self.names) - 1


@dataclass(frozen=True, kw_only=True)
class Ruler(ThroughTokenizer, Task):
    """RULER's variable tracking: which variables have a value, several chains, exact sets."""

    hops: int = option(4, "hops of every chain; of a training text, at most")
    min_hops: int = option(1, "fewest hops of a training text's chains")
    chains: int = option(2, "chains that are interleaved; one is asked for")
    order: str = option("forward", f"how statements are told: {', '.join(ORDERS)}")
    noise: float = option(1.0, "lines of noise for every statement")
    curriculum_steps: int = option(
        20, "training steps until chains have one more hop, from min_hops; 0: no curriculum"
    )
    valid_file: str | None = option(None, "JSONL in RULER's format to validate on")
    test_file: str | None = option(None, "JSONL in RULER's format to test on")
    tokenizer: str | None = option(
        None, "file, folder or hub name of a tokenizer; default: bytes of UTF-8"
    )

    name: ClassVar[str] = "variables-ruler"
    metric: ClassVar[str] = "exact_match"
    maximise: ClassVar[bool] = True
    generates: ClassVar[bool] = True
    free_running: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int(self, "hops", 0)
        check_int(self, "min_hops", 0, self.hops)
        check_int(self, "chains", 1)
        check_int(self, "curriculum_steps", 0)
        check_number(self, "noise")
        check_choice(self, "order", ORDERS)
        for field in ("valid_file", "test_file"):
            path = getattr(self, field)
            if path is not None and not os.path.isfile(path):
                raise ValueError(f"{field}={path!r}: expected the path of an existing JSONL file")

    @cached_property
    def _tokenizer(self) -> Any:
        return Bytes() if self.tokenizer is None else load_tokenizer(self.tokenizer)

    @cached_property
    def length(self) -> int:
        """A bound: statements and names as if every sign of them were a token."""
        statements, value = self.chains * (self.hops + 1), FIRST_VALUE
        fixed = TEMPLATE.format(context="", value=value) + PREFIX.format(count=99, value=value)
        noise = round(self.noise * statements) * self._cut(f"{NOISE}\n")
        line, name = len("VAR ABCDE = VAR FGHIJ\n"), len(" ABCDE")
        bound = self._cut(fixed) + noise + statements * line + (self.hops + 1) * name + 8
        told = (question for file in self._files.values() for question in file)
        return max([bound, *(len(self.encode(question).tokens) for question in told)])

    def _cut(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _files(self) -> dict[str, list[Question]]:
        given = {"valid": self.valid_file, "test": self.test_file}
        return {split: read_questions(path) for split, path in given.items() if path is not None}

    def write(self, path: str, split: str, seed: int, count: int) -> None:
        """Generated questions as a file in RULER's format."""
        write_questions(path, self.questions(split, seed, 0, count), self._tokenizer)

    def questions(self, split: str, seed: int, step: int, size: int) -> list[Question]:
        """The batch of these arguments, generated, before it is cut into tokens."""
        check_split(split)
        few = most = self.hops
        if split == "train":
            few = self.min_hops
            if self.curriculum_steps:
                most = min(most, few + step // self.curriculum_steps)
        draw = uniforms(stream("variables-ruler", split, seed, step))
        made: list[Question] = []
        while len(made) < size:
            hops = few + int(draw() * (most - few + 1))
            world = draw_world(
                draw, equal_turns(draw, hops, self.chains), names=LETTERS, values=VALUES,
                order=self.order, noise=round(self.noise * self.chains * (hops + 1)),
            )  # fmt: skip
            lines: list[str] = []
            for statement in world.told():
                if statement is None:
                    lines.append(NOISE)
                    continue
                name, source, chain, _ = statement
                given = world.values[chain] + FIRST_VALUE
                what = f"{given}" if source is None else f"VAR {letters(source)}"
                lines.append(f"VAR {letters(name)} = {what}")
            wanted = world.asked[0].chain
            names = [letters(s.name) for s in world.statements if s.chain == wanted]
            value = world.values[wanted] + FIRST_VALUE
            text = TEMPLATE.format(context="\n".join(lines), value=value)
            if split_of(hashlib.sha256(text.encode()).digest()[0] % 4) == split:
                prefix = PREFIX.format(count=len(names), value=value)
                made.append(Question(text, prefix, tuple(names)))
        return made

    def encode(self, question: Question) -> Asked:
        """A question as tokens; the names and the end of the line are asked."""
        begun = question.text + question.prefix
        answer = f" {' '.join(question.names)}{END}"
        return ask(self._tokenizer, begun + answer, [(len(begun), len(begun) + len(answer))])

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh texts, of which no two splits share one; of a file, the step-th in its order."""
        if split in self._files:
            total = len(self._files[split])
            return self.pick(split, np.arange(step * size, min(total, (step + 1) * size)))
        return self._tell(self.questions(split, seed, step, size))

    def pick(self, split: str, chosen: np.ndarray) -> Batch:
        """The questions of these lines of the split's file."""
        return self._tell([self._files[split][i] for i in chosen])

    def _tell(self, questions: list[Question]) -> Batch:
        tokens, targets, _ = stack([self.encode(question) for question in questions])
        return Batch(tokens, targets, {"hops": np.array([q.hops for q in questions])})

    def stored(self, split: str) -> int | None:
        """Lines of the split's file, if it has one."""
        return len(self._files[split]) if split in self._files else None

    def batches(self, split: str, size: int) -> int | None:
        """Batches in one pass over a file; None where texts are generated."""
        check_split(split)
        stored = self.stored(split)
        return None if stored is None else -(-stored // size)

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss; exact sets, also by hops; RULER's recall.

        Predictions are what the model generates. An answer is as long as the true one at most, so
        what it names more is what it names in place of others.
        """
        asked = batch.targets != IGNORE
        pairs = [
            (self._decode(guess[at]), self._decode(target[at]).split())
            for guess, target, at in zip(predictions, batch.targets, asked, strict=True)
        ]
        exact = np.array([set(guess.split()) == set(names) for guess, names in pairs])
        found = [recall(guess, names) for guess, names in pairs]
        return {
            "loss": (float(losses.sum(dtype=np.float64)), float(asked.sum())),
            "exact_match": (float(exact.sum()), float(len(exact))),
            "recall": (float(sum(found)), float(len(found))),
        } | by_group("exact_match/hops", batch.info["hops"], exact)

    def _decode(self, tokens: np.ndarray) -> str:
        """The text of an answer, up to the end of its line."""
        return str(self._tokenizer.decode(tokens.tolist())).strip(" ").partition(END)[0]

    def describe(self) -> str:
        """One line for a person."""
        unit = "bytes" if self.tokenizer is None else f"tokens of {self.tokenizer}"
        return (
            f"variables-ruler: {self.chains} chains of {self.hops} hops, {self.order}, noise "
            f"{self.noise:g}, {unit}"
        )


class Bytes:
    """UTF-8 as a tokenizer."""

    class Cut(NamedTuple):
        """Tokens, and where each begins and ends; RULER's texts are ASCII."""

        ids: list[int]
        offsets: list[tuple[int, int]]

    def encode(self, text: str, add_special_tokens: bool = False) -> Cut:
        """One token a byte."""
        ends = [(i, i + 1) for i, letter in enumerate(text) for _ in range(len(letter.encode()))]
        return self.Cut(list(text.encode()), ends)

    def decode(self, ids: list[int]) -> str:
        """The text."""
        return bytes(ids).decode("utf-8", "replace")

    def get_vocab_size(self) -> int:
        """All bytes."""
        return 256


def recall(answer: str, names: Iterable[str]) -> float:
    """RULER's score of one answer: the share of the names that stand anywhere in it."""
    wanted = list(names)
    return sum(name.lower() in answer.lower() for name in wanted) / len(wanted)


def read_questions(path: str) -> list[Question]:
    """A JSONL file in RULER's format: `input`, `outputs`, and `answer_prefix` where it has one."""
    made = []
    for where, row in read_jsonl(path):
        text, names, prefix = row.get("input"), row.get("outputs"), row.get("answer_prefix", "")
        valid = isinstance(text, str) and isinstance(names, list) and isinstance(prefix, str)
        if not valid or not names or not all(isinstance(n, str) and n for n in names):
            raise ValueError(
                f"{where}: expected an object with an 'input' that is a text and 'outputs' that is "
                f"a list of variables"
            )
        if not re.search(r"\bVAR \w+ = ", str(text)):
            raise ValueError(
                f"{where}: expected variable tracking, with VAR ... = ... in its input"
            )
        # files of earlier versions end their input with the prefix
        made.append(Question(str(text).rstrip(" "), prefix.rstrip(" "), tuple(names)))
    if not made:
        raise ValueError(f"{path}: expected at least one question")
    return made


def write_questions(path: str, questions: Iterable[Question], tokenizer: Any) -> None:
    """The same file; `length` counts tokens of the tokenizer, as RULER's own files do."""
    with open(path, "w", encoding="utf-8") as file:
        for index, (text, prefix, names) in enumerate(questions):
            length = len(tokenizer.encode(text + prefix, add_special_tokens=False).ids)
            row = {
                "index": index, "input": text, "outputs": list(names), "length": length,
                "answer_prefix": f"{prefix} ",
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")
