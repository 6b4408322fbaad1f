"""A trained Boxes model that reads a story and says what is in each box."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import torch

from chacal._echo import shown
from chacal.nn import Transformer
from chacal.tasks import OBJECTS, Boxes
from chacal.tasks.stories import parse_story, simulate
from chacal.training.evaluate import load_run

State = dict[str, list[str]]


class Tracker:
    """A trained Boxes model that answers stories."""

    def __init__(self, run: Path | None = None) -> None:
        """Of a run folder, or of the checkpoint that comes with the package."""
        bundled = Path(str(resources.files("chacal") / "checkpoints" / "boxes"))
        self.model: Transformer
        self.model, folder = load_run(run or bundled)
        task = folder.config().task
        if not isinstance(task, Boxes):
            raise ValueError(f"{folder.path} is a run of {task.name}; expected one of boxes")
        self.task = task

    def parse(self, story: str) -> State:
        """What the story says, by simulation; a ValueError points at what it does not allow."""
        sentences = parse_story(story, self.task.boxes, self.objects)
        return simulate(sentences, self.task.boxes, self.task.max_items)

    @property
    def objects(self) -> tuple[str, ...]:
        """The objects it was trained on."""
        return OBJECTS[: self.task.objects]

    def updates(self, story: str) -> int:
        """How many sentences of the story are updates."""
        return sum(s.kind != "is" for s in parse_story(story, self.task.boxes, self.objects))

    @torch.no_grad()
    def answer(self, story: str) -> State:
        """The state of every box as the model tells it, decoded greedily token by token."""
        self.parse(story)
        tokenizer = self.task.tokenizer
        end = tokenizer.ids["."]
        decoder = self.model.decoder()
        tokens = self.task.encode_story(story)
        answer: list[int] = []
        for _ in range(self.task.boxes * (2 + 2 * self.task.max_items) + 1):
            scores = decoder.extend(torch.tensor([tokens]))[0, -1]
            tokens = [int(scores.argmax())]
            answer += tokens
            if tokens[0] == end:
                break
        try:
            return self.task.parse_answer(tokenizer.decode(answer))
        except ValueError:
            raise ValueError(
                f"the model's answer is no answer: {shown(tokenizer.decode(answer))} (the run may "
                f"need more training)"
            ) from None
