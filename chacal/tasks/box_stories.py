"""Stories of boxes, drawn: what `Boxes` tells in phrases of its own, and `BoxesText` in plain text.

A story is of one split alone, whatever the order in which its initial state is told.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from chacal.tasks.base import (
    Task,
    check_int,
    check_number,
    check_split,
    option,
    split_of,
    stream,
    uniforms,
)
from chacal.tasks.stories import LETTERS, OBJECTS, Sentence

Uniform = Callable[[], float]
KINDS = ("put", "remove", "move", "contents")


def _owner(story: list[Sentence]) -> str:
    """The split of an initial state, whatever the order in which it is told."""
    told = ",".join(sorted(f"{s.target}{s.item}" for s in story))
    return split_of(hashlib.sha256(told.encode()).digest()[0] >> 6)


@dataclass(frozen=True, kw_only=True)
class BoxStories(Task):
    """Stories about boxes, and the final state of every box.

    Things go only where there is room. A drawn operation that is impossible is drawn again among
    the others. With no `put_share` the last thing is never removed, and with no `remove_share`
    one place stays free, so that a story can always go on.
    """

    boxes: int = option(7, "number of boxes, named A, B, ...")
    objects: int = option(100, "number of different objects")
    max_items: int = option(1, "most objects that a box holds")
    min_updates: int = option(0, "fewest updates in a story")
    updates: int = option(10, "most updates in a story")
    put_share: float = option(1.0, "weight of 'Put the key into Box B.' among updates")
    remove_share: float = option(1.0, "weight of 'Remove the key from Box B.'")
    move_share: float = option(1.0, "weight of 'Move the key from Box B to Box D.'")
    contents_share: float = option(9.0, "weight of 'Move the contents of Box H to Box F.'")
    curriculum_start: int = option(0, "most updates at training step 0, under a curriculum")
    curriculum_hold: int = option(200, "training steps before the curriculum begins to rise")
    curriculum_steps: int = option(60, "training steps until one more update; 0: no curriculum")

    def __post_init__(self) -> None:
        check_int(self, "boxes", 2, len(LETTERS))
        check_int(self, "objects", 1, len(OBJECTS))
        check_int(self, "max_items", 1)
        check_int(self, "updates", 0)
        check_int(self, "min_updates", 0, self.updates)
        check_int(self, "curriculum_start", 0)
        check_int(self, "curriculum_hold", 0)
        check_int(self, "curriculum_steps", 0)
        for kind in KINDS:
            check_number(self, f"{kind}_share")
        self._check_shares()
        single = (
            _owner([Sentence("is", item, "", box)])
            for item in OBJECTS[: self.objects]
            for box in LETTERS[: self.boxes]
        )
        if len(set(single)) < 3:
            raise ValueError(
                f"objects={self.objects} with boxes={self.boxes}: too few initial states to share "
                "among train, valid and test; expected more objects"
            )

    def _check_shares(self) -> None:
        put, remove, move, contents = self._shares
        moves = move > 0 or (contents > 0 and (self.max_items == 1 or put == 0))
        if not moves and not (put > 0 and remove > 0):
            given = ", ".join(f"{kind}_share={getattr(self, f'{kind}_share')}" for kind in KINDS)
            raise ValueError(
                f"{given}: stories would come to a stop where no update is possible; "
                "expected move_share above 0, or put_share and remove_share both above 0"
            )

    @property
    def _shares(self) -> tuple[float, float, float, float]:
        return (self.put_share, self.remove_share, self.move_share, self.contents_share)

    @cached_property
    def _fewest_things(self) -> int:
        """Objects in boxes at any time, at least: without puts the last one has to stay."""
        return int(self.put_share == 0)

    @cached_property
    def _most_things(self) -> int:
        """Objects in boxes at any time, at most: without removals one place has to stay free."""
        return min(self.objects, self.boxes * self.max_items - (self.remove_share == 0))

    @property
    def _most_at_first(self) -> int:
        return min(self.boxes, self.objects, self.boxes * self.max_items - 1)

    def story(
        self, uniform: Uniform, split: str, updates: int
    ) -> tuple[list[Sentence], dict[str, list[str]]]:
        """A story of the split, and the state in which it ends (box -> items)."""
        while True:
            story, state = self._initial(uniform)
            if _owner(story) == split:
                break
        shares = [pair for pair in zip(KINDS, self._shares, strict=True) if pair[1] > 0]
        for _ in range(updates):
            left = shares
            while True:
                kind = _choose(uniform, left)
                update = self._draw(kind, uniform, state)
                if update is not None:
                    break
                left = [pair for pair in left if pair[0] != kind]
            _apply(update, state)
            story.append(update)
        return story, state

    def _initial(self, uniform: Uniform) -> tuple[list[Sentence], dict[str, list[str]]]:
        state: dict[str, list[str]] = {box: [] for box in LETTERS[: self.boxes]}
        story: list[Sentence] = []
        used: set[str] = set()
        for _ in range(1 + int(uniform() * self._most_at_first)):
            item = self._absent(uniform, used)
            box = LETTERS[int(uniform() * self.boxes)]
            while len(state[box]) >= self.max_items:
                box = LETTERS[int(uniform() * self.boxes)]
            used.add(item)
            state[box].append(item)
            story.append(Sentence("is", item, "", box))
        return story, state

    def _absent(self, uniform: Uniform, used: set[str]) -> str:
        while True:
            item = OBJECTS[int(uniform() * self.objects)]
            if item not in used:
                return item

    def _draw(self, kind: str, uniform: Uniform, state: dict[str, list[str]]) -> Sentence | None:
        """A possible update of the kind, or None."""
        filled = [box for box, items in state.items() if items]
        if kind == "put":
            used = {item for box in filled for item in state[box]}
            if len(used) >= self._most_things:
                return None
            roomy = [box for box, items in state.items() if len(items) < self.max_items]
            item = self._absent(uniform, used)
            return Sentence("put", item, "", _one_of(roomy, uniform))
        if kind == "remove":
            if sum(map(len, state.values())) <= self._fewest_things:
                return None
            source = _one_of(filled, uniform)
            return Sentence("remove", _one_of(state[source], uniform), source)
        while filled:
            source = filled.pop(int(uniform() * len(filled)))
            room = self.max_items - (len(state[source]) if kind == "contents" else 1)
            targets = [box for box, items in state.items() if len(items) <= room]
            if source in targets:
                targets.remove(source)
            if targets:
                item = "" if kind == "contents" else _one_of(state[source], uniform)
                return Sentence(kind, item, source, _one_of(targets, uniform))
        return None

    def stories(
        self, split: str, seed: int, step: int, size: int
    ) -> Iterator[tuple[list[Sentence], dict[str, list[str]], int]]:
        """The batch of these arguments as stories, the states they end in, and their updates."""
        check_split(split)
        uniform = uniforms(stream("boxes", split, seed, step))
        most = self.updates
        if split == "train" and self.curriculum_steps:
            risen = max(0, step - self.curriculum_hold) // self.curriculum_steps
            reached = self.curriculum_start + risen
            most = max(self.min_updates, min(most, reached))
        for _ in range(size):
            updates = self.min_updates + int(uniform() * (most - self.min_updates + 1))
            yield (*self.story(uniform, split, updates), updates)

    def batches(self, split: str, size: int) -> None:
        """None: stories never run out."""

    def describe(self) -> str:
        """One line for a person."""
        few, most = self.min_updates, self.updates
        span = f"{few}" if few == most else f"{few} to {most}"
        return (
            f"boxes: {self.boxes} boxes of at most {self.max_items}, {self.objects} objects, "
            f"{span} updates (n<={self.length})"
        )


def _one_of(options: list[str], uniform: Uniform) -> str:
    return options[int(uniform() * len(options))]


def _choose(uniform: Uniform, shares: list[tuple[str, float]]) -> str:
    """A kind drawn by its weight."""
    point = uniform() * sum([share for _, share in shares])
    for kind, share in shares:
        point -= share
        if point < 0:
            return kind
    return shares[-1][0]


def _apply(update: Sentence, state: dict[str, list[str]]) -> None:
    """Carry out an update that is known to be possible."""
    kind, item, source, target = update
    if kind == "contents":
        state[target] += state[source]
        state[source] = []
        return
    if source:
        state[source].remove(item)
    if target:
        state[target].append(item)
