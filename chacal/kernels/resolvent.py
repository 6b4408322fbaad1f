"""Exact, windowed and routed ChaCAL on a GPU: what calls the kernels.

Plain twins: ops/streaming.py (exact), ops/window.py and ops/routed.py. With gradients: ops/cards.py
and ops/routed.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from chacal.kernels.backward import adjoint_kernel
from chacal.kernels.configs import (
    PAIRS_AT_ONCE,
    Config,
    backend_options,
    find_config,
    find_precision,
    find_target,
)
from chacal.kernels.forward import forward_kernel
from chacal.kernels.gradient import gradient_kernel
from chacal.kernels.lists import chosen_blocks, rows_of_blocks

INTERPRETING = not isinstance(forward_kernel, triton.runtime.JITFunction)
"""Whether Triton runs the kernels on the CPU, for tests: TRITON_INTERPRET=1 in the environment."""


@dataclass(frozen=True)
class Call:
    """All of a call but its tensors.

    Attributes:
        scale: multiplies q·k.
        drop: whether a token may not hop to itself on the way.
        window: how many keys, its own among them, a row sees; None for all.
        block: keys of a block, for rows that choose blocks; 0 for others.
        near: whole blocks before a row's own that it sees without choosing them.
        config: tile, warps and stages, if not those of the table.
        pairs_at_once: heads that tickets go through side by side.
    """

    scale: float
    drop: bool = False
    window: int | None = None
    block: int = 0
    near: int = 0
    config: Config | None = None
    pairs_at_once: int = PAIRS_AT_ONCE


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    call: Call,
    cu_seqlens: Tensor | None = None,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Y = (1-γ) A (I-γA)⁻¹ V (Eq. 1), and what the gradients need besides.

    Args:
        q: (batch, heads, n, d) queries.
        k: (batch, key heads, n, d) keys; `heads` is a multiple of `key heads`, and query heads that
            follow each other share one.
        v: (batch, key heads, n, d_v) values.
        gamma: γ in [0, 1), of a shape that broadcasts to (batch, heads).
        call: the options.
        cu_seqlens: (sequences + 1,) int32 places where packed sequences begin, and n; batch is 1.
        chosen: (batch, heads, n, routes) int32 blocks that a row sees beside near ones; -1 for
            none. Not of packed sequences.

    Returns:
        Y and Z (batch, heads, n, d_v) in q's dtype; Z solves the system for values counted from the
        sequence's first, unless `drop`. Log-sum-exps (batch, heads, n) in float32.
    """
    launch = Launch("forward", q, k, v, gamma, call, cu_seqlens, chosen)
    B, h, n, _ = q.shape
    Z = q.new_empty(B, h, n, v.shape[-1])
    Y = torch.empty_like(Z)
    lse = q.new_empty(B, h, n, dtype=torch.float32)
    order = launch.order()
    lists = order[:1] * 2  # not read
    if chosen is not None:
        lists = chosen, chosen_blocks(chosen, launch.config.tile, call.block)
    launch(
        forward_kernel, *launch.inputs, Z, Y, lse, launch.gamma, *order, *lists,
        *launch.strides, *launch.gamma.stride(), *launch.sizes, call.scale / math.log(2),
    )  # fmt: skip
    return Y, Z, lse


def backward(
    dY: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    Y: Tensor,
    Z: Tensor,
    lse: Tensor,
    call: Call,
    cu_seqlens: Tensor | None = None,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and γ, in their shapes and dtypes, from what `forward` returned.

    dq is added up in float32 in whatever order tiles are done: its last bits may differ from run to
    run.
    """
    launch = Launch("adjoint", q, k, v, gamma, call, cu_seqlens, chosen)
    B, h, n, d = q.shape
    dY = with_channels(dY)
    W, G = torch.empty_like(Z), torch.empty_like(Z)
    delta = torch.empty_like(lse)
    dgamma = q.new_zeros(B, h, launch.tiles, dtype=torch.float32)
    order = launch.order()
    lists = order[:1] * 3  # not read
    if chosen is not None:
        lists = chosen, *rows_of_blocks(chosen, call.block)
    launch(
        adjoint_kernel, *launch.inputs, Z, Y, dY, lse, launch.gamma, W, G, delta, dgamma,
        *order, *lists, *launch.strides, *dY.stride()[:3], *launch.gamma.stride(),
        *launch.sizes, call.scale / math.log(2),
    )  # fmt: skip
    launch = Launch("gradient", q, k, v, gamma, call, cu_seqlens, chosen)
    dq = q.new_zeros(B, h, n, d, dtype=torch.float32)
    dk = q.new_empty(B, h, n, d)
    *sizes, _, window, block, near = launch.sizes
    launch(
        gradient_kernel, *launch.inputs[:2], Z, W, G, lse, delta, launch.gamma, dq, dk,
        order[0], *lists[1:], *launch.strides[:6], *launch.gamma.stride(), *sizes, window, block,
        near, call.scale,
    )  # fmt: skip
    return (
        dq.to(q.dtype),
        over_group(dk, k),
        over_group(G, v),
        dgamma.sum(-1).sum_to_size(gamma.shape).to(gamma.dtype),
    )


class Launch:
    """The arguments that both kernels share, and the call of one."""

    def __init__(
        self,
        kernel: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gamma: Tensor,
        call: Call,
        cu_seqlens: Tensor | None,
        chosen: Tensor | None,
    ) -> None:
        B, h, n, d = q.shape
        d_v = v.shape[-1]
        target = find_target(q.device, INTERPRETING)
        window = call.window if call.window is not None and call.window < n else None
        routes = 0 if chosen is None else chosen.shape[-1]
        variants = {
            "routed": routes > 0, "window": window is not None, "packed": cu_seqlens is not None,
            "drop": call.drop,
        }  # fmt: skip
        self.config = call.config or find_config(
            kernel,
            target,
            q.dtype,
            max(d, d_v),
            [name for name, is_so in variants.items() if is_so],
        )
        self.inputs = tuple(map(with_channels, (q, k, v)))
        self.strides = [stride for x in self.inputs for stride in x.stride()[:3]]
        self.gamma = gamma.float().expand(B, h)
        self.cu_seqlens = cu_seqlens
        tile = self.config.tile
        seqs = B if cu_seqlens is None else len(cu_seqlens) - 1
        # where a sequence ends is not read here: that would wait for the card
        self.tiles = -(-n // tile) if cu_seqlens is None else n // tile + seqs
        pairs = B * h
        self.programs, self.counters = self.tiles * pairs, seqs * h
        at_once = min(pairs, call.pairs_at_once)
        self.sizes = (
            n,
            self.tiles,
            seqs,
            h,
            h // k.shape[1],
            at_once,
            window or 0,
            call.block,
            call.near,
        )
        precision = find_precision(target, q.dtype)
        self.options = {
            "d": d, "d_v": d_v, "D": padded(d), "D_V": padded(d_v), "TILE": tile,
            "SEQS": 0 if cu_seqlens is None else triton.next_power_of_2(seqs), "DROP": call.drop,
            "WINDOW": window is not None, "ROUTES": routes, "UPCAST": INTERPRETING,
            "PRECISION": precision.products, "SOLVE": precision.solve,
            "COLUMNS": self.config.columns, "DEPTH": self.config.depth,
            "STAGES": self.config.stages,
        }  # fmt: skip

    def order(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where sequences begin, the next ticket, and how many tiles of each pair are solved."""
        q = self.inputs[0]
        counters = torch.zeros(1 + self.counters, dtype=torch.int32, device=q.device)
        return (counters if self.cu_seqlens is None else self.cu_seqlens), counters, counters[1:]

    def __call__(self, kernel: Any, *arguments: Any) -> None:
        """Run a program for every tile of every head."""
        options = {name: x for name, x in self.options.items() if name in kernel.arg_names}
        kernel[(self.programs,)](
            *arguments, **options, **self.config.options, **backend_options()
        )  # fmt: skip


def with_channels(x: Tensor) -> Tensor:
    """x, or a copy of it if its channels do not lie side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def padded(width: int) -> int:
    """Channels that a tile has: a power of two, and what a product needs at least."""
    return max(16, int(triton.next_power_of_2(width)))


def over_group(x: Tensor, like: Tensor) -> Tensor:
    """(batch, heads, n, d) summed over the heads that share a key head."""
    if x.shape[1] == like.shape[1]:
        return x
    return x.unflatten(1, (like.shape[1], -1)).sum(2)
