"""Variables as symbols: chains of assignments in noise, for models from nothing and for any length.

    tokens   ^  =  c v1  ~  =  f v0  =  a  c  ~  =  d  a  =  b  f  ?  d  ?  f
    target                                                           1     0

`^` begins a text and `~` is noise. `= a c` says that a is given what c has: one symbol a name, and
no name is given anything twice. Here c, a and d are one chain and f and b another. A question is
`? d`, and what is asked at d is the value at the end of its chain: d is a, a is c, c is v1, two
hops. Answers do not stand in the text, so a question's hops are those of its chain.

The sign comes first, so that two neighbours that are names are always a name and what it is given.
A layer that sees each token and the one before it can then bind the two without any position, at
any length; `x = y` in this order would need to tell which of two neighbours came first.

Training holds at one hop and short texts until a name can be looked up; then both grow together.
It asks after every assignment too (`trace`): at c in `= a c` the answer is what c has, the same
look-up as a question for c, so that with one hop every second assignment teaches it and with none
hardly anything would. While chains are short, more of them are told at a time: with two chains the
answer is one of the last two values told, and to guess between them is learned long before names.

Everything is drawn by whole arrays: a text of 131,072 tokens takes a small part of a second.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

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
)

NOISE = ("filler", "symbols", "assignments")
START, IS, ASK, FILLER = range(4)
"""What every vocabulary begins with; FILLER is the first noise symbol."""

FILLERS = 8
FIRST_VALUE = FILLER + FILLERS
"""The same for every kind of noise, so that a model is asked with another than it has learned."""

STATEMENT, QUESTION = 3, 2
"""Tokens of each."""


@dataclass(frozen=True, kw_only=True)
class VariableSymbols(Task):
    """Chains of assignments as symbols: what is the value at the end of a name's chain?"""

    n: int = option(128, "tokens of a text; of a training text, at most")
    min_n: int | None = option(
        None, "fewest tokens of a training text; none: 64, or what the questions need"
    )
    statements: int | None = option(
        None,
        "assignments of a text, if noise leaves room for so many, and noise the rest; none: all "
        "that it leaves room for",
    )
    noise: float = option(0.25, "least share of the tokens before the questions that is noise")
    noise_kind: str = option(
        "symbols",
        "filler: one symbol; symbols: any of 8; assignments: of names that no question leads to",
    )
    chains: int = option(3, "chains that are told at a time, interleaved; in training, at least")
    hops: int = option(8, "most hops of a chain, which then begins at a new value")
    min_hops: int = option(0, "fewest hops of a question of the valid and test splits")
    questions: int = option(8, "names that are asked for; every number of hops is as likely")
    names: int = option(64, "different names")
    values: int = option(8, "different values")
    trace: bool = option(True, "training: ask after every assignment too, for the name it gives")
    curriculum_hold: int = option(
        300,
        "training steps with one hop and 2 min_n tokens at most: looking a name up is all there is "
        "to learn",
    )
    curriculum_steps: int = option(
        50,
        "training steps until one hop more, from then on, the longest text growing with them to "
        "n; 0: no curriculum",
    )

    name: ClassVar[str] = "variables-symbols"
    metric: ClassVar[str] = "accuracy"
    maximise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int(self, "questions", 1)
        check_int(self, "n", self._fewest)
        if self.min_n is not None:
            check_int(self, "min_n", self._fewest, self.n)
        check_number(self, "noise")
        if self.noise >= 1:
            raise ValueError(f"noise={self.noise}: expected a share in [0, 1)")
        check_choice(self, "noise_kind", NOISE)
        if self.statements is not None:
            check_int(self, "statements", 2, self._room(self.n))
        check_int(self, "chains", 1)
        check_int(self, "hops", 0)
        check_int(self, "min_hops", 0, self.hops)
        check_int(self, "names", 16)
        check_int(self, "values", 2)
        check_int(self, "curriculum_hold", 0)
        check_int(self, "curriculum_steps", 0)
        _, told, others, _ = self._parts(self.n)
        if self.names < told + others:
            raise ValueError(
                f"names={self.names}: a text of n={self.n} tokens gives {told + others} names; "
                f"expected as many, fewer statements or more noise"
            )

    @property
    def _fewest(self) -> int:
        """Tokens of the smallest text: a start, two statements and the questions."""
        return 1 + 2 * STATEMENT + QUESTION * self.questions

    def _room(self, n: int) -> int:
        """Most statements of a text of n tokens: what noise leaves room for."""
        body = n - 1 - QUESTION * self.questions
        return max(2, round(body * (1 - self.noise)) // STATEMENT)

    def _parts(self, n: int) -> tuple[int, int, int, int]:
        """Tokens before the questions, statements, those that are noise, and noise symbols."""
        body = n - 1 - QUESTION * self.questions
        told = self._room(n) if self.statements is None else min(self.statements, self._room(n))
        spare = body - STATEMENT * told
        others = spare // STATEMENT if self.noise_kind == "assignments" else 0
        return body, told, others, spare - STATEMENT * others

    @property
    def vocab_size(self) -> int:
        """Signs, noise, values and names."""
        return FIRST_VALUE + self.values + self.names

    @property
    def num_classes(self) -> int:
        """One class per value."""
        return self.values

    @property
    def length(self) -> int:
        """The longest n of a batch."""
        return self.n

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh texts, all of one length; no two splits share the first two names of a text."""
        check_split(split)
        rng = stream("variables-symbols", split, seed, step)
        n, hops, least, chains = self.n, self.hops, self.min_hops, self.chains
        if split == "train":
            least, few = 0, self._few
            hops, most = self._risen(step)
            # log-uniform: as many texts of 64 to 128 tokens as of 512 to 1,024, which cost more
            n = int(few * ((most + 1) / few) ** rng.random_sample())
            chains = max(chains, self._parts(n)[1] // (hops + 1))
        body, told, others, _ = self._parts(n)
        source, depth, value = _chains(rng, size, told, chains, hops, self.values)
        names = _names(rng, size, self.names, split)[:, : told + others]
        first_name = FIRST_VALUE + self.values
        rows = np.arange(size)[:, None]
        given = np.where(depth == 0, FIRST_VALUE + value, first_name + names[rows, source])
        starts, fillers = self._places(rng, size, n)
        tokens = np.full((size, n), START, dtype=np.int64)
        tokens[rows, fillers] = self._noise(rng, fillers.shape)
        tokens[rows, starts] = IS
        tokens[rows, starts + 1] = first_name + names
        tokens[rows, starts[:, :told] + 2] = given
        if others:
            tokens[rows, starts[:, told:] + 2] = self._noise(rng, (size, others))
        asked = _ask(rng, np.where(depth < least, -1, depth), self.questions)
        # where fewer names than questions are deep enough, the rest is noise
        there = asked >= 0
        places = 1 + body + QUESTION * np.arange(self.questions)[None]
        tokens[:, places[0]] = np.where(there, ASK, FILLER)
        tokens[:, places[0] + 1] = np.where(there, first_name + names[rows, asked], FILLER)
        targets = np.full_like(tokens, IGNORE)
        targets[:, places[0] + 1] = np.where(there, value[rows, asked], IGNORE)
        if split == "train" and self.trace:
            targets[rows, starts[:, :told] + 2] = value
        return Batch(tokens, targets, {"hops": np.where(there, depth[rows, asked], -1)})

    @property
    def _few(self) -> int:
        """Fewest tokens of a training text."""
        return min(self.n, max(self._fewest, 64)) if self.min_n is None else self.min_n

    def _risen(self, step: int) -> tuple[int, int]:
        """Most hops and most tokens of a training text at a step."""
        if not self.curriculum_steps:
            return self.hops, self.n
        risen = max(0, step - self.curriculum_hold) // self.curriculum_steps
        short = min(self.n, 2 * self._few)
        share = min(1.0, risen / max(1, self.hops - 1))
        return min(self.hops, 1 + risen), round(short * (self.n / short) ** share)

    def _noise(self, rng: np.random.RandomState, shape: tuple[int, ...]) -> np.ndarray:
        """Symbols that say nothing."""
        many = 1 if self.noise_kind == "filler" else FILLERS
        return FILLER + (rng.random_sample(shape) * many).astype(np.int64)

    def _places(
        self, rng: np.random.RandomState, size: int, n: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where statements begin, those that are noise last, and where noise symbols stand."""
        _, told, others, fillers = self._parts(n)
        items = told + others + fillers
        # which of the items in a row are statements, which noise
        order = rng.random_sample((size, items)).argsort(1)
        width = np.where(order < told + others, STATEMENT, 1)
        start = 1 + width.cumsum(1) - width
        where = np.empty_like(start)
        np.put_along_axis(where, order, start, 1)
        # chains are told forward
        told_at = np.sort(where[:, :told], 1)
        return np.concatenate([told_at, where[:, told : told + others]], 1), where[
            :, told + others :
        ]

    def batches(self, split: str, size: int) -> None:
        """None: texts are generated without end."""

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss of all that is asked; accuracy of the questions, also by hops; whole texts."""
        asked = batch.targets != IGNORE
        questions = batch.info["hops"].shape[1]
        # the questions are at the end, every second token
        right = (predictions == batch.targets)[:, -QUESTION * questions :][:, 1::QUESTION]
        hops = batch.info["hops"]
        there = hops >= 0
        return {
            "loss": (float(losses.sum(dtype=np.float64)), float(asked.sum())),
            "accuracy": (float(right[there].sum()), float(there.sum())),
            "exact_match": (float((right | ~there).all(1).sum()), float(len(right))),
        } | by_group("accuracy/hops", hops[there], right[there])

    def describe(self) -> str:
        """One line for a person."""
        _, told, _, _ = self._parts(self.n)
        return (
            f"variables-symbols: n={self.n}, {told} assignments of {self.chains} chains of at most "
            f"{self.hops} hops, {self.noise_kind} as noise, {self.questions} questions, "
            f"{self.names} names, {self.values} values"
        )

    def show(self, tokens: np.ndarray) -> list[str]:
        """Signs as they are, noise as ~0, values as v0, names as x0."""
        value, name = FIRST_VALUE, FIRST_VALUE + self.values
        return [
            f"x{t - name}" if t >= name
            else f"v{t - value}" if t >= value
            else f"~{t - FILLER}" if t >= FILLER
            else "^=?"[t]
            for t in np.asarray(tokens).tolist()
        ]  # fmt: skip


def _chains(
    rng: np.random.RandomState, size: int, told: int, chains: int, hops: int, values: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every statement, the one it is given from, its hops, and its value; each (size, told)."""
    turn = (rng.random_sample((size, told)) * chains).astype(np.int64)
    order = turn.argsort(1, kind="stable")  # chain by chain
    sorted_turn = np.take_along_axis(turn, order, 1)
    at = np.arange(told)[None]
    new = np.ones((size, told), dtype=bool)
    new[:, 1:] = sorted_turn[:, 1:] != sorted_turn[:, :-1]
    depth = (at - np.maximum.accumulate(np.where(new, at, 0), 1)) % (hops + 1)
    drawn = (rng.random_sample((size, told)) * values).astype(np.int64)
    value = np.take_along_axis(drawn, at - depth, 1)
    source = np.take_along_axis(order, np.where(depth > 0, at - 1, at), 1)
    back = order.argsort(1)
    found = (np.take_along_axis(x, back, 1) for x in (source, depth, value))
    # three, which mypy cannot count in a generator
    return tuple(found)  # type: ignore[return-value]


def _names(rng: np.random.RandomState, size: int, names: int, split: str) -> np.ndarray:
    """(size, names) shuffled names whose first two, in their order, belong to the split."""
    owner = np.array([split_of(bucket) == split for bucket in range(4)])
    drawn = np.empty((size, names), dtype=np.int64)
    left = np.arange(size)
    while len(left):
        order = rng.random_sample((len(left), names)).argsort(1)
        pair = order.astype(np.uint64) * np.uint64(names) + np.roll(order, -1, 1).astype(np.uint64)
        # splitmix64's multiplier: the bucket of a pair is a fixed function of it
        with np.errstate(over="ignore"):
            mine = owner[(pair * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(61)) % np.uint64(4)]
        turned = (np.arange(names)[None] + mine.argmax(1)[:, None]) % names
        drawn[left] = np.take_along_axis(order, turned, 1)
        left = left[~mine.any(1)]
    return drawn


def _ask(rng: np.random.RandomState, depth: np.ndarray, questions: int) -> np.ndarray:
    """(size, questions) which statements' names are asked for, -1 where none is left.

    Every number of hops is asked for once before one is asked for again, in any order.
    """
    size, told = depth.shape
    lot = rng.random_sample((size, told))
    by_depth = np.lexsort((lot, depth))
    sorted_depth = np.take_along_axis(depth, by_depth, 1)
    at = np.arange(told)[None]
    new = np.ones((size, told), dtype=bool)
    new[:, 1:] = sorted_depth[:, 1:] != sorted_depth[:, :-1]
    turn = (at - np.maximum.accumulate(np.where(new, at, 0), 1)).astype(np.float64)
    turn[sorted_depth < 0] = np.inf
    chosen = np.lexsort((rng.random_sample((size, told)), turn))[:, :questions]
    asked = np.where(
        np.isinf(np.take_along_axis(turn, chosen, 1)), -1, np.take_along_axis(by_depth, chosen, 1)
    )
    short = max(0, questions - told)
    asked = np.pad(asked, ((0, 0), (0, short)), constant_values=-1)
    # in any order, and not the shallow ones first
    mixed = rng.random_sample(asked.shape).argsort(1)
    return np.take_along_axis(asked, mixed, 1)
