"""What the pattern resolvent remembers: keys and Z of the rows that its offsets still reach."""

from __future__ import annotations

import torch
from torch import Tensor

from chacal.decoding.buffers import Buffer, BufferedState
from chacal.decoding.states import ROLLBACK
from chacal.ops.pattern import TILE, Offsets, Pattern, offsets_below


class PatternState(BufferedState):
    """Keys and Z of every row that a later one may see: all for a named pattern.

    A tuple of offsets needs the last max(offsets) rows, and `rollback` more to be cropped.
    """

    names = ("k", "Z")
    k: Buffer
    Z: Buffer

    def __init__(self, offsets: Offsets, rollback: int = ROLLBACK) -> None:
        super().__init__()
        self.offsets, self.rollback = offsets, rollback

    def extend(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """Outputs (B, c, d_v) of c new tokens."""
        count = q.shape[1]
        keys, Z = self.k.append(k), self.Z.append(v)
        if count == 1:
            H = self._one(q, keys, v, Z, gamma, scale)
        else:
            pattern = Pattern(self.offsets, count, keys.shape[1] - count)
            H = pattern.solve(pattern.weights(q, keys, scale), v, Z, gamma)
        self.length += count
        keep = self._first_key(max(0, self.length - self.rollback))
        # many tokens at a time, not a copy of all that is kept for every token
        if keep - self.origin >= max(TILE, (self.length - keep) // 4):
            self.k.drop_front(keep - self.origin)
            self.Z.drop_front(keep - self.origin)
            self.origin = keep
        return (1 - gamma) * H

    def _one(
        self, q: Tensor, keys: Tensor, v: Tensor, Z: Tensor, gamma: Tensor, scale: float
    ) -> Tensor:
        """H (B, 1, d_v) of one row: what it sees is little, so it is gathered."""
        last = keys.shape[1] - 1
        seen = last - torch.tensor([*offsets_below(self.offsets, last + 1), 0], device=q.device)
        P = torch.softmax(torch.bmm(q, keys[:, seen].mT).mul_(scale), -1)
        H = torch.bmm(P[:, :, :-1], Z[:, seen[:-1]])
        own = P[:, :, -1:]
        Z[:, last:] = torch.addcmul(v, H, gamma) / (1 - gamma * own)
        return H.addcmul_(own, Z[:, last:])

    def _first_key(self, length: int) -> int:
        """The first key that any row from `length` on sees."""
        return max(0, length - max(self.offsets)) if isinstance(self.offsets, tuple) else 0

    def remembers(self, length: int) -> bool:
        """Whether every key that token `length` would see is kept."""
        return not length or self._first_key(length) >= self.origin

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        if not length:
            self.clear()
            return
        self.k.crop(length - self.origin)
        self.Z.crop(length - self.origin)
        self.length = length
