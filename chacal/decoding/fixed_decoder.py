"""A decoder whose memory is allocated once: the twin of `decoder.py` for compiled generation.

It gives the outputs of `Decoder`. One token at a time is what it is for: nothing is read back from
the device, no shape changes, and a compiler makes one graph of it for all tokens. A run of several
tokens, a prompt, goes through the state that grows and is stored then.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chacal.decoding.decoder import Decoder, extend_state
from chacal.decoding.fixed import FIXED
from chacal.decoding.slots import FixedState
from chacal.ops.delta import Beta, with_beta
from chacal.ops.guard import no_autocast
from chacal.ops.inputs import Gamma, check_count, check_gamma, check_scale, over_heads


class FixedDecoder:
    """`extend` sequences up to `capacity` tokens; padding takes no room.

    Attributes:
        lengths: (batch,) real tokens of each sequence so far, on the device; None before the first.
    """

    def __init__(self, decoder: Decoder, capacity: int) -> None:
        """Room for `capacity` tokens of what `decoder` decodes."""
        check_count("capacity", capacity)
        self.capacity = capacity
        self._like = decoder.new_state()
        self._gamma, self._beta = decoder.gamma, decoder.beta
        self.state: FixedState | None = None
        self.lengths: Tensor | None = None

    def allocate(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """All memory, for tokens as these; they are not read."""
        kind = FIXED[type(self._like)]
        self.state = kind(self._like, self.capacity, q, k, v)
        self.lengths = torch.zeros(q.shape[0], dtype=torch.long, device=q.device)

    def tensors(self) -> list[Tensor]:
        """All that is kept; their addresses never change."""
        if self.state is None or self.lengths is None:
            return []
        return [*self.state.tensors(), self.lengths]

    @property
    def nbytes(self) -> int:
        """Bytes kept, from the first token on."""
        return sum(x.numel() * x.element_size() for x in self.tensors())

    def reset(self) -> None:
        """Back to no tokens; the memory stays."""
        for x in self.tensors():
            x.zero_()

    def reorder(self, index: Tensor) -> None:
        """Sequence i becomes what sequence index[i] was, as beam search needs it."""
        for x in self.tensors():
            x.copy_(x.index_select(0, index.to(x.device)))

    def extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        scale: float | None = None,
        gamma: Gamma | None = None,
        beta: Beta | None = None,
    ) -> Tensor:
        """Outputs of new tokens, given all before them.

        Nobody checks that they fit: a token beyond `capacity` is the caller's to refuse.

        Args:
            q: (batch, heads, c, d) queries of the c new tokens.
            k: (batch, key heads, c, d) keys; heads of a group share theirs.
            v: (batch, key heads, c, d_v) values.
            mask: (batch, c) boolean, True for real tokens.
            scale: multiplies q·k; None is 1/√d.
            gamma: γ, if not the operator's own.
            beta: β, a number or (batch, heads, c), if not the operator's own.

        Returns:
            (batch, heads, c, d_v) in q's dtype; zeros at padding.
        """
        if self.state is None:
            self.allocate(q, k, v)
        scale = check_scale(scale, q.shape[-1])
        own = 0.0 if self._gamma is None else self._gamma
        gammas = check_gamma(own if gamma is None else gamma, q)
        gammas = gammas.to(torch.promote_types(q.dtype, torch.float32))
        gammas = gammas.expand(q.shape[:2])[..., None, None]
        if self._beta is not None:
            v = with_beta(over_heads(v, q.shape[1]), self._beta if beta is None else beta)
        with torch.no_grad(), no_autocast(q.device):
            if q.shape[2] == 1:
                return self._step(q, k, v, mask, gammas, scale)
            return self._read(q, k, v, mask, gammas, scale)

    def _step(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, gammas: Tensor, scale: float
    ) -> Tensor:
        assert self.state is not None
        assert self.lengths is not None
        dtype = q.dtype
        q, k, v = (x.to(self.state.dtype) for x in (q, k, v))
        if mask is not None:
            real = mask[:, :, None, None]
            # what stands at padding may be anything, NaN too
            q, k, v = (torch.where(real, x, 0) for x in (q, k, v))
        Y = self.state.step(q, k, v, gammas, scale, self.lengths)
        if mask is None:
            self.lengths.add_(1)
        else:
            self.lengths.add_(mask[:, 0])
            Y = torch.where(real, Y, 0)
        return Y.to(dtype)

    def _read(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, gammas: Tensor, scale: float
    ) -> Tensor:
        """Several tokens, sequences of equal length together."""
        assert self.state is not None
        assert self.lengths is not None
        compute, heads = torch.promote_types(q.dtype, torch.float32), q.shape[1]
        dtype = q.dtype
        q, k, v = (over_heads(x, heads).to(compute) for x in (q, k, v))
        Y = v.new_zeros(*v.shape[:-1], self.state.d_v)
        lengths = self.lengths.tolist()
        together = (mask is None or bool(mask.all())) and len(set(lengths)) == 1
        each = [slice(0, len(lengths))] if together else [slice(i, i + 1) for i in range(len(q))]
        for rows in each:
            at = slice(None) if mask is None else mask[rows.start].nonzero()[:, 0]
            q_i, k_i, v_i = (x[rows][:, :, at].flatten(0, 1) for x in (q, k, v))
            if not q_i.shape[1]:
                continue
            state = self.state.restore(rows, lengths[rows.start])
            part = extend_state(state, q_i, k_i, v_i, gammas[rows].flatten(0, 1), scale)
            self.state.store(rows, state)
            self.lengths[rows] = state.length
            Y[rows, :, at] = part.unflatten(0, (-1, heads))
        return Y.to(dtype)
