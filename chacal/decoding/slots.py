"""What each operator remembers, in tensors that are allocated once: for compilers and graphs.

The states of `states.py` grow, and branch on how long they are. A compiled step may do neither. So
here every buffer has all its slots from the start, (batch, heads, slots, width), and where a token
stands is a tensor, t (batch,), which no host reads. What a token does not see it weighs with 0.
Keys of grouped-query heads are kept once, (batch, key heads, slots, d); Z is each head's own.

Everything that a step writes has its place by t alone. So a token that does not count (padding) may
be written too: t does not move, and the next one is written over it. For the same reason a block's
mean or summary is written anew with every token of it; only that of a whole block is ever read.

A step is for one token. Several go by way of the state that grows: `restore` makes it of a
sequence's slots, and `store` puts it back.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from chacal.decoding.buffers import Buffer
from chacal.decoding.states import State
from chacal.ops import cards
from chacal.ops.inputs import over_heads


class FixedState:
    """Named buffers, and the steps that are the same for all."""

    names: tuple[str, ...]
    drop = False

    def __init__(self, like: Any, capacity: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Room for `capacity` tokens; only shapes, dtype and device of q, k and v count.

        A kernel reads half precision as it is; without one, all is kept as it is computed.

        Args:
            like: the state that grows.
            capacity: tokens that a sequence has at most.
            q: (batch, heads, c, d).
            k: (batch, key heads, c, d).
            v: (batch, key heads, c, d_v).
        """
        self.like, self.capacity = like, capacity
        self.batch, self.heads, self.key_heads = q.shape[0], q.shape[1], k.shape[1]
        self.d, self.d_v, self.device = k.shape[-1], v.shape[-1], q.device
        self.kernel = like.kernel if cards.fits(q, v) else None
        compute = torch.promote_types(q.dtype, torch.float32)
        self.dtype = compute if self.kernel is None else q.dtype
        self._make()

    def _make(self) -> None:
        """Allocate."""
        raise NotImplementedError

    def _room(self, heads: int, slots: int, width: int) -> Tensor:
        shape = (self.batch, heads, slots, width)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def tensors(self) -> list[Tensor]:
        """All that is kept."""
        return [getattr(self, name) for name in self.names]

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, t: Tensor
    ) -> Tensor:
        """Y (batch, heads, 1, d_v) of the tokens at places t (batch,)."""
        raise NotImplementedError

    def store(self, rows: slice, state: Any) -> None:
        """Sequences `rows`, from a state that holds their heads one after another."""
        raise NotImplementedError

    def restore(self, rows: slice, length: int) -> State:
        """A state that grows, of sequences `rows`, all of this length."""
        state = _empty(self.like, self.heads // self.key_heads)
        state.length = length
        if length:
            self._restore(rows, state)
        return state

    def _restore(self, rows: slice, state: Any) -> None:
        raise NotImplementedError

    def _solve(
        self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float, S: Tensor, Z: Tensor
    ) -> tuple[Tensor, Tensor]:
        """H and Z_t of one row: u = Σ_{s<t} A_ts Z_s, Z_t = (V_t + γu) / (1 - γA_tt).

        `S` (batch, heads, 1, seen) are its scores against what it sees besides itself.
        """
        A = torch.softmax(torch.cat([S, scores(q, k, scale)], -1), -1)
        u, A_tt = A[..., :-1] @ Z, A[..., -1:]
        Z_t = over_heads(v, self.heads) + gamma * u
        if not self.drop:
            Z_t = Z_t / (1 - gamma * A_tt)
        return u + A_tt * Z_t, Z_t


def _empty(state: Any, groups: int) -> Any:
    """A state of the same kind, without tokens and with nothing to crop to."""
    new = copy.copy(state)
    new.share_keys(groups)
    if hasattr(new, "rollback"):
        new.rollback = 0
    return new


def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """(batch, heads, 1, s) of q (batch, heads, 1, d) and k (batch, key heads, s, d)."""
    batch, heads, _, d = q.shape
    # heads with the same keys meet them together, and nothing is copied
    S = (q * scale).view(batch, k.shape[1], -1, d) @ k.mT
    return S.view(batch, heads, 1, k.shape[2])


def hide(S: Tensor, hidden: Tensor) -> Tensor:
    """Scores (batch, heads, 1, s) without those that are `hidden` (batch, s)."""
    return S.masked_fill(hidden[:, None, None], -math.inf)


def put(buffer: Tensor, slot: Tensor, x: Tensor) -> None:
    """x (batch, heads, 1, d) at slot (batch,) of (batch, heads, slots, d)."""
    buffer.scatter_(2, slot.view(-1, 1, 1, 1).expand(x.shape), x.to(buffer.dtype))


def take(buffer: Tensor, slots: Tensor) -> Tensor:
    """(batch, heads, s, d) at slots (batch, s), or (batch, heads, s) of each head's own."""
    if slots.ndim == 2:
        slots = slots[:, None]
    shape = (*buffer.shape[:2], slots.shape[-1], buffer.shape[3])
    return buffer.gather(2, slots[..., None].expand(shape))


def like_heads(buffer: Buffer, mine: Tensor) -> Tensor:
    """What a buffer keeps, as (sequences, heads, n, d) in the dtype of `mine`."""
    return buffer.kept().unflatten(0, (-1, mine.shape[1])).to(mine.dtype)


def fill(mine: Tensor, rows: slice, buffer: Buffer) -> None:
    """The first slots of sequences `rows`."""
    mine[rows, :, : buffer.length] = like_heads(buffer, mine)


def grown(x: Tensor, groups: int = 1) -> Buffer:
    """A buffer that holds (sequences, heads, n, d) and may grow."""
    compute = torch.promote_types(x.dtype, torch.float32)
    return Buffer(x.flatten(0, 1).to(compute), groups)
