"""The language of Boxes: its sentences, what they do, and what the final state depends on.

    The camera is in Box F.                  the initial state, before any update
    Put the key into Box B.
    Remove the key from Box B.
    Move the key from Box B to Box D.
    Move the contents of Box H to Box F.
    Box A contains the camera. Box B contains the key and the lamp. Box C is empty.   the answer

Items of a box are told in the order in which they arrived; a move of contents appends them in
their order. No item is told by a rule that the story itself does not show.
"""

import difflib
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from chacal._echo import shown
from chacal.tasks.phrases import Phrases

OBJECTS = tuple(
    re.findall(
        r"\w+",
        "camera key lamp book letter bottle clock phone watch ring coat hat shoe glove scarf "
        "belt shirt sock wallet purse umbrella mirror comb brush towel soap candle match lighter "
        "knife fork spoon plate bowl cup mug kettle pan pot jar basket bag suitcase map ticket "
        "passport coin stamp card photo painting vase flower plant leaf seed nut apple pear plum "
        "peach cherry lemon orange banana grape melon carrot onion potato tomato pepper bread "
        "cheese egg cake cookie candy chocolate tea coffee milk juice wine rope chain wire nail "
        "screw hammer saw drill wrench ladder bucket broom shovel rake hose battery bulb fan "
        "radio guitar violin drum flute trumpet bell whistle ball bat racket doll puzzle kite "
        "dice pen pencil eraser ruler notebook magazine newspaper computer",
    )
)
"""Every object's name."""

LETTERS = string.ascii_uppercase
"""The names of the boxes."""

TEMPLATES = {
    "is": "The OBJECT is in Box X.",
    "put": "Put the OBJECT into Box X.",
    "remove": "Remove the OBJECT from Box X.",
    "contents": "Move the contents of Box X to Box Y.",
    "move": "Move the OBJECT from Box X to Box Y.",
}
"""The sentences of a story by kind."""

_PATTERNS = {
    "is": re.compile(r"The (?P<item>.+) is in Box (?P<target>\S+)\."),
    "put": re.compile(r"Put the (?P<item>.+) into Box (?P<target>\S+)\."),
    "remove": re.compile(r"Remove the (?P<item>.+) from Box (?P<source>\S+)\."),
    "contents": re.compile(r"Move the contents of Box (?P<source>\S+) to Box (?P<target>\S+)\."),
    "move": re.compile(r"Move the (?P<item>.+) from Box (?P<source>\S+) to Box (?P<target>\S+)\."),
}


class Sentence(NamedTuple):
    """One sentence of a story; fields that its kind does not have are empty."""

    kind: str
    item: str = ""
    source: str = ""
    target: str = ""

    @property
    def pieces(self) -> list[str]:
        """The sentence as the tokenizer cuts it; joined, its text after a space.

        Four tokens, whatever the kind. The last names a box with the period, and is the same
        token for a box that is filled and one that something is removed from.
        """
        kind, item, source, target = self
        if kind == "contents":
            return [" Move the contents of Box", f" {source}", " to Box", f" {target}."]
        if kind == "move":
            return [" Move the", f" {item}", f" from Box {source} to Box", f" {target}."]
        if kind == "put":
            return [" Put the", f" {item}", " into Box", f" {target}."]
        if kind == "remove":
            return [" Remove the", f" {item}", " from Box", f" {source}."]
        return [" The", f" {item}", " is in Box", f" {target}."]

    @property
    def text(self) -> str:
        """The sentence in English."""
        return "".join(self.pieces)[1:]


State = Mapping[str, Sequence[str]]


def answer_pieces(state: State) -> list[str]:
    """The answer as the tokenizer cuts it: a token names a box, the next say what it holds.

    Each thing is one token; a period and the box after it are one token. A box and what it holds
    belong side by side. A token " contains the" between them would have to fetch the box from the
    one before it first, and learning that takes longer than all the rest (docs/history.md).
    """
    pieces = []
    lead = " Box"
    for box, items in state.items():
        pieces.append(f"{lead} {box}")
        for i, item in enumerate(items):
            pieces.append(f" and the {item}" if i else f" contains the {item}")
        if not items:
            pieces.append(" is empty")
        lead = ". Box"
    return [*pieces, "."]


def vocabulary(boxes: int, objects: int) -> Phrases:
    """The tokenizer of stories with the first boxes and the first objects."""
    fixed = [" The", " Put the", " Remove the", " Move the", " Move the contents of Box"]
    fixed += [" is in Box", " into Box", " from Box", " to Box"]
    fixed += [" Box A", " is empty", "."]
    frames = [" {}", " {}.", " from Box {} to Box", ". Box {}"]
    named = [frame.format(box) for frame in frames for box in LETTERS[:boxes]]
    named.remove(". Box A")
    things = (" {}", " contains the {}", " and the {}")
    return Phrases([*fixed, *named, *(t.format(o) for t in things for o in OBJECTS[:objects])])


def _fault(number: int, text: str, what: str) -> ValueError:
    return ValueError(f"sentence {number}, {shown(text)}: {what}")


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _parse_sentence(number: int, text: str, boxes: int, objects: Sequence[str]) -> Sentence:
    if not text.endswith("."):
        raise _fault(number, text, "expected a period at the end")
    for kind, pattern in _PATTERNS.items():
        match = pattern.fullmatch(text)
        if match is None:
            continue
        found = match.groupdict()
        item = found.get("item", "")
        if item and item not in objects:
            raise _fault(
                number, text, f"unknown object {shown(item)}{_did_you_mean(item, objects)}"
            )
        for box in (found.get("source"), found.get("target")):
            if box is not None and (len(box) != 1 or box not in LETTERS[:boxes]):
                known = f"A to {LETTERS[boxes - 1]}"
                raise _fault(number, text, f"unknown box {shown(box)}; expected {known}")
        return Sentence(kind, item, found.get("source", ""), found.get("target", ""))
    first = text.split(" ")[0].rstrip(".")
    like = [t for t in TEMPLATES.values() if t.split(" ")[0] == first]
    if like:
        raise _fault(number, text, f"expected {' or '.join(map(repr, like))}")
    opening = f"unknown opening {shown(first)}; " if first else ""
    raise _fault(
        number, text, f"{opening}expected one of {', '.join(map(repr, TEMPLATES.values()))}"
    )


def parse_story(text: str, boxes: int, objects: Sequence[str] = OBJECTS) -> list[Sentence]:
    """The sentences of a story without its answer; spaces and line ends may be free.

    Raises:
        ValueError: pointing at the sentence that is not of the grammar, and what was expected.
    """
    parts = [" ".join(part.split()) for part in re.findall(r"[^.]*\.|[^.]+$", text)]
    parts = [part for part in parts if part]
    if not parts:
        raise ValueError("the story is empty: expected sentences such as 'The key is in Box A.'")
    story: list[Sentence] = []
    for number, part in enumerate(parts, 1):
        sentence = _parse_sentence(number, part, boxes, objects)
        if sentence.kind == "is" and story and story[-1].kind != "is":
            raise _fault(number, part, "the initial state must come before every update")
        story.append(sentence)
    return story


def simulate(
    story: Iterable[Sentence], boxes: int, max_items: int | None = None
) -> dict[str, list[str]]:
    """The final state: box -> items in order of arrival.

    Raises:
        ValueError: pointing at the sentence that contradicts the ones before it.
    """
    state: dict[str, list[str]] = {box: [] for box in LETTERS[:boxes]}
    for number, sentence in enumerate(story, 1):
        found = contradiction(state, sentence, max_items)
        if found:
            raise _fault(number, sentence.text, found[1])
        carry_out(state, sentence)
    return state


def contradiction(
    state: State, sentence: Sentence, max_items: int | None = None
) -> tuple[str, str] | None:
    """Why a sentence cannot follow a state: the field that is at fault, and what is wrong."""
    kind, item, source, target = sentence
    where = {held: box for box, items in state.items() for held in items}
    if kind in ("is", "put") and item in where:
        return "item", f"the {item} is already in Box {where[item]}"
    if kind in ("remove", "move") and where.get(item) != source:
        at = f"in Box {where[item]}" if item in where else "in no box"
        return "item", f"the {item} is not in Box {source}, it is {at}"
    if kind == "contents" and not state[source]:
        return "source", f"Box {source} is empty"
    if source and source == target:
        return "target", "expected two different boxes"
    arriving = len(state[source]) if kind == "contents" else 1
    if target and max_items is not None and len(state[target]) + arriving > max_items:
        return "target", f"Box {target} has no room: it holds at most {max_items}"
    return None


def carry_out(state: dict[str, list[str]], sentence: Sentence) -> None:
    """What a possible sentence does to a state."""
    kind, item, source, target = sentence
    moved = list(state[source]) if kind == "contents" else [item]
    if source:
        state[source] = [held for held in state[source] if held not in moved]
    if target:
        state[target] = [*state[target], *moved]


def parse_answer(text: str) -> dict[str, list[str]]:
    """The state that an answer tells: box -> items.

    Raises:
        ValueError: pointing at the sentence that tells no box's state.
    """
    state: dict[str, list[str]] = {}
    for number, part in enumerate(re.findall(r"[^.]*\.|[^.]+$", text), 1):
        told = part.strip()
        match = re.fullmatch(r"Box (\S+) (?:is empty|contains (the .+))\.", told)
        if match is None:
            expected = "expected 'Box X contains the OBJECT.' or 'Box X is empty.'"
            raise _fault(number, told, expected)
        box, items = match.groups()
        if box in state:
            raise _fault(number, told, f"Box {box} was told before")
        state[box] = [i.removeprefix("the ") for i in items.split(" and ")] if items else []
    return state


def needed_positions(
    story: Sequence[Sentence], boxes: int, max_items: int = 1
) -> dict[str, list[int]]:
    """For every box, the token positions of the mentions that its final state passes through.

    From the box's token in the answer back to the root, in descending order: the last mention of
    the box; if that is the " F." of a move of contents from H, then the last mention of H
    before that sentence, and so on. A put, a move of one item, a removal and an initial sentence
    are roots where a box holds one item; where it holds more they change a part, and the box's
    mention before them is needed too. " H" of "Move the contents of Box H" is always a root: it
    says that H is empty. A box that was never mentioned has only its token in the answer.

    Positions count the start token (0), the tokens of the story and then of the answer.
    """
    parents: dict[int, list[int]] = {}
    last: dict[str, int] = {}
    at = 1
    for sentence in story:
        kind, _, source, target = sentence
        end = at + len(sentence.pieces) - 1
        before = dict(last)
        emptied_at = {"contents": at + 1, "move": at + 2}.get(kind, end)
        for box, position in ((source, emptied_at), (target, end)):
            if not box:
                continue
            emptied = kind == "contents" and box == source
            kept = [] if max_items == 1 or emptied or box not in before else [before[box]]
            if kind == "contents" and box == target:
                kept.append(before[source])
            parents[position] = kept
            last[box] = position
        at = end + 1
    needed = {}
    for piece_at, piece in enumerate(answer_pieces(simulate(story, boxes, max_items)), at):
        if " Box " not in piece:
            continue
        box = piece[-1]
        seen: set[int] = set()
        waiting = [last[box]] if box in last else []
        while waiting:
            position = waiting.pop()
            if position not in seen:
                seen.add(position)
                waiting += parents[position]
        needed[box] = [piece_at, *sorted(seen, reverse=True)]
    return needed
