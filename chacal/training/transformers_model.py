"""Transformers models in a run: `TransformersConfig` stands where a `ModelConfig` does.

The loop trains whatever maps tokens to scores, so a GPT-2 or a pretrained model is one more
configuration and no other loop: run folders, resuming, evaluation and sweeps are the same.
`chacal.hf` is imported only when the model is built.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from chacal._memory import LARGEST
from chacal._plain import added
from chacal.operators import parse_operator, spelled_out
from chacal.tasks import Task
from chacal.tasks.base import option

KIND = "decoder"
"""How a run's JSON tells this configuration from `ModelConfig`."""

MOST_LAYERS = 10_000
"""Of a model: more would take hours to be made, however narrow."""


def check_wholes(
    config: object, names: tuple[str, ...], *, least: int, most: int = LARGEST
) -> None:
    """Raise unless a configuration's whole numbers lie in least..most."""
    for name in names:
        value = getattr(config, name)
        if value < least:
            raise ValueError(f"{name} is {value}; expected at least {least}")
        if value > most:
            bound = "below 2**63" if most == LARGEST else f"at most {most}"
            raise ValueError(f"{name} is {value}; expected a whole number {bound}")


@cache
def layers_of(pretrained: str) -> tuple[int, tuple[int, ...]] | None:
    """How many layers a model on this machine has, and which can be patched; None for others."""
    if not Path(pretrained).exists():
        return None
    from chacal.hf.scores import count_layers

    return count_layers(pretrained)


def every_layer(pretrained: str | None) -> str:
    """All layers that can be patched, as `TransformersConfig.layers` names them."""
    depth, free = (pretrained and layers_of(pretrained)) or (0, ())
    return "all" if len(free) == depth else "+".join(map(str, free))


@dataclass(frozen=True, kw_only=True)
class TransformersConfig:
    """A transformers model with one operator in some of its layers."""

    operator: str = option("dense", "of the patched layers; dense leaves the model as it is")
    layers: str = option(
        "all", "patched layers: all, middle (four of them), paper:code, or numbers from 0 as in 0+3"
    )
    pretrained: str | None = option(None, "folder, GGUF file or hub name; none for new weights")
    architecture: str = option("gpt2", "of new weights: gpt2 or bart")
    width: int = option(128, "of new weights: width of the model")
    heads: int = option(4, "of new weights: attention heads")
    depth: int = option(4, "of new weights: layers")
    mlp_ratio: float = option(4.0, "of new weights: width of the feed-forward part over the width")
    positions: int = option(0, "of new weights: learned positions, the task's length at least")
    dropout: float = option(0.0, "of new weights: dropout on every sublayer's output")
    first_layers: int = added(
        0, help="of pretrained weights: only the model's first so many layers; 0: all"
    )
    lora: int = added(0, help="of pretrained weights: rank of adapters that learn instead; 0: none")
    freeze: str | None = added(
        None,
        help="of pretrained weights, what does not learn: all, or embeddings and layers from 0, as "
        "in embeddings+0-9; a learned γ always learns",
    )

    def __post_init__(self) -> None:
        parse_operator(self.operator)
        object.__setattr__(self, "operator", spelled_out(self.operator))
        check_wholes(self, ("width", "heads"), least=1)
        check_wholes(self, ("depth",), least=1, most=MOST_LAYERS)
        check_wholes(self, ("positions", "lora", "first_layers"), least=0)
        if not 0 <= self.mlp_ratio < 1e4:
            raise ValueError(f"mlp_ratio is {self.mlp_ratio}; expected a number of at least 0")
        if self.width % self.heads:
            raise ValueError(f"heads is {self.heads}; expected a divisor of the width {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; expected a share in [0, 1)")
        if self.pretrained is None and (self.lora or self.freeze or self.first_layers):
            raise ValueError(
                "lora, freeze and first_layers are of pretrained weights; expected pretrained too"
            )
        if self.lora and self.freeze:
            raise ValueError("lora and freeze are both given; adapters freeze all; expected one")

    @property
    def partial(self) -> bool:
        """Whether some weights stay those of the pretrained model, and no checkpoint has them."""
        return bool(self.lora or self.freeze)

    @property
    def operators(self) -> tuple[str, ...]:
        """The operator under study; the other layers are the model's own."""
        return (self.operator,)

    def with_operators(self, operators: tuple[str, ...]) -> TransformersConfig:
        """The same model with another operator."""
        return dataclasses.replace(self, operator=operators[0])

    def build(self, task: Task, *, weights: bool = True) -> Any:
        """The model, patched; without `weights`, pretrained ones are not read."""
        from chacal.hf.scores import build_scores

        names = ("width", "heads", "depth", "mlp_ratio", "positions", "dropout")
        sizes = {name: getattr(self, name) for name in names}
        return build_scores(
            operator=self.operator,
            layers=self.layers,
            pretrained=self.pretrained,
            architecture=self.architecture,
            sizes={**sizes, "tokens": task.special_tokens},
            vocab_size=task.vocab_size,
            num_classes=task.num_classes,
            length=task.length,
            inputs=task.inputs,
            weights=weights or self.partial,
            first_layers=self.first_layers,
            lora=self.lora,
            frozen=self.freeze,
        )

    def describe(self) -> str:
        """One line for a person."""
        made = self.pretrained or (
            f"{self.architecture} of {self.depth} layer(s), width {self.width}, "
            f"{self.heads} head(s), new weights"
        )
        where = {"all": "all layers", "middle": "four layers of the middle",
                 "paper:code": "layer 2", "paper:scrolls": "decoder layer 1"}  # fmt: skip
        learns = f"; LoRA of rank {self.lora}" * bool(self.lora)
        learns += f"; frozen: {self.freeze}" * bool(self.freeze)
        made += f", its first {self.first_layers} layer(s)" * bool(self.first_layers)
        placed = where.get(self.layers, f"layer(s) {self.layers} from 0")
        return f"{made}; operator in {placed}{learns}"
