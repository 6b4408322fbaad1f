"""What can be said of a box without following a story: the start, and a guess among its things.

    Box 0 contains the letter, Box 1 contains nothing. Move the letter from Box 0 to Box 1. Box 1

All forms of Kim and Schuster's generator are read: "Box 1 is empty", "the letter is in Container
A", "there is nothing in Container A".
"""

import re
from math import comb

from chacal.tasks.boxes_files import items

MOST = 3
"""Things that a box holds at most, in their stories."""

_BOX = re.compile(r"\b(?:Box|Container) \w+")
_THING = re.compile(
    r"\bthe ((?:(?!(?:and|from|to|into|in|inside|out|of|is|are|contents)\b)[^\s,.]+\s?)+)", re.I
)


def asked(prompt: str) -> str:
    """The box that a prompt asks for: the last that it names; ValueError where it names none."""
    boxes = _BOX.findall(prompt)
    if not boxes:
        raise ValueError(f"{prompt[-60:]!r}: expected a text that names a Box or a Container")
    return str(boxes[-1])


def at_start(prompt: str) -> frozenset[str]:
    """What the first sentence says of the box that is asked for."""
    box = re.escape(asked(prompt))
    told = re.search(rf"\b{box} ((?:contains|is empty)[^,.]*)[,.]", prompt)
    if told is None:
        told = re.search(rf"([^,.]*?)(?: is| are)? in {box}[,.]", prompt)
    if told is None:
        raise ValueError(
            f"{prompt[:60]!r}: expected a text that says at first what {asked(prompt)} contains"
        )
    if re.fullmatch(r"\s*there is nothing", told[1], re.I):
        return frozenset()
    return items(re.sub(r"^\s*The ", "the ", told[1]))


def mentioned(prompt: str) -> frozenset[str]:
    """Things in the clauses that name the box that is asked for."""
    box = re.compile(rf"\b{re.escape(asked(prompt))}\b")
    clauses = re.split(r"[.,] ", prompt)[:-1]
    return frozenset(
        thing.strip()
        for clause in clauses
        if box.search(clause)
        for thing in _THING.findall(clause)
    )


def chance(prompt: str, content: frozenset[str]) -> float:
    """How probably a guess is right: 0 to 3 of the things that were mentioned with the box.

    This is the baseline of Kim and Schuster (2023, section 4.1), and much stronger than a guess
    among all things. Numbers of things are equally likely, and so are sets of one number.
    """
    things = mentioned(prompt)
    most = min(MOST, len(things))
    if not content <= things or len(content) > most:
        return 0.0
    return 1 / (most + 1) / comb(len(things), len(content))
