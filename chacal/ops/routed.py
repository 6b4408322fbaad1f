"""The routed resolvent: subquadratic, causal, and able to hop to any single token of the past.

A window cuts long hops and pooling blurs them. Here a row sees its own tile, the `near` tiles
before it and the few past tiles that it chooses, all key by key. A chosen tile is whole and past,
so nothing of the future is seen. Work is n · (tile · (near + 1 + routes) + n / tile) · d: what is
seen, and the choice.

Near tiles go by the recursion of `tiled.py`. A tile that is solved is pushed to all rows that
chose it (`routing.py`), each of which has all that it sees afar by the time that it is solved.

On a card the choice is made by PyTorch, in float32, and all that follows by kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chacal.native import resolvent as library
from chacal.native import sparse
from chacal.ops.cards import Kernel, say_plain
from chacal.ops.inputs import Gamma, check_choice, check_count, run
from chacal.ops.library import Operation, no_dgamma
from chacal.ops.pooled import default_block_size
from chacal.ops.ragged import PLANS, ByLength
from chacal.ops.routing import SCORES, Far, FarAdjoint, Groups, Routing
from chacal.ops.streaming import row_sums
from chacal.ops.tiled import Tiles, TilesAdjoint, new_memory
from chacal.ops.view import View

MOST_ROUTES = 16
"""Of a row, that the kernels take; they look at each in turn."""


def routed_resolvent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Gamma = 0.9,
    block_size: int | None = None,
    near: int = 1,
    routes: int = 1,
    parts: int = 1,
    score: str = "mean",
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = (1-γ) A (I-γA)⁻¹ V (Eq. 1) where row t of A sees chosen tiles of keys only.

    Row t of tile i has one softmax over the keys <= t of its own tile, those of the `near` tiles
    before it, and those of the `routes` earlier tiles that score highest against q_t. With all
    tiles near or chosen it is `resolvent_attention`. The choice takes no gradient.

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        gamma: γ in [0, 1): a float, or a tensor that broadcasts over the leading dimensions.
        block_size: keys of a tile, m; None picks about √n.
        near: whole tiles before a row's own that it always sees.
        routes: earlier tiles that a row chooses, each head for itself.
        parts: a tile is scored by the best of so many parts of it; more find single keys better.
        score: "mean" is q · mean key of a part; "bound" the largest q·k that the range of its
            keys, channel by channel, allows; "keys" the largest q·k of so many keys of the tile as
            there are parts, those that stand out from the rest.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_routed_options(block_size, near, routes, parts, score)

    plan = ByLength("routed", [block_size or 0, near, routes, parts], [score])

    def on_card(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        return TRITON_ROUTED(q, k, v, gamma, scale, *_plan(q.shape[2], *plan[1:])[1])

    return run(
        plan.core,
        q,
        k,
        v,
        gamma=gamma,
        scale=scale,
        mask=mask,
        cu_seqlens=cu_seqlens,
        by_length=plan if block_size is None else None,
        kernel=card_kernel(on_card, routes, q),
    )


def _plan(n: int, sizes: Sequence[int], words: Sequence[str]) -> tuple[Operation, tuple[Any, ...]]:
    block_size, near, routes, parts = sizes
    tile = min(n, block_size or default_block_size(n))
    most = min(routes, max(1, (n - 1) // tile))  # there are no more tiles
    return ROUTED, (tile, near, most, parts, words[0])


PLANS["routed"] = _plan


def card_kernel(
    on_card: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor],
    routes: int,
    q: Tensor,
) -> Kernel | None:
    """The kernels, for as many routes as they take."""
    if routes <= MOST_ROUTES:
        return Kernel(routed=on_card)
    if isinstance(q, Tensor) and q.is_cuda:  # whether it is one, `run` asks later
        say_plain(f"routes is {routes}", f"at most {MOST_ROUTES}")
    return None


def check_routed_options(
    block_size: int | None, near: int, routes: int, parts: int, score: str
) -> None:
    """Whole numbers, and a known score."""
    if block_size is not None:
        check_count("block_size", block_size)
    check_count("near", near, least=0)
    check_count("routes", routes)
    check_count("parts", parts)
    check_choice("score", score, SCORES)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    scale: float,
    tile: int,
    near: int,
    routes: int,
    parts: int,
    score: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Y (B, n, d_v), the rows' log-sum-exps, the tiles (B, n, routes) that they chose, and the unit
    (1,) of the former, as in streaming.py."""
    view, routing = View(tile, near=near), Routing(routes, parts, score)
    if library.fits(q, k, v, gamma):
        chosen = routing.choose(q, routing.summary(whole_tiles(k, tile)), view)
        seen = sparse.Seen(tile=tile, near=near, chosen=chosen)
        Y, lse = sparse.forward(q, k, v, gamma, scale, False, seen)
        return Y, lse, chosen, q.new_full((1,), library.UNIT)
    H, lse, chosen = solve(q, k, v, gamma, scale, view, routing)
    return H.mul_(1 - gamma), lse, chosen, q.new_ones(1)


def solve(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, view: View, routing: Routing
) -> tuple[Tensor, Tensor, Tensor]:
    """H = A Z (B, n, d_v), of which Z = V + γH, log-sum-exps and chosen tiles."""
    n, tile = q.shape[1], view.tile
    chosen = routing.choose(q, routing.summary(whole_tiles(k, tile)), view)
    far = Far(q, k, v.shape[2], scale, tile, chosen)
    memory = new_memory(view, k, v)
    tiles = Tiles(view, memory, gamma, scale)
    H, lse = far.out, far.lse  # a row's own takes the place of what it saw afar
    for a, b in view.runs(0, n):
        memory.make_room(view, a, b, k)
        seen = H[:, a:b], lse[:, a:b]
        H[:, a:b] = tiles.step(q[:, a:b], v[:, a:b], a, b, seen, lse[:, a:b])
        if b % tile == 0:
            far.push(a // tile, memory.Z[:, b - tile - memory.origin : b - memory.origin])
    return H, lse, chosen


def whole_tiles(k: Tensor, tile: int) -> Tensor:
    """(B, n, d) -> (B, tiles, tile, d), without a last one that is short."""
    return k[:, : k.shape[1] // tile * tile].unflatten(1, (-1, tile))


def backward(
    dY: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    Y: Tensor,
    lse: Tensor,
    chosen: Tensor,
    unit: Tensor,
    scale: float,
    tile: int,
    near: int,
    routes: int,
    parts: int,
    score: str,
    gamma_needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and γ."""
    if library.fits(q, k, v, gamma, Y, lse, dY):
        seen = sparse.Seen(tile=tile, near=near, chosen=chosen)
        powers = library.in_powers(lse, unit)
        return sparse.backward(q, k, v, gamma, scale, False, seen, Y, powers, dY)
    view = View(tile, near=near)
    groups = Groups(chosen, tile)  # first, as it needs room for a while
    close = TilesAdjoint(view, q, k, v, gamma, scale, Y, v[:, :1], lse * unit, dY, gamma_needed)
    far = FarAdjoint(close, groups)
    for a, b in reversed(list(view.runs(0, q.shape[1]))):
        if b % tile == 0:
            far.pull(a // tile, *(x[:, b - tile : b] for x in (close.Z, close.G, close.dk)))
        far.delta[:, a:b] = close.step(a, b, far=True)[..., 0]
    return close.dq, close.dk, close.G, close.dgamma()


def kept(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, tile: int, near: int,
    routes: int, *options: object,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Room for a log-sum-exp and the chosen tiles of every row, and for the unit."""
    chosen = q.new_empty((*q.shape[:2], routes), dtype=torch.long)
    return *row_sums(q, k, v), chosen, q.new_empty(1)


ROUTED = Operation(
    "routed",
    "float scale, SymInt tile, SymInt near, SymInt routes, SymInt parts, str score",
    forward,
    backward,
    kept,
    num_kept=3,
)
"""The resolvent of near and chosen tiles on (B, n, d)."""


def forward_on_card(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, tile: int, near: int,
    routes: int, parts: int, score: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Y (batch, heads, n, d_v), Z, log-sum-exps and the chosen tiles, by the kernels."""
    from chacal.kernels.resolvent import Call, forward

    n, routing = q.shape[2], Routing(routes, parts, score)
    keys = k[:, :, : n - n % tile].float().unflatten(2, (-1, tile)).flatten(0, 1)
    summary = routing.summary(keys)
    # as many times as there are query heads to a key head
    summary = summary.repeat_interleave(q.shape[1] // k.shape[1], 0)
    chosen = routing.choose(q.flatten(0, 1), summary, View(tile, near=near))
    chosen = chosen.unflatten(0, q.shape[:2]).to(torch.int32)
    call = Call(scale, block=tile, near=near)
    return *forward(q, k, v, gamma, call, chosen=chosen), chosen


def backward_on_card(
    dY: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, Y: Tensor, Z: Tensor, lse: Tensor,
    chosen: Tensor, scale: float, tile: int, near: int, routes: int, parts: int, score: str,
    gamma_needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and γ, by the kernels."""
    from chacal.kernels.resolvent import Call, backward

    call = Call(scale, block=tile, near=near)
    dq, dk, dv, dgamma = backward(dY, q, k, v, gamma, Y, Z, lse, call, chosen=chosen)
    return dq, dk, dv, dgamma if gamma_needed else no_dgamma(gamma)


def kept_on_card(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, tile: int, near: int,
    routes: int, *options: object,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Room for Z, and for a log-sum-exp and the chosen tiles of every row."""
    return (
        q.new_empty(*q.shape[:-1], v.shape[-1]),
        q.new_empty(q.shape[:-1], dtype=torch.float32),
        q.new_empty((*q.shape[:-1], routes), dtype=torch.int32),
    )


TRITON_ROUTED = Operation(
    "triton_routed",
    "float scale, SymInt tile, SymInt near, SymInt routes, SymInt parts, str score",
    forward_on_card,
    backward_on_card,
    kept_on_card,
    num_kept=3,
)
"""The same by Triton kernels, on q (batch, heads, n, d), k and v with as many heads or a divisor of
that, and γ that broadcasts over both."""
