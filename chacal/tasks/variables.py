"""Variables: assignments, several chains of them interleaved, and questions at the end.

     tom = red          a value: no hop
     sky = gold
     ann = tom          one hop
     The road was long.         noise, if wanted
     oak = ann          two hops

     oak is red         a question; the answer is asked at " is"
     sky is gold

What a layer of ordinary attention does is one hop, so hops are the difficulty, and scores are told
by their number. Answers stand in the text, as a language model writes them. One that was given
before may shorten the way of a later question, and hops are counted with that (`hops_left`).

Names are words that are one token of the tokenizer, two of them joined (`pairs`), or five capital
letters. Without a tokenizer names are x0, x1, ..., and each is one token of its own.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from chacal.tasks.assignments import ORDERS, World, draw_world, free_turns, hops_left
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
from chacal.tasks.texts import Asked, ThroughTokenizer, Words, ask, ask_untold, right_answers, stack
from chacal.tasks.tokenizers import load_tokenizer, opening

VALUES = ("red", "blue", "green", "black", "white", "brown", "pink", "gold")
NOISE = (
    "The road was long.", "Nobody came that day.", "It rained until noon.", "They went home.",
    "She closed the door.", "There was nothing new.", "He waited for a while.",
)  # fmt: skip
"""Sentences that say nothing of any name."""

NAMES = ("words", "pairs", "letters")
LETTERS = 26**5
"""Names of five capital letters."""

_WORD = re.compile(r"[Ġ▁]([a-z]{3,6})")
"""A token that is a whole word, as byte-level and SentencePiece vocabularies spell it."""


def letters(number: int) -> str:
    """0 -> "AAAAA", and so on."""
    return "".join(chr(ord("A") + number // 26**place % 26) for place in range(4, -1, -1))


def single_words(tokenizer: Any) -> list[str]:
    """Lower-case words that are one token each, in the order of the vocabulary."""
    taken = set(re.findall(r"\w+", " ".join((*VALUES, *NOISE, "is")).lower()))
    found = []
    for i in range(tokenizer.get_vocab_size()):
        match = _WORD.fullmatch(tokenizer.id_to_token(i) or "")
        if match is None or match[1] in taken:
            continue
        if tokenizer.encode(f"= {match[1]}", add_special_tokens=False).ids[1:] == [i]:
            found.append(match[1])
    return found


@dataclass(frozen=True, kw_only=True)
class Variables(ThroughTokenizer, Task):
    """Chains of assignments in text: what is the value at the end of a name's chain?"""

    statements: int = option(36, "statements of a text; of a training text, at most")
    min_statements: int = option(5, "fewest statements of a training text")
    chains: int = option(3, "chains that are interleaved")
    hops: int | None = option(
        None, "most hops of a chain, which then begins at its value again; none: no limit"
    )
    order: str = option("forward", f"how statements are told: {', '.join(ORDERS)}")
    noise: float = option(0.0, "sentences that say nothing, for every statement")
    questions: int = option(8, "names that are asked for")
    told: bool = option(True, "whether answers stand in the text, so that later questions see them")
    names: str = option(
        "words", "words: one token each; pairs: two words; letters: five capitals as in RULER"
    )
    pool: int = option(1200, "different words")
    curriculum_hold: int = option(0, "training steps before the curriculum begins to rise")
    curriculum_steps: int = option(
        6, "training steps until one more statement, from min_statements; 0: no curriculum"
    )
    tokenizer: str | None = option(
        None, "file, folder or hub name of a tokenizer; default: a token for every name"
    )

    name: ClassVar[str] = "variables"
    metric: ClassVar[str] = "exact_match"
    maximise: ClassVar[bool] = True
    generates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int(self, "chains", 1, len(VALUES))
        check_int(self, "statements", self.chains)
        check_int(self, "min_statements", self.chains, self.statements)
        if self.hops is not None:
            check_int(self, "hops", 0)
        check_int(self, "questions", 1)
        check_int(self, "pool", 2)
        check_int(self, "curriculum_hold", 0)
        check_int(self, "curriculum_steps", 0)
        check_number(self, "noise")
        check_choice(self, "order", ORDERS)
        check_choice(self, "names", NAMES)
        if self.tokenizer is None and self.names != "words":
            raise ValueError(
                f"names={self.names!r}: expected a tokenizer for it; without one a name is a token"
            )
        if self.names != "letters" and self._names < self.statements:
            raise ValueError(
                f"pool={self.pool}: {self._names} names for {self.statements} statements; expected "
                f"one for each"
            )

    @cached_property
    def _tokenizer(self) -> Any:
        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        names = [f" x{i}" for i in range(self.pool)]
        return Words([*names, "".join(f" {value}" for value in VALUES), " = is\n", "\n\n",
                      *(f" {sentence}" for sentence in NOISE)])  # fmt: skip

    @cached_property
    def _words(self) -> list[str]:
        if self.tokenizer is None:
            return [f"x{i}" for i in range(self.pool)]
        found = single_words(self._tokenizer)
        if len(found) < self.pool:
            raise ValueError(
                f"pool={self.pool}: tokenizer={self.tokenizer!r} has {len(found)} words that are "
                f"one token; expected a smaller pool, or names=letters"
            )
        return found[: self.pool]

    @property
    def _names(self) -> int:
        """How many names there are."""
        per_pair = math.isqrt(self.pool)
        return {"words": self.pool, "pairs": per_pair**2, "letters": LETTERS}[self.names]

    def _spell(self, number: int) -> str:
        if self.names == "letters":
            return letters(number)
        if self.names == "pairs":
            first, second = divmod(number, math.isqrt(self.pool))
            return f"{self._words[first]}_{self._words[second]}"
        return self._words[number]

    @property
    def length(self) -> int:
        """A bound on the tokens of a text; names that are not one token have one for each sign."""
        name = {"words": 1, "pairs": 14, "letters": 6}[self.names]
        sentence = max(len(s.split()) for s in NOISE) + 1
        noise = round(self.noise * self.statements)
        lines = self.statements * (2 * name + 2) + noise * (sentence + 1)
        return len(opening(self._tokenizer)) + lines + 1 + self.questions * (name + 6)

    def worlds(self, split: str, seed: int, step: int, size: int) -> list[World]:
        """The batch of these arguments, before it is told as text."""
        check_split(split)
        few = most = self.statements
        if split == "train":
            few = self.min_statements
            if self.curriculum_steps:
                risen = max(0, step - self.curriculum_hold) // self.curriculum_steps
                most = min(most, few + 1 + risen)
        draw = uniforms(stream("variables", split, seed, step))
        made: list[World] = []
        while len(made) < size:
            count = few + int(draw() * (most - few + 1))
            world = draw_world(
                draw, free_turns(draw, count, self.chains), names=self._names, values=len(VALUES),
                hops=self.hops, order=self.order, questions=self.questions,
                noise=round(self.noise * count),
            )  # fmt: skip
            content = repr((world.statements, world.values))
            if split_of(hashlib.sha256(content.encode()).digest()[0] % 4) == split:
                made.append(world)
        return made

    def tell(self, world: World) -> tuple[str, list[tuple[int, int]]]:
        """A world as text with its answers, and where each of these begins and ends."""
        lines: list[str] = []
        for statement in world.told():
            if statement is None:
                lines.append(f" {NOISE[len(lines) % len(NOISE)]}\n")
                continue
            name, source, chain, _ = statement
            given = VALUES[world.values[chain]] if source is None else self._spell(source)
            lines.append(f" {self._spell(name)} = {given}\n")
        text = "".join(lines) + "\n"
        answers = []
        for asked in world.asked:
            text += f" {self._spell(asked.name)} is"
            answer = f" {VALUES[world.values[asked.chain]]}" if self.told else ""
            answers.append((len(text), len(text) + len(answer)))
            text += f"{answer}\n"
        return text, answers

    def encode(self, world: World) -> Asked:
        """A world as tokens."""
        text, answers = self.tell(world)
        if self.told:
            return ask(self._tokenizer, text, answers)
        values = [f" {VALUES[world.values[asked.chain]]}" for asked in world.asked]
        return ask_untold(self._tokenizer, text, [place for place, _ in answers], values)

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh texts; no two splits share one. Tests have all statements, training up to that."""
        worlds = self.worlds(split, seed, step, size)
        tokens, targets, parts = stack([self.encode(world) for world in worlds])
        hops = np.full((size, self.questions), -1)
        for i, world in enumerate(worlds):
            left = hops_left(world, self.told)
            hops[i, : len(left)] = left
        return Batch(tokens, targets, {"parts": parts, "hops": hops})

    def batches(self, split: str, size: int) -> None:
        """None: texts are generated without end."""

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy of the answers' tokens; exact match of answers, also by hops."""
        asked = batch.targets != IGNORE
        wrong = asked & (predictions != batch.targets)
        hops = batch.info["hops"]
        there = hops >= 0
        exact = right_answers(wrong, batch.info["parts"], hops.shape[1])[there]
        return {
            "loss": (float(losses.sum(dtype=np.float64)), float(asked.sum())),
            "accuracy": (float(asked.sum() - wrong.sum()), float(asked.sum())),
            "exact_match": (float(exact.sum()), float(len(exact))),
        } | by_group("exact_match/hops", hops[there], exact)

    def describe(self) -> str:
        """One line for a person."""
        unit = "own tokens" if self.tokenizer is None else f"tokens of {self.tokenizer}"
        noise = f", noise {self.noise:g}" if self.noise else ""
        most = "" if self.hops is None else f" of at most {self.hops} hops"
        return (
            f"variables: {self.statements} statements of {self.chains} chains{most}, "
            f"{self.order}{noise}, {self.questions} questions, names as {self.names}, {unit}"
        )
