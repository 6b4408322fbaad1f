"""Sequences that stand one after another in one tensor, as trainers pack them: none sees another.

`cu_seqlens` says where each begins and where the last ends, as FlashAttention has it: sequences
of 3, 5 and 2 tokens are (0, 3, 8, 10). To compute them, sequences of similar length are laid side
by side as a padded batch, so that every operator that honours a mask can be packed. At most half
of such a batch is padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor, "Tensor | None"], Tensor]
"""(q, k, v, mask) -> Y for (sequences, ..., n, d) and a mask (sequences, n)."""


def attend_packed(attend: Attend, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Each sequence of the packed q, k, v (..., n, d) by itself; Y (..., n, d_v)."""
    parts, places = [], []
    for index, real in batches(check_cu_seqlens(cu_seqlens, q.shape[-2]), q.device):
        # (..., sequences, length, d), then sequences first
        q_some, k_some, v_some = (x[..., index, :].movedim(-3, 0) for x in (q, k, v))
        whole = bool(real.all())
        Y = attend(q_some, k_some, v_some, None if whole else real).movedim(0, -3)
        parts.append(Y.flatten(-3, -2) if whole else Y[..., real, :])
        places.append(index[real])
    return torch.cat(parts, -2)[..., torch.cat(places).argsort(), :]


def batches(ends: list[int], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """For each batch, (sequences, length) places of tokens, and which of these are real."""
    similar: dict[int, list[tuple[int, int]]] = {}
    for start, end in itertools.pairwise(ends):
        if end > start:
            similar.setdefault((end - start - 1).bit_length(), []).append((start, end - start))
    found = []
    for group in similar.values():
        first, length = torch.tensor(group, device=device).unbind(1)
        at = torch.arange(max(count for _, count in group), device=device)
        real = at < length[:, None]
        # padding stands for a sequence's first token, which is always there
        found.append((first[:, None] + torch.where(real, at, 0), real))
    return found


def check_cu_seqlens(cu_seqlens: Tensor, n: int) -> list[int]:
    """Whole numbers from 0 to n that never fall."""
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        given = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise ValueError(
            f"cu_seqlens is {given}; expected a tensor of int32 or int64, where sequences begin "
            f"and the last one ends"
        )
    ends: list[int] = cu_seqlens.tolist() if cu_seqlens.ndim == 1 else []
    rises = all(a <= b for a, b in itertools.pairwise(ends))
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != n or not rises:
        shown = ", ".join(map(str, ends[:8])) + (", ..." if len(ends) > 8 else "")
        raise ValueError(
            f"cu_seqlens has shape {tuple(cu_seqlens.shape)} and holds {shown or 'no list'}; "
            f"expected numbers that rise from 0 to n = {n}"
        )
    return ends
