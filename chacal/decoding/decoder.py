"""One token at a time: the states that stand where a KV cache would.

A resolvent's row passes on Z, its own value and every hop into it, and Z depends on nothing that
comes later. So the cache of exact ChaCAL is an ordinary KV cache that holds Z where V would be;
a cache of raw V would give wrong outputs without a word. The other operators keep less:

| operator | keys kept | values kept |
|---|---|---|
| dense, chacal | all | V, Z of all |
| delta | all | u of all |
| local, window | a window | V, Z of a window |
| routed | all, and a summary of each tile | Z of all |
| pooled | the near blocks, a mean per earlier block | the same, of Z |
| pattern | all; with a tuple of offsets, the longest of them | the same, of Z |
| block | all (a row's softmax needs them) | Z of the current block, one reduced Z per block |

What a state has forgotten it cannot crop back to: those that forget keep `rollback` more tokens
than they need, and say so when asked for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chacal.decoding.states import State
from chacal.ops.delta import Beta, with_beta
from chacal.ops.guard import finite, no_autocast
from chacal.ops.inputs import (
    Gamma,
    check_count,
    check_gamma,
    check_mask,
    check_qkv,
    check_scale,
    may_read,
    over_heads,
)


class Decoder:
    """`extend` a sequence by any number of tokens; the outputs are those of the parallel form.

    Padding (`mask`) is skipped, whichever side it is on. Sequences of a batch whose real tokens
    differ in number are then kept apart and extended one by one.
    """

    def __init__(
        self,
        new_state: Callable[[], State],
        gamma: Gamma | None = None,
        beta: float | None = None,
    ) -> None:
        """A decoder of empty sequences; `new_state` makes the operator's state.

        `gamma` is None for ordinary attention, which has none, and `beta` for all but delta.
        """
        self._make_state = new_state
        self._gamma, self._beta = gamma, beta
        self._groups = 1
        self._states: list[State] = [new_state()]  # one for all, or, kept apart, one a sequence
        self._leading: torch.Size | None = None
        self._kind: tuple[Any, ...] = ()  # dtype, device and widths of the tokens so far
        self._own: Tensor | None = None  # γ as the states take it, as long as it is the operator's
        self._real: Tensor | None = None  # (batch, length): which were no padding; None is all
        self.length = 0

    def share_keys(self, groups: int) -> None:
        """Every `groups` heads will come with the same keys, and they are kept once.

        As in grouped-query attention. Z is kept for every head: their A is not the same.
        """
        check_count("groups", groups)
        if self.length:
            raise ValueError(f"keys of {self.length} tokens are kept; expected an empty decoder")
        self._groups = groups
        self._states = [self.new_state()]

    @property
    def gamma(self) -> Gamma | None:
        """The operator's γ; None for ordinary attention."""
        return self._gamma

    @property
    def beta(self) -> Beta | None:
        """DeltaFormer's β; None for all others."""
        return self._beta

    def new_state(self) -> State:
        """An empty one, as this decoder's sequences began."""
        state = self._make_state()
        if self._groups > 1:
            state.share_keys(self._groups)
        return state

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return sum(x.numel() * x.element_size() for s in self._states for x in s.tensors())

    @property
    def real(self) -> Tensor | None:
        """(batch, length) which tokens were no padding; None while none was."""
        return self._real

    @property
    def _device(self) -> Any:
        return self._kind[1]

    @torch.no_grad()
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

        Args:
            q: (..., c, d) queries of the c new tokens.
            k: (..., c, d) keys; of (batch, heads, c, d), heads may be a divisor of q's, as in
                grouped-query attention, and are kept as they are.
            v: (..., c, d_v) values, with as many heads as k; Z is kept for each of q's.
            mask: (batch, c) boolean, True for real tokens.
            scale: multiplies q·k; None is 1/√d.
            gamma: γ, if not the operator's own.
            beta: β, a number or (..., c), if not the operator's own.

        Returns:
            (..., c, d_v) in q's dtype; zeros at padding.
        """
        # of (batch, c, d), the last leading dimension is no head
        check_qkv(q, k, v, grouped=q.ndim > 3)
        if k.shape != q.shape:
            if (groups := q.shape[-3] // k.shape[-3]) != self._groups:
                self.share_keys(groups)
            k, v = (over_heads(x, q.shape[-3]) for x in (k, v))
        kind = (q.dtype, q.device, q.shape[-1], v.shape[-1])
        if self._leading is not None and (q.shape[:-2], kind) != (self._leading, self._kind):
            raise ValueError(
                f"q is {tuple(q.shape)} of {q.dtype} and v {tuple(v.shape)}; expected the leading "
                f"shape, widths, dtype and device of the tokens before: {tuple(self._leading)}, "
                f"{self._kind[2]} and {self._kind[3]}, {self._kind[0]}, {self._kind[1]}"
            )
        scale = check_scale(scale, q.shape[-1])
        if gamma is not None and self._gamma is None:
            raise ValueError(f"gamma is {gamma!r}; expected none: ordinary attention has no γ")
        if beta is not None and self._beta is None:
            raise ValueError(f"beta is {beta!r}; expected none: only delta has a β")
        gammas = self._gammas(gamma, q)
        if mask is not None:
            check_mask(mask, q)
        if self._beta is not None:
            v = with_beta(v, self._beta if beta is None else beta)
        self._leading, self._kind = q.shape[:-2], kind
        with no_autocast(q.device):
            return self._extend(q, k, v, mask, gammas, scale)

    def _gammas(self, gamma: Gamma | None, q: Tensor) -> Tensor:
        """γ as (1, 1) or (batch, rows of a sequence); the operator's own is made only once."""
        if gamma is None and self._own is not None:
            return self._own
        own = 0.0 if self._gamma is None else self._gamma
        gammas = check_gamma(own if gamma is None else gamma, q)
        gammas = gammas.to(torch.promote_types(q.dtype, torch.float32))
        if gammas.numel() == 1:
            gammas = gammas.reshape(1, 1)
            self._own = gammas if gamma is None else self._own
            return gammas
        return gammas.expand(q.shape[:-2]).reshape(_batch(q), _heads(q))

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, gammas: Tensor, scale: float
    ) -> Tensor:
        leading, count, batch, heads = q.shape[:-2], q.shape[-2], _batch(q), _heads(q)
        dtype, compute = q.dtype, torch.promote_types(q.dtype, torch.float32)
        if mask is not None and self._real is None and not bool(mask.all()):
            self._keep_apart(batch)
        if self._real is None:
            self.length += count
            q, k, v = (x.to(compute).reshape(-1, *x.shape[-2:]) for x in (q, k, v))
            Y = extend_state(self._states[0], q, k, v, gammas.reshape(-1, 1, 1), scale)
            return Y.reshape(*leading, *Y.shape[-2:]).to(dtype)
        real = self._real_tokens(mask, batch, count)
        self.length += count
        gammas = gammas.expand(batch, -1)
        q, k, v = (x.to(compute).reshape(batch, heads, *x.shape[-2:]) for x in (q, k, v))
        Y = v.new_zeros(*v.shape[:-1], self._kind[3])
        for i, state in enumerate(self._states):
            at = real[i].nonzero()[:, 0]
            if len(at):
                q_i, k_i, v_i = (x[i][:, at] for x in (q, k, v))
                Y[i, :, at] = extend_state(state, q_i, k_i, v_i, gammas[i].reshape(-1, 1, 1), scale)
        return Y.reshape(*leading, *Y.shape[-2:]).to(dtype)

    def _real_tokens(self, mask: Tensor | None, batch: int, count: int) -> Tensor:
        """(batch, count) which of the new tokens are real; also kept for cropping."""
        assert self._real is not None
        real = self._real.new_ones(batch, count) if mask is None else mask.reshape(batch, count)
        self._real = torch.cat([self._real, real], 1)
        return real

    def reorder(self, index: Tensor | Sequence[int]) -> None:
        """Sequence i becomes what sequence index[i] was, as beam search needs it.

        Args:
            index: (batch',) which sequences of the batch to keep, repeats allowed.
        """
        if not self._leading:
            raise ValueError(
                "no batch to reorder; expected a decoder extended by (batch, ..., n, d)"
            )
        batch = self._leading[0]
        index = torch.as_tensor(index, device=self._device)
        if (
            index.is_floating_point()
            or index.ndim != 1
            or bool(((index < 0) | (index >= batch)).any())
        ):
            raise ValueError(
                f"index is {index.tolist()}; expected a list of sequences from 0 to {batch - 1}"
            )
        heads = self._leading[1:].numel()
        each = torch.arange(heads, device=index.device)
        if self._real is not None:
            self._states = [self._states[i].select(each) for i in index.tolist()]
            self._real = self._real[index]
        else:
            self._states = [self._states[0].select((index[:, None] * heads + each).flatten())]
        self._leading = torch.Size([len(index), *self._leading[1:]])

    def crop(self, length: int) -> None:
        """Forget all tokens from position `length` on (padding counts as a position)."""
        check_count("length", length, least=0)
        if length > self.length:
            raise ValueError(f"length is {length}; expected at most the current {self.length}")
        real = None if self._real is None else self._real[:, :length]
        counts = [length] if real is None else real.sum(-1).tolist()
        pairs = list(zip(self._states, counts, strict=True))
        if not all(state.remembers(count) for state, count in pairs):
            raise ValueError(
                f"length is {length} of {self.length}: this operator forgets, and no longer "
                f"holds what it needs there; expected a higher length, or a decoder made with a "
                f"higher rollback"
            )
        for state, count in pairs:
            state.crop(count)
        self._real = real
        self.length = length

    def _keep_apart(self, batch: int) -> None:
        """From one state for the whole batch to one per sequence."""
        together = self._states[0]
        self._real = torch.ones(batch, self.length, dtype=torch.bool, device=self._device)
        if together.length:
            assert self._leading is not None
            rows = torch.arange(self._leading.numel(), device=self._device)
            self._states = [together.select(at) for at in rows.chunk(batch)] if batch else []
        else:
            self._states = [self.new_state() for _ in range(batch)]


def extend_state(
    state: State, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float
) -> Tensor:
    """Outputs (B, c, d_v) of c new tokens, none of which depends on a later one (ops/guard.py).

    If they are not finite, each half of the tokens is tried by itself: a single token has none
    after it.
    """
    count = q.shape[1]
    if count == 1 or not may_read(q):
        return state.extend(q, k, v, gamma, scale)
    then = state.now()
    Y = state.extend(q, k, v, gamma, scale)
    if finite(Y):
        return Y
    state.back_to(then)
    halves = (slice(0, count // 2), slice(count // 2, count))
    return torch.cat(
        [extend_state(state, q[:, at], k[:, at], v[:, at], gamma, scale) for at in halves], 1
    )


def _batch(q: Tensor) -> int:
    return q.shape[0] if q.ndim > 2 else 1


def _heads(q: Tensor) -> int:
    """Rows of B that one sequence has."""
    return q.shape[1:-2].numel()
