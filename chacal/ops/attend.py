"""Ordinary attention of some rows over some keys, with its row statistics: the part of a
resolvent that is not recursive.

On a CPU it is PyTorch's flash kernel, which hands out the log-sum-exp that we need and skips
masks we do not. Elsewhere, and for a value width other than the keys', it is plain PyTorch on
pieces small enough never to hold rows x keys at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PIECE = 1 << 18
"""Scores held at once by the plain path: 1 MiB in float32, what a core's own cache can take."""

PIECE_ROWS = 256
"""Rows of a piece, where there are so many: enough for a matrix product to run at full speed."""


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale) v with no mask, and the log-sum-exp of every row.

    Args:
        q: (B, r, d) queries.
        k: (B, s, d) keys.
        v: (B, s, d_v) values.
        scale: multiplies q·k.

    Returns:
        (B, r, d_v) outputs and (B, r) log-sum-exps.
    """
    if not q.numel() or not k.numel():  # the kernel would divide by zero, and end the process
        return v.new_zeros(*q.shape[:2], v.shape[2]), q.new_full(q.shape[:2], -torch.inf)
    if _has_kernel(q, v):
        q, k, v = map(_rows, (q, k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[None], k[None], v[None], 0.0, False, scale=scale
        )
        return out[0], lse[0]
    out, lse = v.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    for heads, rows, S, spare in score_pieces(q, k, scale):
        lse[heads, rows] = row_lse(S, spare)
        out[heads, rows] = torch.bmm(torch.softmax(S, -1, out=spare), v[heads])
    return out, lse


def attend_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the part of a softmax that falls on the keys `k`.

    The rows may see other keys too: `out` and `lse` are those of whole rows, so that
    P = exp(S - lse) and dS = P ∘ (dout vᵀ - dout·out + shift).

    Args:
        dout: (B, r, d_v) gradient of the rows' outputs.
        q: (B, r, d) queries.
        k: (B, s, d) keys.
        v: (B, s, d_v) values.
        out: (B, r, d_v) whole outputs of the rows.
        lse: (B, r) whole log-sum-exps of the rows.
        scale: multiplies q·k.
        shift: (B, r, 1) added to every row of dP, for callers whose rows have more to their
            gradient than dout·out; the kernel has no place for it.

    Returns:
        dq (B, r, d), dk (B, s, d), dv (B, s, d_v).
    """
    if not q.numel() or not k.numel():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if shift is None and _has_kernel(q, v):
        dout, q, k, v, out = map(_rows, (dout, q, k, v, out))
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout[None], q[None], k[None], v[None], out[None], lse[None], 0.0, False, scale=scale
        )
        return dq[0], dk[0], dv[0]
    delta = (dout * out).sum(-1, keepdim=True)
    if shift is not None:
        delta -= shift
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for heads, rows, S, spare in score_pieces(q, k, scale):
        P = torch.exp(S.sub_(lse[heads, rows].unsqueeze(-1)), out=spare)
        dout_piece = dout[heads, rows]
        dv[heads].baddbmm_(P.mT, dout_piece)
        dS = torch.bmm(dout_piece, v[heads].mT, out=S).sub_(delta[heads, rows]).mul_(P)
        dq[heads, rows] = torch.bmm(dS, k[heads]).mul_(scale)
        dk[heads].baddbmm_(dS.mT, q[heads, rows], alpha=scale)
    return dq, dk, dv


def softmax_lse(S: Tensor) -> tuple[Tensor, Tensor]:
    """Row softmax of S and the rows' log-sum-exp; PyTorch's fused softmax, no second exp."""
    P = torch.softmax(S, -1)
    return P, softmax_rows_lse(S, P)


def softmax_rows_lse(S: Tensor, P: Tensor) -> Tensor:
    """The rows' log-sum-exp from scores and their softmax, for those who do not always need it."""
    # the largest entry is at least 1/row length, so its logarithm is exact enough
    return S.amax(-1) - P.amax(-1).log_()


def score_pieces(
    q: Tensor, k: Tensor, scale: float, room: tuple[Tensor, Tensor] | None = None
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Scores q kᵀ · scale, no mask, a cache-sized piece at a time.

    Yields (heads, rows, S, spare): places along B and along q's rows, the scores of those rows,
    and room for as many numbers. Both are buffers that the next piece overwrites. `room`, from
    `score_room`, is where they are, for callers that ask often: new memory costs more than what
    is done with it.
    """
    B, r, _ = q.shape
    s = k.shape[1]
    if not B or not r or not s:
        return
    q = q * scale
    # pieces of about equal size: a small last one would cost as much as a whole one
    row_step = even(r, max(1, min(PIECE_ROWS, PIECE // s)))
    head_step = even(B, max(1, PIECE // (row_step * s)))
    needed = head_step * row_step * s
    if room is None or room[0].numel() < needed:
        room = q.new_empty(needed), q.new_empty(needed)
    scores, spares = room
    for h in range(0, B, head_step):
        heads = slice(h, min(h + head_step, B))
        k_mT = k[heads].mT
        for a in range(0, r, row_step):
            rows = slice(a, min(a + row_step, r))
            shape = (heads.stop - h, rows.stop - a, s)
            size = shape[0] * shape[1] * s
            S = torch.bmm(q[heads, rows], k_mT, out=scores[:size].view(shape))
            yield heads, rows, S, spares[:size].view(shape)


def score_room(q: Tensor, scores: int) -> tuple[Tensor, Tensor]:
    """Two buffers for `score_pieces` of at most so many scores a call."""
    size = min(PIECE, scores)
    return q.new_empty(size), q.new_empty(size)


def even(total: int, most: int) -> int:
    """The size of equal parts of `total`, as few as `most` allows."""
    return -(-total // -(-total // most))


def row_lse(S: Tensor, spare: Tensor) -> Tensor:
    """(..., r) log-sum-exp of rows, by one fused pass: log_softmax is x minus it."""
    return S[..., 0] - torch.log_softmax(S, -1, out=spare)[..., 0]


def _has_kernel(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _rows(x: Tensor) -> Tensor:
    """x, or a copy, with the numbers of a row side by side: the kernel takes them so, unasked."""
    return x if x.stride(-1) == 1 else x.contiguous()
