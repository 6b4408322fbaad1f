"""γ of a patched model by layer and head: numbers to look at, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chacal.hf.decoders import count_heads
from chacal.report.pictures import draw_gammas


@dataclass(frozen=True, repr=False)
class Gammas(Mapping[int, tuple[float, ...]]):
    """γ of each head by layer, counted from 0; printed as a table.

    Attributes:
        heads: γ by layer.
        operators: the operators' texts by layer.
    """

    heads: dict[int, tuple[float, ...]]
    operators: dict[int, str]

    def __getitem__(self, layer: int) -> tuple[float, ...]:
        return self.heads[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __repr__(self) -> str:
        """A line per layer: mean, largest, and each head."""
        wide = max((len(text) for text in self.operators.values()), default=0)
        lines = [f"layer  {'operator':{wide}}   mean    max  heads"]
        for layer, values in self.items():
            each = " ".join(f"{value:.2f}" for value in values)
            mean = sum(values) / len(values)
            lines.append(
                f"{layer:5}  {self.operators[layer]:{wide}}  {mean:.3f}  {max(values):.3f}  {each}"
            )
        return "\n".join(lines)

    def save_picture(self, path: str | Path) -> Path:
        """Write a PNG with a row of squares per layer; needs the extra `plot`."""
        path = Path(path)
        path.write_bytes(draw_gammas(self.heads))
        return path


@torch.no_grad()
def gammas(model: nn.Module) -> Gammas:
    """γ of every patched layer and head, learned or not.

    Args:
        model: patched; wrapped by PEFT, those of the active adapter; under FSDP2, where they lie in
            pieces, every process must ask.

    Returns:
        a mapping from layers to tuples of γ.
    """
    found: dict[int, tuple[float, ...]] = {}
    texts: dict[int, str] = {}
    for module in model.modules():
        operator = module.__dict__.get("chacal_operator")
        if operator is not None and operator.has_gamma:
            # to mypy an attribute of a module is a tensor or a module
            layer = int(module.layer_idx)  # type: ignore[arg-type]
            found[layer], texts[layer] = _heads(module, operator), str(operator)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no layer with a γ; expected a model that "
            f"chacal.hf.patch(model, 'chacal,gamma=learn') was called with"
        )
    return Gammas(dict(sorted(found.items())), dict(sorted(texts.items())))


def _heads(module: Any, operator: Any) -> tuple[float, ...]:
    if operator.learn is None:
        return (operator.own_gamma,) * count_heads(module)
    gamma = module.chacal_gamma(None)
    whole = gamma.full_tensor() if hasattr(gamma, "full_tensor") else gamma
    return tuple(whole.tolist())
