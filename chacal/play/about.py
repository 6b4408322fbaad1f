"""What the page is told at first: its models, its examples, its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from chacal.play.examples import EXAMPLES, Example
from chacal.play.models import BOXES
from chacal.play.player import Player
from chacal.training.runs import RunFolder


@dataclass(frozen=True)
class ModelFacts:
    """A model by name: what it is, its operators as text, γ if it has one, and how good it was.

    `exact_match` is the share of fresh test stories of which it had every box right.
    """

    name: str
    label: str
    about: str
    operators: tuple[str, ...]
    gamma: float | None
    exact_match: float


@dataclass(frozen=True)
class About:
    """All of it."""

    models: tuple[ModelFacts, ...]
    examples: tuple[Example, ...]
    boxes: int
    updates: int
    chain_gamma: float | None
    objects: tuple[str, ...]


def about(player: Player) -> About:
    """What there is to play with."""
    facts = []
    for bundled in BOXES:
        folder = RunFolder.open(bundled.folder)
        operators = folder.config().model.operators
        facts.append(
            ModelFacts(
                bundled.name, bundled.label, bundled.about, tuple(operators),
                player.answers(bundled.name).model.gamma,
                folder.read("result.json")["test"]["exact_match"],
            )
        )  # fmt: skip
    task = player.first.task
    return About(
        models=tuple(facts),
        examples=EXAMPLES,
        boxes=task.boxes,
        updates=2 * task.updates,
        chain_gamma=player.chains().gamma,
        objects=player.first.objects,
    )
