"""Every question that the page asks, typed, and the method of `Player` that answers it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

from chacal._plain import added, from_plain, to_plain
from chacal.play.player import Player

MOST_MODELS = 3
"""Side by side."""


@dataclass(frozen=True)
class AskStory:
    """What is in each box, after every sentence."""

    text: str
    models: tuple[str, ...]
    gamma: float | None = added(None)


@dataclass(frozen=True)
class AskHops:
    """How a model found what is in a box."""

    text: str
    model: str
    box: str
    step: int | None = added(None)
    gamma: float | None = added(None)


@dataclass(frozen=True)
class AskRows:
    """What every token looks at."""

    text: str
    model: str
    step: int | None = added(None)
    gamma: float | None = added(None)


@dataclass(frozen=True)
class AskChain:
    """The pointer grid."""

    seed: int
    gamma: float | None = added(None)


@dataclass(frozen=True)
class AskDraw:
    """A story at random."""

    seed: int
    boxes: int
    updates: int


ASKED: dict[str, tuple[type, str]] = {
    "story": (AskStory, "story"),
    "hops": (AskHops, "hops"),
    "rows": (AskRows, "rows"),
    "chain": (AskChain, "chain"),
    "draw": (AskDraw, "draw"),
}
"""Each kind of question: its fields, and the method of `Player` that answers."""


def answer(player: Player, kind: str, asked: Any) -> Any:
    """A question as JSON has it -> its answer; a ValueError says what is wrong with it."""
    fields, method = ASKED[kind]
    question: Any = from_plain(fields, asked, kind)
    if len(getattr(question, "models", ())) > MOST_MODELS:
        raise ValueError(f"models are {len(question.models)}; expected at most {MOST_MODELS}")
    return to_plain(getattr(player, method)(**vars(question)))


def page_files() -> dict[str, bytes]:
    """The page's files by name."""
    folder = resources.files("chacal.play") / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
