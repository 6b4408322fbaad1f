"""One sequence over many ranks: an operator called by each with its own part of q, k and v.

Ranks hold consecutive tokens, in the order of the text, as many each as they like. Padding and
packed sequences need nothing of their own inside: real tokens are moved to the front of each
rank's part, and rows of a batch with the same number of them on every rank are computed together;
of packed sequences, those that lie within one rank are that rank's alone, and each that crosses a
border is a text of its own, shared by the ranks that it lies on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from chacal.operators import (
    Dense,
    Local,
    Operator,
    Resolvent,
    RoutedResolvent,
    WindowResolvent,
    parse_operator,
)
from chacal.ops.guard import no_autocast
from chacal.ops.inputs import (
    Gamma,
    check_gamma,
    check_mask,
    check_qkv,
    check_scale,
    front_order,
    take_rows,
)
from chacal.ops.packed import check_cu_seqlens
from chacal.ops.pooled import default_block_size
from chacal.ops.routing import Routing
from chacal.ops.view import View
from chacal.ops.window import window_view
from chacal.parallel.chunk import Method, starts
from chacal.parallel.dtensor import attend_dtensors, is_dtensor
from chacal.parallel.exact import Exact
from chacal.parallel.link import Link, Processes
from chacal.parallel.move import moved
from chacal.parallel.routed import Routed
from chacal.parallel.sharded import Sharded
from chacal.parallel.window import Window

Group = dist.ProcessGroup | DeviceMesh | Link | None


def sharded_attention(
    operator: Operator | str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Group = None,
    lengths: Sequence[int] | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    gamma: Gamma | None = None,
) -> Tensor:
    """The operator on a text whose parts lie on the ranks of a group; every rank calls it.

    Each rank then calls backward as well, in the same order if there are several outputs. A γ that
    takes a gradient is the same on all ranks, and so is every other weight: each rank's gradient is
    the share of its own rows, to be summed over ranks as DDP and FSDP do.

    Args:
        operator: exact ChaCAL, window or routed, dense or local; or its text.
        q: (..., n_r, d) queries of this rank's tokens, at least one. Or a DTensor, sharded along n
            over a mesh of one dimension, which then is the group; k and v like it.
        k: (..., n_r, d) keys.
        v: (..., n_r, d_v) values.
        group: the ranks, in the order of the text: a process group, one dimension of a
            `DeviceMesh`, or None for all ranks.
        lengths: n_r of every rank, where they are known; they are asked for otherwise.
        mask: (batch, n_r) boolean, True for real tokens of this rank.
        cu_seqlens: (sequences + 1,) where packed sequences begin in the whole text, and n, the same
            on every rank; none sees another.
        scale: multiplies q·k; None is 1/√d.
        gamma: stands in for the operator's own.

    Returns:
        (..., n_r, d_v) of this rank's tokens in q's dtype, zeros at padding; a DTensor of DTensors.
    """
    operator = parse_operator(operator) if isinstance(operator, str) else operator
    check_shardable(operator)
    if is_dtensor(q):
        return attend_dtensors(
            partial(
                sharded_attention, operator, mask=mask, cu_seqlens=cu_seqlens, scale=scale,
                gamma=gamma,
            ),
            q, k, v, group,
        )  # fmt: skip
    check_qkv(q, k, v)
    link = as_link(group)
    if gamma is not None and not operator.has_gamma:
        raise ValueError(f"gamma was given to {operator}; expected a resolvent operator")
    lengths = _check_lengths(link, q, lengths)
    if link.size == 1:
        return operator(q, k, v, mask=mask, cu_seqlens=cu_seqlens, scale=scale, gamma=gamma)
    if mask is not None and cu_seqlens is not None:
        raise ValueError(
            "mask and cu_seqlens were both given; expected one of them: packed sequences have no "
            "padding"
        )
    call = _Call(
        operator, link, check_scale(scale, q.shape[-1]),
        check_gamma(operator.own_gamma if gamma is None else gamma, q),
    )  # fmt: skip
    if cu_seqlens is not None:
        return _packed(call, q, k, v, lengths, check_cu_seqlens(cu_seqlens, sum(lengths)))
    if mask is not None:
        if q.ndim == 2:
            mask = check_mask(mask, q)[None]
            return _padded(call, q[None], k[None], v[None], mask)[0]
        return _padded(call, q, k, v, check_mask(mask, q))
    Y = call([_Part(*call.flat(q, k, v), tuple(lengths))])[0]
    return Y.reshape(v.shape).to(q.dtype)


def shardable(operator: Operator) -> bool:
    """Whether a sequence can be shared by ranks with this operator."""
    if isinstance(operator, (Dense, Resolvent)):
        return operator.top_k is None
    return isinstance(operator, (Local, WindowResolvent, RoutedResolvent))


def check_shardable(operator: Operator) -> None:
    """Refuse, by name, what has no sharded form."""
    if not shardable(operator):
        raise ValueError(
            f"{operator} cannot share a sequence among ranks; expected chacal, window or routed "
            f"(dense and local too), without top_k"
        )


def as_link(group: Group) -> Link:
    """The way to the ranks of a group."""
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"the mesh has {group.ndim} dimensions; expected the one that shares sequences, "
                f"as in mesh['context']"
            )
        return Processes(group.get_group())
    if group is None or isinstance(group, dist.ProcessGroup):
        return Processes(group)
    return group


def _check_lengths(link: Link, q: Tensor, lengths: Sequence[int] | None) -> tuple[int, ...]:
    own = q.shape[-2]
    if lengths is None:
        told = link.gather(torch.tensor([own], device=q.device))
        return tuple(int(x) for x in told)
    if len(lengths) != link.size or lengths[link.rank] != own:
        raise ValueError(
            f"lengths are {', '.join(map(str, lengths))}; expected one for each of {link.size} "
            f"ranks, and {own} for rank {link.rank}, the tokens that it has"
        )
    return tuple(lengths)


@dataclass(frozen=True)
class _Part:
    """Texts of the same length on every rank, on (B, l, d); γ is (B or 1, 1, 1)."""

    q: Tensor
    k: Tensor
    v: Tensor
    gamma: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class _Call:
    """What all parts of a call have in common."""

    operator: Operator
    link: Link
    scale: float
    gamma: Tensor

    def flat(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(B, l, d) in float32 or float64, and γ (B or 1, 1, 1)."""
        compute = torch.promote_types(q.dtype, torch.float32)
        gamma = self.gamma
        if gamma.numel() == 1:
            gamma = gamma.reshape(1, 1, 1)
        else:
            gamma = gamma.expand(q.shape[:-2]).reshape(-1, 1, 1)
        heads = q.shape[:-2].numel()
        q, k, v = (x.to(compute).reshape(heads, *x.shape[-2:]) for x in (q, k, v))
        return q, k, v, gamma.to(compute)

    def __call__(self, parts: Sequence[_Part]) -> list[Tensor]:
        """Y (B, l, d_v) of each part."""
        if not parts:
            return []
        methods, aligned, tensors = [], [], []
        for part in parts:
            method = method_of(self.operator, sum(part.lengths))
            lengths = part.lengths
            q, k, v = part.q, part.k, part.v
            if isinstance(method, Routed):
                lengths = whole_tiles(lengths, method.view.tile)
                x = moved(self.link, torch.cat([q, k, v], -1), part.lengths, lengths)
                q, k, v = x.split([q.shape[-1], k.shape[-1], v.shape[-1]], -1)
            methods.append(method)
            aligned.append(lengths)
            tensors += [q, k, v, part.gamma]
        with no_autocast(parts[0].q.device):
            made = Sharded.apply(self.link, self.scale, methods, aligned, *tensors)
        return [
            moved(self.link, Y, lengths, part.lengths)
            for Y, lengths, part in zip(made, aligned, parts, strict=True)
        ]


def method_of(operator: Operator, n: int) -> Method:
    """The operator on chunks of a text of n tokens."""
    if isinstance(operator, (Local, WindowResolvent)):
        drop = isinstance(operator, WindowResolvent) and operator.diagonal == "drop"
        if operator.window < n:
            return Window(window_view(operator.window, drop))
        return Exact(drop)
    if isinstance(operator, RoutedResolvent):
        tile = min(n, operator.block_size or default_block_size(n))
        routing = Routing(operator.routes, operator.parts, operator.score)
        return Routed(View(tile, near=operator.near), routing)
    return Exact(isinstance(operator, Resolvent) and operator.diagonal == "drop")


def whole_tiles(lengths: Sequence[int], tile: int) -> tuple[int, ...]:
    """Lengths of ranks' parts that end where tiles do, near where they ended before.

    A rank that has no rows gets none: nobody there would wait for them.
    """
    n = sum(lengths)
    near = (min(n, (end + tile // 2) // tile * tile) for end in starts(lengths))
    ends = [n if end == n else new for end, new in zip(starts(lengths), near, strict=True)]
    return tuple(b - a for a, b in itertools.pairwise(ends))


def _padded(call: _Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Rows of a batch by the number of their real tokens on every rank."""
    order, counts = front_order(mask)
    everyone = torch.stack(call.link.gather(counts), 1).tolist()  # (batch, ranks)
    same: dict[tuple[int, ...], list[int]] = {}
    for row, told in enumerate(everyone):
        same.setdefault(tuple(told), []).append(row)
    dtype, shape = q.dtype, v.shape
    q, k, v = (take_rows(x, order) for x in (q, k, v))
    gamma = call.gamma if call.gamma.numel() == 1 else call.gamma.expand(q.shape[:-2])
    parts, rows = [], []
    for lengths, some in same.items():
        if not any(lengths):
            continue
        at = torch.tensor(some, device=q.device)
        l = lengths[call.link.rank]
        own = _Call(call.operator, call.link, call.scale, gamma[at] if gamma.ndim else gamma)
        parts.append(_Part(*own.flat(*(x[at][..., :l, :] for x in (q, k, v))), lengths))
        rows.append(at)
    Y = v.new_zeros(shape)
    for at, made in zip(rows, call(parts), strict=True):
        whole = F.pad(made, (0, 0, 0, shape[-2] - made.shape[1]))
        Y = Y.index_copy(0, at, whole.reshape(len(at), *shape[1:]).to(Y.dtype))
    Y = take_rows(Y, order.argsort(-1))
    real = mask.reshape(mask.shape[0], *[1] * (Y.ndim - 3), mask.shape[1], 1)
    return torch.where(real, Y, 0).to(dtype)


def _packed(
    call: _Call, q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], ends: list[int]
) -> Tensor:
    """Sequences within this rank as they are; those across a border as texts of their own."""
    borders = starts(lengths)
    first, last = borders[call.link.rank : call.link.rank + 2]
    crossing = [
        (a, b)
        for a, b in itertools.pairwise(ends)
        if any(a < border < b for border in borders[1:-1])
    ]
    parts = []
    for a, b in crossing:
        shared = tuple(
            max(0, min(b, high) - max(a, low)) for low, high in itertools.pairwise(borders)
        )
        at = slice(max(a, first) - first, max(a, first) - first + shared[call.link.rank])
        parts.append(_Part(*call.flat(*(x[..., at, :] for x in (q, k, v))), shared))
    made = [
        (a, Y.reshape(*v.shape[:-2], *Y.shape[1:]))
        for (a, _), Y in zip(crossing, call(parts), strict=True)
        if Y.shape[1]
    ]
    # one at most comes from earlier ranks, or begins with this one and goes on; one goes on at its
    # end
    pieces = [Y for a, Y in made if a <= first]
    own = [end for end in ends if first <= end <= last]
    if own and own[-1] > own[0]:
        at = slice(own[0] - first, own[-1] - first)
        inside = call.operator(
            q[..., at, :], k[..., at, :], v[..., at, :],
            cu_seqlens=torch.tensor(own, device=q.device) - own[0], scale=call.scale,
            gamma=call.gamma if call.operator.has_gamma else None,
        )  # fmt: skip
        pieces.append(inside)
    pieces += [Y for a, Y in made if a > first]
    return torch.cat([piece.to(q.dtype) for piece in pieces], -2)
