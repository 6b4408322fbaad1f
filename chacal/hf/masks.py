"""What an operator has to know of a mask: which tokens are real, and where sequences begin.

The mask is made once for all layers, for the implementation that the ordinary ones use. A causal
mask lets its last row see every real key, so which tokens are real is read off that. A mask of
packed sequences lets every row see from the first token of its own sequence on. A mask that says
anything else is refused. Packed input without a mask says where sequences begin by
`cu_seq_lens_q`, or by positions that start again.

In a compiled graph nothing is read: a mask is taken as one of padding, and what it says is checked
by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PACKED = (
    "packed sequences were given together with a cache, in which one sequence a row goes on; "
    "expected use_cache=False"
)


@dataclass(frozen=True)
class Seen:
    """What a call is of.

    Attributes:
        real: (batch, n) boolean, which tokens are no padding; None is all.
        cu_seqlens: (sequences + 1,) where packed sequences begin in batch · n tokens; None for
            one sequence a row.
    """

    real: Tensor | None = None
    cu_seqlens: Tensor | None = None


def read_mask(mask: Any, batch: int, past: int, count: int, kwargs: dict[str, Any]) -> Seen:
    """A call's padding and packing.

    Args:
        mask: None; (batch, n) as for flash attention; (batch or 1, heads or 1, c, n), boolean as
            for SDPA or added to scores as in eager attention, for c queries that end n keys.
        batch: sequences, or rows of packed ones.
        past: keys before the first query.
        count: c.
        kwargs: of the attention function, among which are those of packed input.
    """
    n = past + count
    if mask is not None and (
        not isinstance(mask, Tensor) or mask.ndim not in (2, 4) or mask.shape[-1] != n
    ):
        given = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask is {given}; expected {n} keys in (batch, n) or 4-D form")
    if torch.compiler.is_compiling():
        return Seen(real=_real(mask, batch, n))
    if kwargs.get("cu_seq_lens_q") is not None:
        return _packed(kwargs["cu_seq_lens_q"], mask, batch, past, count)
    real = unless_all(_real(mask, batch, n))
    if mask is None or mask.ndim == 2:
        begins = None if real is not None else _restarts(kwargs.get("position_ids"), batch, count)
        if begins is None:
            return Seen(real=real)
        return _packed(_ends(begins), None, batch, past, count)
    visible = _visible(mask)
    causal = torch.ones(count, n, dtype=torch.bool, device=mask.device).tril(past)
    if bool((visible == (causal if real is None else real[:, None, None] & causal)).all()):
        return Seen(real=real)
    # every row from the first key that it sees on: where that is the row itself, one begins
    first = visible[:, 0].int().argmax(-1)  # (batch or 1, c)
    begins = (first == torch.arange(past, n, device=mask.device)).expand(batch, count)
    if past == 0 and bool((visible == _within(begins)[:, None]).all()):
        return Seen(cu_seqlens=_ends(begins))
    raise ValueError(
        "attention_mask is neither causal with padding nor that of packed sequences (a sliding "
        "window, or a mask of your own?); expected a 2-D mask, 1 for real tokens, as tokenizers "
        "give"
    )


def new_tokens(mask: Tensor | None, batch: int, at: Tensor) -> Tensor | None:
    """(batch, c) which tokens at places `at` (c,) are real, with nothing read; None is all."""
    if mask is None:
        return None
    real = mask.bool() if mask.ndim == 2 else _visible(mask)[:, 0, -1]
    return real.index_select(1, at).expand(batch, -1)


def check_past(said: Tensor | None, known: Tensor | None, past: int) -> None:
    """Refuse a mask that hides other past tokens: other layers would follow it; a state cannot.

    Both are (batch, n) with n at least `past`; None is all real.
    """
    said, known = (unless_all(None if x is None else x[:, :past]) for x in (said, known))
    if (said is None) != (known is None) or (
        said is not None and known is not None and not torch.equal(said, known)
    ):
        raise ValueError(
            f"attention_mask says otherwise which of the {past} tokens in the cache are "
            f"padding than it did when they were read; expected the mask of before, longer by "
            f"the new tokens"
        )


def unless_all(real: Tensor | None) -> Tensor | None:
    """None where every token is real, as for a mask that is not there."""
    return None if real is None or bool(real.all()) else real


def _real(mask: Tensor | None, batch: int, n: int) -> Tensor | None:
    if mask is None:
        return None
    if mask.ndim == 2:
        return mask.bool().expand(batch, n)
    # a view, kept by a cache, would keep the whole mask
    return _visible(mask)[:, 0, -1].clone().expand(batch, n)


def _visible(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask == 0


def _restarts(positions: Tensor | None, batch: int, count: int) -> Tensor | None:
    """(batch, c) where positions start again within a row; None where they do not."""
    if positions is None or positions.ndim != 2 or not bool((positions.diff() <= 0).any()):
        return None
    begins = torch.ones(len(positions), count, dtype=torch.bool, device=positions.device)
    begins[:, 1:] = positions.diff() != 1
    return begins.expand(batch, count)


def _packed(packed: Tensor, mask: Tensor | None, batch: int, past: int, count: int) -> Seen:
    """Sequences as they are said to be, if no mask says otherwise and nothing was read before."""
    if past:
        raise ValueError(
            f"packed sequences were given after {past} tokens in a cache; expected packed input "
            f"without a past"
        )
    if mask is not None:
        begins = torch.zeros(batch * count, dtype=torch.bool, device=mask.device)
        begins[packed[:-1][packed[:-1] < batch * count].long()] = True
        begins = begins.view(batch, count)
        begins[:, 0] = True
        same = mask.bool() if mask.ndim == 2 else _visible(mask) == _within(begins)[:, None]
        if not bool(same.all()):
            raise ValueError(
                "attention_mask and where packed sequences begin (cu_seq_lens_q or position_ids) "
                "do not go together; expected packed input without a mask and without padding"
            )
    return Seen(cu_seqlens=packed)


def _within(begins: Tensor) -> Tensor:
    """(batch, c) where sequences begin -> (batch, c, c) what a row sees: the past of its own."""
    which = begins.cumsum(-1)
    causal = torch.ones(begins.shape[-1], begins.shape[-1], dtype=torch.bool, device=begins.device)
    return (which[:, :, None] == which[:, None, :]) & causal.tril()


def _ends(begins: Tensor) -> Tensor:
    """(batch, c) where sequences begin -> `cu_seqlens` over all rows; each row begins one."""
    starts = begins.clone()
    starts[:, 0] = True
    places = starts.flatten().nonzero()[:, 0]
    return torch.cat([places, places.new_tensor([begins.numel()])])
