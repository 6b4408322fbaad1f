"""A small decoder whose layers each take an operator: what the tasks are learned with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chacal.decoding.decoder import Decoder
from chacal.nn.attention import ROTARY_BASE, Attention
from chacal.operators import Operator, parse_operator
from chacal.parallel import current_part

EMBED_STD = 0.02
"""Of embeddings at first, as in GPT-2."""

POSITIONS = ("rotary", "first", "learned", "factorised", "none")


class Transformer(nn.Module):
    """Embedding, pre-norm blocks, and one row of class scores per position.

    Args:
        vocab_size: input symbols.
        num_classes: output classes.
        operators: one operator, or its text, per layer.
        width: of the model.
        heads: h.
        mlp_ratio: hidden width of the feed-forward part over the model's; 0 for none.
        positions: "rotary" turns q and k in every layer; "first" in the first layer only, so that
            a local one puts phrases together and later ones know no distances; "learned" adds a
            vector per position;
            "factorised" adds a vector per block of `period` positions and one per offset in it;
            "none" leaves order to the causal mask.
        max_length: the longest sequence, for learned and factorised positions.
        period: positions per block, for factorised ones.
        symbols: tokens per position; their embeddings are added and each is answered by its own
            scores. 1 for an ordinary sequence.
        qk_norm: temperature of QK-norm, or None.
        dropout: on every sublayer's output.
        learn_gamma: a learned γ per head in every layer that has one.
        embed_std: how large an embedding's numbers are at first. Each sublayer adds numbers of
            about 1, so at 0.02 a token's own symbol is hardly there for the second layer; a model
            that must look names up by their symbols needs about 1 (docs/training.md).
        rotary_base: of rotary positions: pair i of d channels turns by base^(-2i/d) a token.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        num_classes: int,
        operators: Sequence[Operator | str],
        width: int = 128,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        positions: str = "rotary",
        max_length: int | None = None,
        period: int | None = None,
        symbols: int = 1,
        qk_norm: float | None = 2.0,
        dropout: float = 0.0,
        learn_gamma: bool = False,
        embed_std: float = EMBED_STD,
        rotary_base: float = ROTARY_BASE,
    ) -> None:
        super().__init__()
        if not embed_std > 0:
            raise ValueError(f"embed_std is {embed_std!r}; expected a positive number")
        if positions not in POSITIONS:
            raise ValueError(f"positions is {positions!r}; expected one of {', '.join(POSITIONS)}")
        if rotary_base != ROTARY_BASE and positions not in ("rotary", "first"):
            raise ValueError(
                f"rotary_base is {rotary_base:g} with positions {positions!r}; expected rotary ones"
            )
        if not operators:
            raise ValueError("operators is empty; expected one per layer")
        self.positions, self.period, self.symbols = positions, period, symbols
        self.max_length, self.num_classes = max_length, num_classes
        self.embed = nn.Embedding(vocab_size, width)
        if positions in ("learned", "factorised"):
            if max_length is None or max_length < 1:
                raise ValueError(f"max_length is {max_length}; {positions} positions need one")
            if positions == "factorised" and (period is None or period < 1):
                raise ValueError(f"period is {period}; factorised positions need one")
            step = period if positions == "factorised" and period else 1
            self.place = nn.Embedding(-(-max_length // step), width)
            self.offset = nn.Embedding(step, width) if positions == "factorised" else None
        self.layers = nn.ModuleList(
            Block(
                width, heads, operator, mlp_ratio=mlp_ratio, qk_norm=qk_norm,
                rotary=positions == "rotary" or (positions == "first" and i == 0),
                rotary_base=rotary_base, dropout=dropout, learn_gamma=learn_gamma,
            )
            for i, operator in enumerate(operators)
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols * num_classes)
        self.apply(_initialise)
        if embed_std != EMBED_STD:
            with torch.no_grad():
                self.embed.weight.mul_(embed_std / EMBED_STD)

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The layers' operators."""
        return tuple(layer.attention.operator for layer in self.blocks())

    def blocks(self) -> list[Block]:
        """The layers, typed."""
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores of every class at every position; inside `chacal.parallel.context_parallel`, at
        those of this rank's tokens.

        Args:
            tokens: (batch, n), or (batch, n, symbols).
            mask: (batch, n) boolean, True for real tokens.

        Returns:
            (batch, n, classes), or (batch, n, symbols, classes).
        """
        part = current_part()
        x = self._embed(tokens, 0 if part is None else part.first)
        for layer in self.blocks():
            x = layer(x, mask)
        return self._scores(x)

    def decoder(self) -> TransformerDecoder:
        """An empty sequence to extend token by token, with the operators' own states."""
        return TransformerDecoder(self)

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        last = first + tokens.shape[1]
        if self.positions in ("learned", "factorised") and last > (self.max_length or 0):
            raise ValueError(
                f"tokens reach position {last}; {self.positions} positions end at {self.max_length}"
            )
        x = self.embed(tokens)
        if self.symbols > 1:
            x = x.sum(2)
        t = torch.arange(first, last, device=tokens.device)
        if self.positions == "learned":
            x = x + self.place(t)
        elif self.positions == "factorised" and self.offset is not None and self.period:
            x = x + self.place(t // self.period) + self.offset(t % self.period)
        return x

    def _scores(self, x: Tensor) -> Tensor:
        scores = self.head(self.norm(x))
        return scores.unflatten(-1, (self.symbols, -1)) if self.symbols > 1 else scores


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(
        self,
        width: int,
        heads: int,
        operator: Operator | str,
        *,
        mlp_ratio: float,
        qk_norm: float | None,
        rotary: bool,
        rotary_base: float,
        dropout: float,
        learn_gamma: bool,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        operator = parse_operator(operator) if isinstance(operator, str) else operator
        self.attention = Attention(
            width, heads, operator, qk_norm=qk_norm, rotary=rotary, rotary_base=rotary_base,
            dropout=dropout, learn_gamma=learn_gamma and operator.has_gamma,
        )  # fmt: skip
        hidden = round(width * mlp_ratio)
        self.mlp = (
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, hidden),
                nn.GELU(),
                nn.Linear(hidden, width),
                nn.Dropout(dropout),
            )
            if hidden
            else None
        )

    def forward(
        self, x: Tensor, mask: Tensor | None = None, decoder: Decoder | None = None
    ) -> Tensor:
        """x (batch, n, width) -> (batch, n, width)."""
        x = x + self.attention(self.attention_norm(x), mask, decoder)
        return x if self.mlp is None else x + self.mlp(x)


class TransformerDecoder:
    """A sequence under way: one operator state per layer."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.states = [layer.attention.operator.decoder() for layer in model.blocks()]
        self.length = 0

    @torch.no_grad()
    def extend(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores at the new tokens (batch, c), given all before them."""
        x = self.model._embed(tokens, self.length)
        for layer, state in zip(self.model.blocks(), self.states, strict=True):
            x = layer(x, mask, state)
        self.length += tokens.shape[1]
        return self.model._scores(x)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=EMBED_STD)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
