"""The resolvent of sliding-window attention: linear in n, hops short, chains of any length."""

from __future__ import annotations

from torch import Tensor

from chacal.ops.cards import Kernel
from chacal.ops.inputs import Gamma, check_count, run
from chacal.ops.resolvent import check_resolvent_options
from chacal.ops.streaming import RESOLVENT
from chacal.ops.tiled import tiled
from chacal.ops.view import View


def window_resolvent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Gamma = 0.9,
    window: int = 64,
    diagonal: str = "keep",
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Y = (1-γ) A (I-γA)⁻¹ V (Eq. 1) where row t of A sees keys t-window < s <= t.

    A hop is at most `window - 1` long, but hops compose without limit: what one window cannot
    reach, several in a row do. I-γA is banded, so time is O(n · window · d).

    Args:
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        v: (..., n, d_v) values.
        gamma: γ in [0, 1): a float, or a tensor that broadcasts over the leading dimensions.
        window: how many keys, its own among them, a row sees; n or more is `resolvent_attention`.
        diagonal: "keep" is Eq. 1; "drop" is ChaCAL's own (1-γ) A (I-γA_strict)⁻¹ V.
        scale: multiplies q·k; None is 1/√d.
        mask: (batch, n) boolean, True for real tokens.
        cu_seqlens: (sequences + 1,) where packed sequences begin, and n; none sees another.

    Returns:
        (..., n, d_v) in q's dtype; zeros at padding.
    """
    check_window_options(window, diagonal)
    view = window_view(window, diagonal == "drop")

    def core(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
        if window >= q.shape[1]:
            return RESOLVENT(q, k, v, gamma, scale, view.drop)
        return tiled(q, k, v, gamma, scale, view)

    return run(
        core, q, k, v, gamma=gamma, scale=scale, mask=mask, cu_seqlens=cu_seqlens,
        kernel=Kernel(view.drop, window),
    )  # fmt: skip


def check_window_options(window: int, diagonal: str) -> None:
    """A window of at least the row itself, and a known diagonal."""
    check_count("window", window)
    check_resolvent_options(diagonal)


def window_view(window: int, drop: bool = False) -> View:
    """Tiles about as long as the window, within what forward substitution does well."""
    return View(tile=min(max(window, 32), 128), window=window, drop=drop)
