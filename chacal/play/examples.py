"""Stories that the page offers: what each shows is said in a few words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A story, and the box that is worth a click."""

    title: str
    text: str
    box: str


EXAMPLES = (
    Example(
        "A camera that travels",
        "The camera is in Box F.\n"
        "The key is in Box A.\n"
        "Move the contents of Box F to Box B.\n"
        "Move the contents of Box A to Box F.\n"
        "Move the contents of Box B to Box D.\n"
        "Put the lamp into Box B.\n"
        "Move the contents of Box D to Box C.",
        "C",
    ),
    Example(
        "One look is enough",
        "The key is in Box A.\nThe lamp is in Box B.\nRemove the key from Box A.\n"
        "Put the book into Box C.",
        "C",
    ),
    Example(
        "As you would say it",
        "my unicorn is in box 1\nthe cats are in box 2\n"
        "take the unicorn out of box 1 and put it in box 3\n"
        "empty box 2 into box 1\nmove everything in box 3 to box 5",
        "E",
    ),
    Example(
        "Round and round",
        "The violin is in Box A.\nThe apple is in Box E.\n"
        "Move the contents of Box A to Box B.\n"
        "Move the contents of Box B to Box C.\n"
        "Move the contents of Box C to Box D.\n"
        "Move the contents of Box E to Box A.\n"
        "Move the contents of Box D to Box G.\n"
        "Move the contents of Box A to Box D.\n"
        "Move the contents of Box G to Box A.\n"
        "Move the contents of Box A to Box F.",
        "F",
    ),
)
