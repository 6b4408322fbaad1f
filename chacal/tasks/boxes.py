"""Boxes: English stories of things put into boxes and moved about, and where everything ended.

    The camera is in Box B. Put the key into Box C. Move the contents of Box B to Box A.
    Move the key from Box C to Box B. Box A contains the camera. Box B contains the key. Box C is
    empty.

One token per phrase (`stories.vocabulary`), next-token targets, asked in the answer only:

    tokens  <start> ... " from Box C to Box" " B."     " Box A"               " contains the camera"
    targets -       ...  -                   " Box A"  " contains the camera" ". Box B"

A softmax always points somewhere. The start token is where a box that no sentence named can
point to; without it the task is hardly learned (docs/history.md).

Only a move of contents adds a hop to a chain; whatever names the object ends it. So the shares of
the operations set the depth: where three updates in four move contents, as by default, the deepest
chain of a story has on average about 3 hops after 10 updates and 6 after 31; with equal shares,
about 1 however long the story, which ordinary attention can follow.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from chacal.tasks.base import IGNORE, Batch, Totals, by_group
from chacal.tasks.box_stories import BoxStories
from chacal.tasks.phrases import START, Phrases
from chacal.tasks.stories import (
    OBJECTS,
    Sentence,
    answer_pieces,
    parse_answer,
    parse_story,
    vocabulary,
)


@dataclass(frozen=True, kw_only=True)
class Boxes(BoxStories):
    """Stories about boxes; the answer is the final state of every box, in order.

    Things go only where there is room. A drawn operation that is impossible is drawn again among
    the others. With no `put_share` the last thing is never removed, and with no `remove_share`
    one place stays free, so that a story can always go on.
    """

    name: ClassVar[str] = "boxes"
    metric: ClassVar[str] = "exact_match"
    maximise: ClassVar[bool] = True
    generates: ClassVar[bool] = True

    @cached_property
    def tokenizer(self) -> Phrases:
        """Text to token ids and back."""
        return vocabulary(self.boxes, self.objects)

    @cached_property
    def _cut(self) -> dict[Sentence, list[int]]:
        """Sentences met so far: their number is small, and cutting them is half of the work."""
        return {}

    def _tokens(self, sentence: Sentence) -> list[int]:
        tokens = self._cut.get(sentence)
        if tokens is None:
            tokens = [self.tokenizer.ids[piece] for piece in sentence.pieces]
            self._cut[sentence] = tokens
        return tokens

    @property
    def vocab_size(self) -> int:
        """Phrases, with padding and start."""
        return len(self.tokenizer)

    @property
    def num_classes(self) -> int:
        """The next token."""
        return len(self.tokenizer)

    @property
    def length(self) -> int:
        """A bound on the start, a story and its answer, without the last token, only predicted."""
        first = self._most_at_first
        longest = 0
        for puts in range(min(self.updates, self._most_things - first) + 1):
            things = first + puts
            empty = self.boxes - -(-things // self.max_items)
            answer = self.boxes + things + empty
            longest = max(longest, 1 + 4 * (first + self.updates) + answer)
        return longest

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """Fresh stories, padded to the longest of them; no two splits share an initial state."""
        ids = self.tokenizer.ids
        rows, starts, counts = [], [], []
        for story, state, updates in self.stories(split, seed, step, size):
            counts.append(updates)
            row = [ids[START], *(t for sentence in story for t in self._tokens(sentence))]
            starts.append(len(row))
            row += [ids[piece] for piece in answer_pieces(state)]
            rows.append(row)
        tokens = np.zeros((size, max(map(len, rows)) - 1), dtype=np.int64)
        targets = np.full_like(tokens, IGNORE)
        for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
            tokens[i, : len(row) - 1] = row[:-1]
            targets[i, start - 1 : len(row) - 1] = row[start:]
        return Batch(tokens, targets, {"updates": np.array(counts, dtype=np.int64)})

    def count(self, predictions: np.ndarray, losses: np.ndarray, batch: Batch) -> Totals:
        """Loss and accuracy of the answer's tokens, exact match (also by updates), box accuracy.

        A box is right when everything after its name, up to and with the next name, is right.
        """
        asked = batch.targets != IGNORE
        wrong = asked & (predictions != batch.targets)
        names = [i for phrase, i in self.tokenizer.ids.items() if " Box " in phrase[:6]]
        box = np.isin(batch.tokens, names).cumsum(1)
        keys = np.arange(len(box))[:, None] * (self.boxes + 1) + box
        cells = np.bincount(keys[wrong], minlength=len(box) * (self.boxes + 1))
        boxes_right = cells.reshape(len(box), -1)[:, 1:] == 0
        exact = ~wrong.any(1)
        return {
            "loss": (float(losses.sum()), float(asked.sum())),
            "accuracy": (float(asked.sum() - wrong.sum()), float(asked.sum())),
            "box_accuracy": (float(boxes_right.sum()), float(boxes_right.size)),
            "exact_match": (float(exact.sum()), float(len(exact))),
        } | by_group("exact_match/updates", batch.info["updates"], exact)

    def show(self, tokens: np.ndarray) -> list[str]:
        """The phrases of one example."""
        return [self.tokenizer.phrases[i] for i in np.asarray(tokens).tolist()]

    def encode_story(self, text: str) -> list[int]:
        """Token ids of the start and a story without its answer: where greedy decoding begins.

        Raises:
            ValueError: pointing at the sentence that is not of the grammar.
        """
        story = parse_story(text, self.boxes, OBJECTS[: self.objects])
        return [self.tokenizer.ids[START], *(t for s in story for t in self._tokens(s))]

    def parse_answer(self, text: str) -> dict[str, list[str]]:
        """The state that an answer tells, box -> items."""
        return parse_answer(text)
