"""Code: what is the value of a variable at the end of a small Python program?

    def f(b):              a function has a scope of its own: its b is not the program's
        a = b
        a += 2
        return a
    a = 3
    b = 7
    a, b = b, a            1st update
    b = f(a)               2nd
    # value of b at the end:      -> 9

The program is Python, and the label is what Python says: it is executed. Updates are assignments,
aliases, swaps, augmented assignments, branches, loops and calls; their number is the difficulty.
Variables start as digits, and a program is told only if the asked one ends as a digit, so there are
ten classes. The answer is asked at the last token.

One answer to a program teaches little. So with `trace` training asks for all variables at the end,
and at the end of every update for the variable that it names first, as Python has it there. The
first question is that of the tests, which ask no more.

Its own tokens are the language's (`PIECES`), about four to an update; with `tokenizer`, the same
text goes to a pretrained model.
"""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from chacal.tasks.base import (
    IGNORE,
    Batch,
    Task,
    Totals,
    by_group,
    check_int,
    check_split,
    option,
    split_of,
    stream,
    uniforms,
)
from chacal.tasks.texts import cut
from chacal.tasks.tokenizers import load_tokenizer

NAMES = "abcdeghk"
PAD = "<pad>"
UPDATES = ("set", "alias", "swap", "augment", "branch", "loop", "call")

PIECES = (
    PAD, "\n", "\n    ", " = ", " += ", " -= ", ", ", "if ", ":", "else:", "for i in range(", "):",
    ")", "def f(", "f(", "return ", " > ", " < ", " == ", "# value of ", " at the end:",
    *NAMES, *"0123456789",
)  # fmt: skip
"""The tokens of a program."""

_NUMBERS = {piece: i for i, piece in enumerate(PIECES)}
_SPLIT = re.compile("|".join(re.escape(p) for p in sorted(PIECES, key=len, reverse=True)))

_STATEMENT = re.compile(r"\n(?! |else:)")
_NAME = re.compile(rf"\b[{NAMES}]\b")

FUNCTION, INITIAL, LONGEST, QUESTION = 19, 4, 16, 4
"""Tokens at most: of the function, of an initial assignment, of an update, of a question, each with
the end of its line, which the last has not."""

Draw = Callable[[], float]


def _scope() -> dict[str, Any]:
    """What a program begins with: nothing but `range`."""
    return {"__builtins__": {"range": range}}


def execute(program: str) -> dict[str, Any]:
    """The variables of a program of ours, after Python ran it with nothing but `range`."""
    scope = _scope()
    exec(compile(program, "<program>", "exec"), scope)
    return {name: scope[name] for name in NAMES if name in scope}


def question(name: str) -> str:
    """What asks for a variable: a comment, which changes nothing."""
    return f"# value of {name} at the end:"


def ask_all(program: str, names: str, draw: Draw) -> str:
    """The program with a question for every one of `names` that its own does not ask for."""
    left = [name for name in names if not program.endswith(question(name))]
    while left:
        program += "\n" + question(left.pop(int(draw() * len(left))))
    return program


def traced(program: str) -> dict[int, int]:
    """Where in a program its variables are asked for, and what Python says they are.

    At the end of every update and question, the digit that its first variable is there. Nothing is
    asked of the function and of the initial values, nor where the variable is no digit.
    """
    scope = _scope()
    answers, end = {}, -1
    for statement in _STATEMENT.split(program):
        # every statement of ours names a variable
        name = _NAME.search(statement)[0]  # type: ignore[index]
        asked = name in scope
        exec(compile(statement, "<program>", "exec"), scope)
        end += 1 + len(statement)
        if asked and 0 <= scope[name] <= 9:
            answers[end] = scope[name]
    return answers


@dataclass(frozen=True, kw_only=True)
class Code(Task):
    """The value of a variable at the end of a program, which Python itself works out."""

    variables: int = option(4, "variables of a program")
    updates: int = option(8, "most updates of a program")
    min_updates: int = option(1, "fewest updates of a program")
    curriculum_hold: int = option(250, "training steps before the curriculum begins to rise")
    curriculum_steps: int = option(
        100, "training steps until one more update, from none; 0: no curriculum"
    )
    trace: bool = option(
        True, "training: ask for all variables at the end, and after every update for its first"
    )
    tokenizer: str | None = option(
        None, "file, folder or hub name of a tokenizer; default: the language's own tokens"
    )
    max_tokens: int = option(512, "longest program in tokens of `tokenizer`")

    name: ClassVar[str] = "code"
    metric: ClassVar[str] = "accuracy"
    maximise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int(self, "variables", 2, len(NAMES))
        check_int(self, "updates", 1)
        check_int(self, "min_updates", 1, self.updates)
        check_int(self, "curriculum_hold", 0)
        check_int(self, "curriculum_steps", 0)
        check_int(self, "max_tokens", 1)

    @cached_property
    def _tokenizer(self) -> Any:
        return None if self.tokenizer is None else load_tokenizer(self.tokenizer)

    @property
    def vocab_size(self) -> int:
        """The language's tokens, or the tokenizer's."""
        return len(PIECES) if self._tokenizer is None else int(self._tokenizer.get_vocab_size())

    @property
    def num_classes(self) -> int:
        """The digits."""
        return 10

    @property
    def length(self) -> int:
        """The longest program in tokens."""
        if self.tokenizer is not None:
            return self.max_tokens
        questions = self.variables if self.trace else 1
        lines = FUNCTION + INITIAL * self.variables + LONGEST * self.updates
        return lines + QUESTION * questions - 1

    @property
    def usual_length(self) -> int:
        """Four tokens to an update; `length` has room for the longest ones only."""
        return min(self.length, FUNCTION + 4 * self.updates)

    def programs(self, split: str, seed: int, step: int, size: int) -> list[tuple[str, int, int]]:
        """The batch of these arguments as (text with its question, label, updates)."""
        check_split(split)
        fewest, most = self.min_updates, self.updates
        if split == "train" and self.curriculum_steps:
            risen = max(0, step - self.curriculum_hold) // self.curriculum_steps
            most = min(most, risen)
            fewest = min(fewest, most)
        draw = uniforms(stream("code", self.variables, fewest, most, split, seed, step))
        told: list[tuple[str, int, int]] = []
        while len(told) < size:
            count = fewest + int(draw() * (most - fewest + 1))
            text, asked = _program(draw, NAMES[: self.variables], count)
            bucket = hashlib.sha256(text.encode()).digest()[0] % 4
            if split_of(bucket) == split and 0 <= (value := execute(text)[asked]) <= 9:
                told.append((text, value, count))
        return told

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """A text's tokens, and where in the text each of them ends."""
        if self._tokenizer is None:
            found = list(_SPLIT.finditer(text))
            return [_NUMBERS[match[0]] for match in found], [match.end() for match in found]
        told = cut(self._tokenizer, text)
        if len(told.ids) > self.max_tokens:
            raise ValueError(
                f"max_tokens={self.max_tokens}: a program has {len(told.ids)}; expected at least "
                f"that"
            )
        return told.ids, [end for _, end in told.offsets]

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh programs; no two splits share one with the same question.

        A training text with `trace` asks its program's other questions too, so a short program may
        be seen in training and asked something else in a test.
        """
        told = self.programs(split, seed, step, size)
        if self.trace and split == "train":
            draw = uniforms(stream("code questions", split, seed, step))
            texts = [ask_all(text, NAMES[: self.variables], draw) for text, _, _ in told]
            asked = [traced(text) for text in texts]
        else:
            texts = [text for text, _, _ in told]
            asked = [{len(text): value} for text, value, _ in told]
        rows, answers = [], []
        for text, at in zip(texts, asked, strict=True):
            row, ends = self.encode(text)
            # the token that the asked place ends in: a tokenizer may join it to the line's end
            answers.append(
                {min(bisect_left(ends, end), len(row) - 1): value for end, value in at.items()}
            )
            rows.append(row)
        tokens, targets = pad_and_ask(rows, answers)
        return Batch(tokens, targets, {"updates": np.array([u for _, _, u in told])})

    def batches(self, split: str, size: int) -> None:
        """None: programs are generated without end."""
        check_split(split)

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy of the answers; accuracy by the number of updates."""
        totals, right = count_answers(predictions, losses, batch)
        return totals | by_group("accuracy/updates", batch.info["updates"], right)

    def describe(self) -> str:
        """One line for a person."""
        unit = "own tokens" if self.tokenizer is None else f"tokens of {self.tokenizer}"
        return (
            f"code: programs of {self.variables} variables and {self.min_updates} to "
            f"{self.updates} updates, {unit}{', traced in training' if self.trace else ''}"
        )

    def show(self, tokens: np.ndarray) -> list[str]:
        """The tokens' texts."""
        if self._tokenizer is None:
            return [PIECES[int(t)] for t in tokens]
        return [self._tokenizer.decode([int(t)]) for t in tokens]


def pad_and_ask(
    rows: list[list[int]], answers: list[dict[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Token lists -> tokens padded behind with 0, and the targets at the places that are asked."""
    tokens = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    targets = np.full_like(tokens, IGNORE)
    for i, (row, asked) in enumerate(zip(rows, answers, strict=True)):
        tokens[i, : len(row)] = row
        for place, label in asked.items():
            targets[i, place] = label
    return tokens, targets


def count_answers(
    predictions: np.ndarray, losses: np.ndarray, batch: Batch
) -> tuple[Totals, np.ndarray]:
    """Sums of loss and accuracy, and which rows are right in all that is asked of them."""
    asked = batch.targets != IGNORE
    right = ((predictions == batch.targets) | ~asked).all(1)
    totals = {
        "loss": (float(losses[asked].sum(dtype=np.float64)), float(asked.sum())),
        "accuracy": (float(right.sum()), float(len(right))),
    }
    return totals, right


def _pick(draw: Draw, choices: Any) -> Any:
    return choices[int(draw() * len(choices))]


def _two(draw: Draw, names: str) -> tuple[str, str]:
    first = _pick(draw, names)
    return first, _pick(draw, names.replace(first, ""))


def _simple(draw: Draw, names: str, kinds: tuple[str, ...]) -> str:
    """A statement of one line that changes one variable, or swaps two."""
    kind = _pick(draw, kinds)
    a, b = _two(draw, names)
    if kind == "set":
        return f"{a} = {_pick(draw, '0123456789')}"
    if kind == "alias":
        return f"{a} = {b}"
    if kind == "swap":
        return f"{a}, {b} = {b}, {a}"
    return f"{a} {_pick(draw, '+-')}= {_pick(draw, '123')}"


def _update(draw: Draw, names: str) -> str:
    """One update, of one line or of several."""
    kind = _pick(draw, UPDATES)
    a, b = _two(draw, names)
    if kind == "branch":
        one, other = (_simple(draw, names, ("set", "alias", "augment")) for _ in range(2))
        return f"if {a} {_pick(draw, ('>', '<', '=='))} {b}:\n    {one}\nelse:\n    {other}"
    if kind == "loop":
        body = _simple(draw, names, ("swap", "augment"))
        return f"for i in range({_pick(draw, '234')}):\n    {body}"
    if kind == "call":
        return f"{a} = f({b})"
    return _simple(draw, names, (kind,))


def _program(draw: Draw, names: str, count: int) -> tuple[str, str]:
    """A program of `count` updates with its question, and the name that is asked."""
    updates = [_update(draw, names) for _ in range(count)]
    lines = [f"{name} = {_pick(draw, '0123456789')}" for name in names]
    if any(" = f(" in update for update in updates):
        given, own = _two(draw, names)
        first = f"{own} = {_pick(draw, (given, _pick(draw, '0123456789')))}"
        then = _simple(draw, given + own, ("alias", "swap", "augment"))
        lines.insert(
            0, f"def f({given}):\n    {first}\n    {then}\n    return {_pick(draw, given + own)}"
        )
    asked = _pick(draw, names)
    return "\n".join([*lines, *updates, question(asked)]), asked
