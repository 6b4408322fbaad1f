"""Multi-head attention around any operator: projections, positions, QK-norm, dropout, γ, β.

What makes a resolvent layer learn chains is a sharp A: a path of t hops weighs the product of its
t attention weights. QK-norm with a temperature of about 2 gives every head sharp weights from the
start and keeps them bounded (docs/findings.md).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chacal.decoding.decoder import Decoder
from chacal.nn.gamma import LearnedGamma
from chacal.operators import Operator, parse_operator
from chacal.parallel import current_part

ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """Causal multi-head self-attention with a chosen operator.

    Args:
        width: of the model; a multiple of `heads`.
        heads: h.
        operator: an operator or its text, such as "chacal" or "block/3"; with `gamma=learn` or
            `gamma=learn:0.5` in it, a learned γ per head that can be exactly 0 (gamma.py). For
            "delta", unless the text fixes it, β = sigmoid(a linear map of x) per token and head.
        qk_norm: temperature τ of QK-norm: q and k are scaled to length √d_head each, and
            q·k/√d_head is multiplied by τ. None for plain scores.
        rotary: whether q and k are rotated by their positions (an even d_head is needed).
        rotary_base: pair i of a head's d channels turns by base^(-2i/d) a token.
        dropout: on the output. Never on A: 1 - γA_tt could vanish.
        learn_gamma: a learned γ per head that starts at the operator's and never reaches 0, being
            a sigmoid; what checkpoints before `gamma=learn` hold.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        operator: Operator | str = "chacal",
        *,
        qk_norm: float | None = None,
        rotary: bool = False,
        rotary_base: float = ROTARY_BASE,
        dropout: float = 0.0,
        learn_gamma: bool = False,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"heads is {heads}; expected a divisor of the width {width}")
        if qk_norm is not None and not qk_norm > 0:
            raise ValueError(f"qk_norm is {qk_norm!r}; expected a positive temperature or None")
        if rotary and (width // heads) % 2:
            raise ValueError(
                f"heads is {heads}, so a head is {width // heads} wide; rotary needs an even width"
            )
        self.operator = parse_operator(operator) if isinstance(operator, str) else operator
        if learn_gamma and not self.operator.has_gamma:
            raise ValueError(f"learn_gamma with {self.operator}; expected a resolvent operator")
        if not 1 <= rotary_base < math.inf:
            raise ValueError(f"rotary_base is {rotary_base!r}; expected a number of at least 1")
        self.heads, self.rotary_base = heads, rotary_base
        self.qk_norm, self.rotary = qk_norm, rotary
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        computed = self.operator.has_beta and getattr(self.operator, "beta", None) is None
        self.beta = nn.Linear(width, heads) if computed else None
        self.gamma_logit: nn.Parameter | None = None
        self.learned_gamma: LearnedGamma | None = None
        if self.operator.learn is not None:
            self.learned_gamma = LearnedGamma(heads, self.operator.learn.start)
        elif learn_gamma:
            start = min(max(self.operator.own_gamma, 1e-3), 1 - 1e-3)
            self.gamma_logit = nn.Parameter(torch.full((heads,), math.log(start / (1 - start))))

    @property
    def gamma(self) -> Tensor | None:
        """(heads,) the learned γ, or None where the operator's own counts."""
        if self.learned_gamma is not None:
            return self.learned_gamma()
        if self.gamma_logit is None:
            return None
        # rounding must not reach 1, where the resolvent ends
        return torch.sigmoid(self.gamma_logit).clamp(max=1 - 1e-4)

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """x (batch, n, width) -> q, k, v (batch, heads, n, d), the first token at `first`."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.qk_norm is not None:
            root = math.sqrt(q.shape[-1])
            q = F.normalize(q, dim=-1) * (root * self.qk_norm)
            k = F.normalize(k, dim=-1) * root
        if self.rotary:
            positions = torch.arange(first, first + x.shape[1], device=x.device)
            q, k = (rotate(y, positions, self.rotary_base) for y in (q, k))
        # autocast may leave v behind in half precision while the norms stay in float32
        return q.to(v.dtype), k.to(v.dtype), v

    def betas(self, x: Tensor) -> Tensor | None:
        """x (batch, n, width) -> β (batch, heads, n) in (0, 1); None if it has none."""
        return None if self.beta is None else torch.sigmoid(self.beta(x)).mT

    def forward(
        self, x: Tensor, mask: Tensor | None = None, decoder: Decoder | None = None
    ) -> Tensor:
        """Attend; inside `chacal.parallel.context_parallel`, as this rank's part of a text.

        Args:
            x: (batch, n, width).
            mask: (batch, n) boolean, True for real tokens.
            decoder: a state that x continues, from `self.operator.decoder()`; None for a whole
                sequence at once.

        Returns:
            (batch, n, width).
        """
        beta = self.betas(x)
        if decoder is None:
            part = current_part()
            q, k, v = self.project(x, 0 if part is None else part.first)
            if part is None:
                Y = self.operator(q, k, v, mask=mask, gamma=self.gamma, beta=beta)
            else:
                Y = part.attend(self.operator, q, k, v, mask=mask, gamma=self.gamma)
        else:
            q, k, v = self.project(x, decoder.length)
            Y = decoder.extend(q, k, v, mask, gamma=self.gamma, beta=beta)
        return self.dropout(self.out(Y.transpose(1, 2).flatten(2)))

    def extra_repr(self) -> str:
        """The operator's text."""
        return f"operator={self.operator}, heads={self.heads}, qk_norm={self.qk_norm}"


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary positions: each pair of channels of x (..., n, d) turns with the position."""
    d = x.shape[-1]
    speed = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = positions[:, None].float() * speed  # (n, d/2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
