"""The family of operators as values: frozen dataclasses that can be called, named and compared.

    >>> op = chacal.parse_operator("block/3,rows=mean")
    >>> op, op.causal
    (BlockResolvent(...), False)
    >>> str(op)
    'block/3,rows=mean'
    >>> y = op(q, k, v)

`notation.py` reads the text form. `.causal` is what the tests prove through q, k and v
(tests/ops/test_causality.py), and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from chacal._plain import added
from chacal.decoding.decoder import Decoder
from chacal.decoding.delta import DeltaState
from chacal.decoding.pattern import PatternState
from chacal.decoding.states import BlockState, ExactState, RoutedState, TiledState
from chacal.operators.base import Learn, Operator, fixed_size, refuse_pruning
from chacal.ops.baselines import (
    bigbird_attention,
    check_bigbird_options,
    check_local_options,
    dense_attention,
    local_attention,
)
from chacal.ops.blockwise import block_resolvent_attention, check_block_options
from chacal.ops.delta import check_delta_options, delta_attention
from chacal.ops.inputs import Gamma, run
from chacal.ops.pattern import Offsets, check_offsets, pattern_resolvent_attention
from chacal.ops.pooled import check_pooled_options, pooled_resolvent_attention
from chacal.ops.resolvent import (
    check_prune_options,
    check_resolvent_options,
    check_top_k,
    resolvent,
    t_post,
    t_pre,
    t_raw,
)
from chacal.ops.routed import check_routed_options, routed_resolvent_attention
from chacal.ops.routing import Routing
from chacal.ops.samplers import CAUSAL_ROWS
from chacal.ops.streaming import resolvent_attention
from chacal.ops.view import View
from chacal.ops.weights import attention_weights
from chacal.ops.weights import top_k as prune_rows
from chacal.ops.window import check_window_options, window_resolvent_attention, window_view


@dataclass(frozen=True, kw_only=True)
class Dense(Operator):
    """Ordinary attention, A V; with `top_k`, each row of A pruned to its largest entries."""

    name = "dense"
    function = staticmethod(dense_attention)
    check = staticmethod(check_top_k)
    top_k: int | None = None

    def formed(self, n: int, d: int) -> int:
        """Pruning needs all of A."""
        return 0 if self.top_k is None else n

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, common: dict[str, Any], gamma: Gamma | None
    ) -> Tensor:
        if self.top_k is None:
            return dense_attention(q, k, v, **common)

        def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
            return t_raw(attention_weights(q, k, scale), v, self.top_k)

        return run(core, q, k, v, **common)

    def _decoder(self, rollback: int) -> Decoder:
        refuse_pruning(self, self.top_k)
        return Decoder(ExactState)


@dataclass(frozen=True, kw_only=True)
class Local(Operator):
    """Ordinary attention in a sliding window."""

    name = "local"
    function = staticmethod(local_attention)
    check = staticmethod(check_local_options)
    sizes: ClassVar[dict[str, str]] = {"@": "window"}
    window: int = 32

    def formed(self, n: int, d: int) -> int:
        """Scores against two tiles as long as the window."""
        return 2 * min(self.window, n)

    def _decoder(self, rollback: int) -> Decoder:
        return Decoder(lambda: TiledState(window_view(self.window), rollback))


@dataclass(frozen=True, kw_only=True)
class BigBird(Operator):
    """Ordinary attention in a sliding window and over a few random earlier tokens."""

    name = "bigbird"
    function = staticmethod(bigbird_attention)
    check = staticmethod(check_bigbird_options)
    sizes: ClassVar[dict[str, str]] = {"@": "window"}
    window: int = 32
    links: int = 3
    seed: int = 0

    def formed(self, n: int, d: int) -> int:
        """Scores as of `Local`, and a copy of every linked key."""
        return 2 * min(self.window, n) + self.links * d


@dataclass(frozen=True, kw_only=True)
class Resolvent(Operator):
    """Exact ChaCAL (Eq. 1); with `top_k`, of the pruned A."""

    name = "chacal"
    function = staticmethod(resolvent_attention)
    check = staticmethod(check_resolvent_options)
    gamma: float | Learn = 0.9
    diagonal: str = "keep"
    top_k: int | None = None

    def formed(self, n: int, d: int) -> int:
        """Pruning needs all of A."""
        return 0 if self.top_k is None else n

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, common: dict[str, Any], gamma: Gamma | None
    ) -> Tensor:
        gamma = self.own_gamma if gamma is None else gamma
        if self.top_k is None:
            return resolvent_attention(q, k, v, gamma=gamma, diagonal=self.diagonal, **common)

        def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
            A = prune_rows(attention_weights(q, k, scale), self.top_k or 1)
            return resolvent(A, v, gamma, self.diagonal)

        return run(core, q, k, v, gamma=gamma, **common)

    def _decoder(self, rollback: int) -> Decoder:
        refuse_pruning(self, self.top_k)
        return Decoder(lambda: ExactState(self.diagonal == "drop"), self.own_gamma)


@dataclass(frozen=True, kw_only=True)
class BlockResolvent(Operator):
    """Block-ChaCAL (Algorithm 1), with blocks of `block_size` or of n // `divisor`."""

    name = "block"
    function = staticmethod(block_resolvent_attention)
    check = staticmethod(check_block_options)
    sizes: ClassVar[dict[str, str]] = {"@": "block_size", "/": "divisor"}
    block_size: int | None = None
    divisor: int | None = None
    gamma: float | Learn = 0.9
    rows: str = "first"
    columns: str = "sum"
    branches: str = "both"
    values: str = added("rows", default="mean")

    @property
    def causal(self) -> bool:
        """Only a block's first row may stand for it; the local branch alone needs none."""
        return self.rows in CAUSAL_ROWS or self.branches == "local"

    def _decoder(self, rollback: int) -> Decoder:
        block_size = self.block_size
        if block_size is None:
            raise ValueError(
                f"{self} cannot decode: n // {self.divisor} changes with every token; expected a "
                f"fixed block size, as in 'block@64'"
            )
        if not self.causal:
            raise ValueError(f"{self} cannot decode: rows={self.rows!r} needs tokens yet to come")
        return Decoder(
            lambda: BlockState(block_size, self.columns, self.branches, self.values, rollback),
            self.own_gamma,
        )


@dataclass(frozen=True, kw_only=True)
class WindowResolvent(Operator):
    """The resolvent of sliding-window attention: linear in n."""

    name = "window"
    function = staticmethod(window_resolvent_attention)
    check = staticmethod(check_window_options)
    sizes: ClassVar[dict[str, str]] = {"@": "window"}
    always_shown = ("window",)
    window: int = 64
    gamma: float | Learn = 0.9
    diagonal: str = "keep"

    def _decoder(self, rollback: int) -> Decoder:
        view = window_view(self.window, self.diagonal == "drop")
        return Decoder(lambda: TiledState(view, rollback), self.own_gamma)


@dataclass(frozen=True, kw_only=True)
class PooledResolvent(Operator):
    """The subquadratic resolvent: near keys one by one, far ones as block means."""

    name = "pooled"
    function = staticmethod(pooled_resolvent_attention)
    check = staticmethod(check_pooled_options)
    sizes: ClassVar[dict[str, str]] = {"@": "block_size"}
    block_size: int | None = None
    gamma: float | Learn = 0.9
    near: int = 1

    def _decoder(self, rollback: int) -> Decoder:
        view = View(tile=fixed_size(self, self.block_size), near=self.near, pool=True)
        return Decoder(lambda: TiledState(view, rollback), self.own_gamma)


@dataclass(frozen=True, kw_only=True)
class TPost(Operator):
    """T_post of Section 3.4, with γ = 1 and `top_k` where `prune` says; it forms A."""

    name = "t_post"
    of_weights: ClassVar[Callable[..., Tensor]] = staticmethod(t_post)
    check = staticmethod(check_prune_options)
    top_k: int | None = None
    prune: str = "both"

    def formed(self, n: int, d: int) -> int:
        """All of A."""
        return n

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, common: dict[str, Any], gamma: Gamma | None
    ) -> Tensor:
        def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
            A = attention_weights(q, k, scale)
            return type(self).of_weights(A, v, self.top_k, self.prune)

        return run(core, q, k, v, **common)


@dataclass(frozen=True, kw_only=True)
class TPre(TPost):
    """T_pre of Section 3.4: as T_post, with the inverse on the left."""

    name = "t_pre"
    of_weights: ClassVar[Callable[..., Tensor]] = staticmethod(t_pre)


@dataclass(frozen=True, kw_only=True)
class RoutedResolvent(Operator):
    """The subquadratic resolvent that hops anywhere: near tiles, and past ones a row chooses."""

    name = "routed"
    function = staticmethod(routed_resolvent_attention)
    check = staticmethod(check_routed_options)
    sizes: ClassVar[dict[str, str]] = {"@": "block_size"}
    block_size: int | None = None
    gamma: float | Learn = 0.9
    near: int = 1
    routes: int = 1
    parts: int = 1
    score: str = "mean"

    def _decoder(self, rollback: int) -> Decoder:
        view = View(tile=fixed_size(self, self.block_size), near=self.near)
        routing = Routing(self.routes, self.parts, self.score)
        return Decoder(lambda: RoutedState(view, routing), self.own_gamma)


@dataclass(frozen=True, kw_only=True)
class PatternResolvent(Operator):
    """The resolvent of a fixed pattern: a row sees itself and the rows `offsets` before it."""

    name = "pattern"
    function = staticmethod(pattern_resolvent_attention)
    check = staticmethod(check_offsets)
    offsets: Offsets = "powers"
    gamma: float | Learn = 0.9

    def _decoder(self, rollback: int) -> Decoder:
        return Decoder(lambda: PatternState(self.offsets, rollback), self.own_gamma)


@dataclass(frozen=True, kw_only=True)
class Delta(Operator):
    """DeltaFormer: attention over values from which each token took what was there already.

    β of every token and head comes from the layer; `beta` fixes it to one number, and called by
    itself, without one, the operator has β = 1.
    """

    name = "delta"
    function = staticmethod(delta_attention)
    check = staticmethod(check_delta_options)
    beta: float | None = None
    read: str = "queries"

    def _decoder(self, rollback: int) -> Decoder:
        own = 1.0 if self.beta is None else self.beta
        return Decoder(lambda: DeltaState(self.read), beta=own)


OPERATORS: dict[str, type[Operator]] = {
    cls.name: cls
    for cls in (
        *(Dense, Local, BigBird, Resolvent, BlockResolvent, WindowResolvent, PooledResolvent),
        *(RoutedResolvent, PatternResolvent, Delta, TPost, TPre),
    )
}
