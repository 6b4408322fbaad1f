"""DeltaFormer's state: an ordinary KV cache that holds u where V would be."""

from __future__ import annotations

import torch
from torch import Tensor

from chacal.decoding.buffers import Buffer, BufferedState
from chacal.ops.attend import attend
from chacal.ops.delta import DeltaRows, apart
from chacal.ops.streaming import Rows


class DeltaState(BufferedState):
    """Keys and u of all tokens; the values that come have β as their last column."""

    names = ("k", "u")
    k: Buffer
    u: Buffer

    def __init__(self, read: str) -> None:
        super().__init__()
        self.read = read

    def extend(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        """Outputs (B, c, d_v) of c new tokens; `gamma` is 0."""
        past, count = self.length, q.shape[1]
        v, beta = apart(v)
        asks = q if self.read == "queries" else k
        keys, u = self.k.append(k), self.u.append(v)
        self.length += count
        if count == 1:
            held, _ = attend(asks, keys[:, :past], u[:, :past], scale)
            u[:, past:] = torch.addcmul(v, beta, held, value=-1)
            return attend(q, keys, u, scale)[0]
        for rows in (
            DeltaRows(asks, keys, v, beta, scale, u),
            Rows(q, keys, u[:, past:], gamma, scale, Z=u),
        ):
            if past:
                rows.see(0, count, 0, past)
            rows.solve(0, count)
        return rows.H

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.k.crop(length)
        self.u.crop(length)
        self.length = length
