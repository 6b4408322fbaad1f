"""Boxes in plain words: the stories of `Boxes`, through the tokenizer of a pretrained model.

    The camera is in Box B. Put the key into Box C. ... Box A contains the camera. Box B is empty.

Story for story they are those of `Boxes` with the same settings and seed. The answer is asked from
its first token to its last; a box is right where all that is said of it is.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from chacal.tasks.base import IGNORE, Batch, Totals, by_group, option
from chacal.tasks.box_stories import BoxStories
from chacal.tasks.stories import OBJECTS, Sentence, answer_pieces
from chacal.tasks.texts import Asked, ThroughTokenizer, ask, right_answers, stack
from chacal.tasks.tokenizers import load_tokenizer


@dataclass(frozen=True, kw_only=True)
class BoxesText(ThroughTokenizer, BoxStories):
    """Stories about boxes as text; the answer is the final state of every box, in order."""

    tokenizer: str = option("", "file, folder or hub name of a tokenizer")

    name: ClassVar[str] = "boxes-text"
    metric: ClassVar[str] = "exact_match"
    maximise: ClassVar[bool] = True
    generates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tokenizer:
            raise ValueError("tokenizer='': expected the file, folder or hub name of one")

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self.tokenizer)

    @cached_property
    def length(self) -> int:
        """A bound: every sentence as long as the longest, and every item of the answer."""

        def longest(*frames: str) -> int:
            texts = [f.format(item) for f in frames for item in OBJECTS[: self.objects]]
            return max(len(self._tokenizer.encode(t, add_special_tokens=False).ids) for t in texts)

        sentence = longest(" Move the {} from Box A to Box B.", " Move the contents of Box A to B.")
        box, item = longest(" Box A is empty.", " Box A contains."), longest(" and the {}")
        told = self._most_at_first + self.updates
        return told * sentence + self.boxes * box + self._most_things * item

    def encode(self, story: list[Sentence], state: dict[str, list[str]]) -> Asked:
        """A story with its answer as tokens; the parts of the answer are the boxes."""
        text = " ".join(sentence.text for sentence in story)
        spans = []
        for box, items in state.items():
            told = "".join(answer_pieces({box: items}))
            spans.append((len(text), len(text) + len(told)))
            text += told
        return ask(self._tokenizer, text, spans)

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh stories, padded to the longest of them; no two splits share an initial state."""
        rows, counts = [], []
        for story, state, updates in self.stories(split, seed, step, size):
            rows.append(self.encode(story, state))
            counts.append(updates)
        tokens, targets, parts = stack(rows)
        return Batch(tokens, targets, {"updates": np.array(counts), "parts": parts})

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy of the answer's tokens, exact match (also by updates), box accuracy."""
        asked = batch.targets != IGNORE
        wrong = asked & (predictions != batch.targets)
        right = right_answers(wrong, batch.info["parts"], self.boxes)
        exact = np.asarray(right.all(1))
        return {
            "loss": (float(losses.sum(dtype=np.float64)), float(asked.sum())),
            "accuracy": (float(asked.sum() - wrong.sum()), float(asked.sum())),
            "box_accuracy": (float(right.sum()), float(right.size)),
            "exact_match": (float(exact.sum()), float(len(exact))),
        } | by_group("exact_match/updates", batch.info["updates"], exact)

    def describe(self) -> str:
        """One line for a person."""
        return f"{super().describe()}, in plain words and tokens of {self.tokenizer}"
