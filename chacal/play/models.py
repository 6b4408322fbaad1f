"""The trained models that the page compares: small ones that come with the package.

Each was trained by the command that its `environment.json` names, and packed by
`python -m chacal.play.pack`. They read the same stories: 7 boxes that hold one thing each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from chacal.nn import Transformer
from chacal.operators import BlockResolvent, Operator
from chacal.tasks import OBJECTS, Boxes, Chains, Task
from chacal.training.evaluate import load_run

CHECKPOINTS = Path(str(resources.files("chacal") / "checkpoints"))


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """A model that comes with the package.

    Attributes:
        name: in addresses and requests.
        label: on the page.
        about: one plain sentence for a tooltip.
    """

    name: str
    label: str
    about: str

    @property
    def folder(self) -> Path:
        """Where its weights lie."""
        return CHECKPOINTS / self.name


BOXES = (
    Bundled(
        name="boxes",
        label="Exact ChaCAL",
        about="Its last layer follows a chain of any length in one go.",
    ),
    Bundled(
        name="boxes-dense",
        label="Ordinary attention",
        about="Two layers of what most language models have: one look back per layer.",
    ),
    Bundled(
        name="boxes-block",
        label="Blocks (Algorithm 1, n//3)",
        about="The story is cut into three blocks; chains are followed inside a block only.",
    ),
    Bundled(
        name="boxes-window",
        label="Window of 32",
        about="Each look reaches back 32 words at most; several in a row reach further.",
    ),
    Bundled(
        name="boxes-routed",
        label="Routed",
        about="Each look sees what is near and the few earlier pieces that seem to matter.",
    ),
)
"""Models of stories, the first of which the page opens with."""

CHAINS = Bundled(
    name="chains",
    label="Exact ChaCAL, one layer",
    about="One layer that follows 15 pointers.",
)
"""The model of the pointer grid."""


class Model:
    """A trained model that the page asks, with another γ if wanted.

    Attributes:
        calls: forward passes so far, and `rows` the sequences in them: what an answer costs.
    """

    def __init__(self, bundled: Bundled) -> None:
        self.bundled = bundled
        self.net: Transformer
        self.net, folder = load_run(bundled.folder)
        self.task: Task = folder.config().task
        self.calls = self.rows = 0

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Of its layers."""
        return self.net.operators

    @property
    def gamma(self) -> float | None:
        """γ that it was trained with, the last layer's; None where no layer has one."""
        found = [getattr(operator, "gamma", None) for operator in self.operators]
        return next((gamma for gamma in reversed(found) if gamma is not None), None)

    @property
    def least_length(self) -> int:
        """Tokens that a sequence is padded to: blocks of n // j are cut from the n of training."""
        cut = any(isinstance(op, BlockResolvent) and op.divisor for op in self.operators)
        return self.task.length if cut else 0

    def padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """(B, n) tokens, with padding behind shorter rows."""
        longest = max(self.least_length, *map(len, rows))
        tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = torch.tensor(row)
        return tokens

    @torch.no_grad()
    def scores(self, tokens: Tensor, gamma: float | None = None) -> Tensor:
        """Class scores (B, n, classes)."""
        self.calls += 1
        self.rows += len(tokens)
        with self.at(gamma):
            return self.net(tokens)

    @contextmanager
    def at(self, gamma: float | None) -> Iterator[None]:
        """The model with this γ in every layer that has one; None: its own."""
        layers = [layer.attention for layer in self.net.blocks()]
        own = [layer.operator for layer in layers]
        try:
            if gamma is not None:
                for layer in layers:
                    if layer.operator.has_gamma:  # a field that the base class has not
                        layer.operator = dataclasses.replace(layer.operator, gamma=gamma)  # type: ignore[call-arg]
            yield
        finally:
            for layer, operator in zip(layers, own, strict=True):
                layer.operator = operator


class BoxesModel(Model):
    """A model of stories in which a box holds one thing."""

    task: Boxes

    def __init__(self, bundled: Bundled) -> None:
        super().__init__(bundled)
        if not isinstance(self.task, Boxes) or self.task.max_items != 1:
            raise ValueError(f"{bundled.folder}: expected a run of boxes that hold one thing")

    @property
    def objects(self) -> tuple[str, ...]:
        """The things it knows."""
        return OBJECTS[: self.task.objects]

    @cached_property
    def contents(self) -> list[int]:
        """Tokens that say what is in a box: nothing, or each thing in the order of `objects`."""
        ids = self.task.tokenizer.ids
        return [ids[" is empty"], *(ids[f" contains the {item}"] for item in self.objects)]

    @cached_property
    def names(self) -> list[int]:
        """Tokens that name each box in the answer."""
        ids = self.task.tokenizer.ids
        letters = [phrase[-1] for phrase in ids if phrase.startswith(". Box ")]
        return [ids[" Box A"], *(ids[f". Box {letter}"] for letter in letters)]


class ChainsModel(Model):
    """A model of the pointer grid."""

    task: Chains
