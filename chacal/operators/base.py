"""What every operator is: a frozen dataclass that can be called, named, compared and decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from chacal._echo import shown
from chacal.decoding.decoder import Decoder
from chacal.decoding.fixed_decoder import FixedDecoder
from chacal.decoding.states import ROLLBACK
from chacal.ops.delta import Beta
from chacal.ops.inputs import Gamma, check_count


@dataclass(frozen=True)
class Learn:
    """A γ that a layer learns, one per head, from `start` on; "learn" or "learn:0.5" in a text.

    It says what is wanted; the parameter is the layer's (`chacal.nn.gamma`). Called by itself, an
    operator has the γ that learning starts with.
    """

    start: float = 0.0

    def __post_init__(self) -> None:
        check_gamma_option(self.start)

    def __str__(self) -> str:
        return f"{LEARN}:{self.start}" if self.start else LEARN


LEARN = "learn"


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An attention operator: call it with q, k, v of shape (..., n, d)."""

    name: ClassVar[str]
    function: ClassVar[Callable[..., Tensor]]
    """What the operator calls: q, k, v, its fields by name, mask, cu_seqlens and scale."""
    check: ClassVar[Callable[..., None]]
    """The function's own check of its options: all fields by name but γ."""
    sizes: ClassVar[dict[str, str]] = {}
    """How a size stands in the text: {"@": field, "/": field}."""
    always_shown: ClassVar[tuple[str, ...]] = ()
    """Sizes that the text shows even at their default."""

    def __post_init__(self) -> None:
        options = self._options()
        if self.has_gamma:
            check_gamma_option(options.pop("gamma"))
        type(self).check(**options)

    @property
    def causal(self) -> bool:
        """Whether no output depends on a later token, as proven by the tests."""
        return True

    @property
    def has_gamma(self) -> bool:
        """Whether this is a resolvent, which has a γ (that a layer may learn)."""
        return any(f.name == "gamma" for f in dataclasses.fields(self))

    @property
    def has_beta(self) -> bool:
        """Whether every token has a β, which a layer computes unless the operator fixes it."""
        return any(f.name == "beta" for f in dataclasses.fields(self))

    @property
    def learn(self) -> Learn | None:
        """How a layer is to learn γ, where the text says `gamma=learn`."""
        gamma = getattr(self, "gamma", None)
        return gamma if isinstance(gamma, Learn) else None

    @property
    def own_gamma(self) -> float:
        """γ as long as none is given: the operator's, or where learning starts; 0 without one."""
        gamma = getattr(self, "gamma", 0.0)
        return gamma.start if isinstance(gamma, Learn) else gamma

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        scale: float | None = None,
        gamma: Gamma | None = None,
        beta: Beta | None = None,
    ) -> Tensor:
        """Y (..., n, d_v). `gamma` stands in for the operator's own, a learned one for instance,
        and so does `beta`, a number for every token."""
        if gamma is not None and not self.has_gamma:
            raise ValueError(f"gamma was given to {self}; expected a resolvent operator")
        if beta is not None and not self.has_beta:
            raise ValueError(f"beta was given to {self}; expected delta")
        common: dict[str, Any] = {"mask": mask, "cu_seqlens": cu_seqlens, "scale": scale}
        if beta is not None:
            common["beta"] = beta
        return self._attend(q, k, v, common, gamma)

    def formed(self, n: int, d: int) -> int:
        """Numbers per row that stand for all rows at once, in heads of width d; 0 if none do."""
        return 0

    def decoder(self, *, rollback: int = ROLLBACK) -> Decoder:
        """An empty sequence that `extend` grows; `rollback` tokens can be cropped again."""
        check_count("rollback", rollback, least=0)
        return self._decoder(rollback)

    def fixed_decoder(self, capacity: int) -> FixedDecoder:
        """A decoder of at most `capacity` tokens whose memory is allocated once, for compilers."""
        return FixedDecoder(self._decoder(0), capacity)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, common: dict[str, Any], gamma: Gamma | None
    ) -> Tensor:
        """The operator's function, given its fields as options."""
        options = self._options()
        if gamma is not None:
            options["gamma"] = gamma
        return type(self).function(q, k, v, **(options | common))

    def _options(self) -> dict[str, Any]:
        options = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if "gamma" in options:
            options["gamma"] = self.own_gamma
        return options

    def _decoder(self, rollback: int) -> Decoder:
        raise ValueError(f"{self} cannot decode one token at a time")

    def __str__(self) -> str:
        marks = {field: mark for mark, field in self.sizes.items()}
        size, options = "", ""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                value = "+".join(map(str, value))  # commas separate options
            if field.name in marks and (value != field.default or field.name in self.always_shown):
                size = f"{marks[field.name]}{value}"
            elif value != field.default:
                options += f",{field.name}={value}"
        return self.name + size + options


def check_gamma_option(gamma: object) -> None:
    """γ of an operator is a plain number in [0, 1)."""
    if isinstance(gamma, bool) or not isinstance(gamma, (int, float)) or not 0 <= gamma < 1:
        raise ValueError(
            f"gamma is {shown(gamma)}; expected a number in [0, 1), or learn, learn:0.5 for one "
            f"per head"
        )


def fixed_size(operator: Operator, block_size: int | None) -> int:
    """The block size of an operator that is to decode: one that does not change with n."""
    if block_size is None:
        raise ValueError(
            f"{operator} cannot decode: a block size of about √n changes as n grows; expected a "
            f"fixed one, as in '{operator.name}@64'"
        )
    return block_size


def refuse_pruning(operator: Operator, top_k: int | None) -> None:
    """Raise if an operator that is to decode prunes its rows."""
    if top_k is not None:
        raise ValueError(f"{operator} cannot decode: pruning is for evaluation in parallel form")
