"""One bad token stays one bad token: no row depends on a later one in any value a float can hold.

A causal operator multiplies what is to come by zero. For a NaN, an infinity, or a number so large
that a product overflows, zero times it is NaN, and rows before it are lost too. To avoid such
products everywhere would cost time in every call. Instead the result is looked at, one sum, and
only if that is not finite are rows computed again without what comes after them:

- forward: the first row t₀ that is not finite given its past alone is found by bisection. Rows
  before it are computed with all tokens from t₀ on set to zero; it and all after it are NaN.
- backward: gradients are taken again with all tokens after the last row that has a gradient set
  to zero.

When gradients are wanted, the inputs are looked at instead, a dot product of each with itself:
while none of their numbers is beyond 1e10, nothing above overflows, forward or backward, and there
is no more to do. A look takes two to four hundredths of the time of the cheapest operators, hardly
anything of exact ChaCAL's (`chacal bench ops guard local window@64 pattern chacal`). All this is
for the CPU (`inputs.may_read`): on an accelerator, unless CHACAL_CHECK=1 is in the environment, in
a compiled graph and under torch.func nothing is looked at.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Core = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""(q, k, v, gamma, scale) -> Y on (B, n, d) tensors; gamma is (B or 1, 1, 1)."""


def guarded(core: Core, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, scale: float) -> Tensor:
    """core(q, k, v, gamma, scale), rows of which depend on no later token, nor do gradients."""
    call = Call(core, scale)
    inputs = (q, k, v, gamma)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        if moderate(q, k, v, scale):
            return core(*inputs, scale)
        q, k, v, gamma = In.apply(call, *inputs)
        Y = Out.apply(call, core(q, k, v, gamma, scale))
    else:
        Y = core(*inputs, scale)
    return Y if finite(Y) else Careful.apply(call, *inputs)


def moderate(q: Tensor, k: Tensor, v: Tensor, scale: float) -> bool:
    """Whether all numbers are so small that no product of an operator or its gradient overflows.

    With |q|, |k| and |v| below 1e10, a score is below 1e26 and a gradient below 1e28 times that of
    Y and the number of tokens, 1/(1 - γ) included: a float32 holds 3e38.
    """
    return abs(scale) < 1e6 and all(squares(x) < 1e20 for x in (q, k, v))


def squares(x: Tensor) -> float:
    """The sum of squares; a NaN, which is not below anything, if there is one in x."""
    x = x.detach()
    if x.is_contiguous():
        flat = x.view(-1)
        return float(torch.dot(flat, flat).item())
    # heads of one sequence, (n, h, d) transposed, lie apart: to flatten them is to copy them,
    # which takes five times as long as to look
    norm = float(torch.linalg.vector_norm(x).item())
    return norm * norm


def finite(*tensors: Tensor | None) -> bool:
    """Whether every number is finite, as far as their sum tells: it may be too large by itself."""
    # of a number, not of a tensor: isfinite is four calls there
    return all(math.isfinite(x.sum().item()) for x in tensors if x is not None)


class Call:
    """A core and its scale, with what it is to be computed again from."""

    def __init__(self, core: Core, scale: float) -> None:
        self.core, self.scale = core, scale
        self.dY: Tensor | None = None

    def up_to(self, t: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
        """Y where the tokens from t (B,) on are zero."""
        keep = before(t, q.shape[1])
        q, k, v = (torch.where(keep, x, 0) for x in (q, k, v))
        return self.core(q, k, v, gamma, self.scale)

    def gradients(
        self, dY: Tensor, needed: tuple[bool, ...], *inputs: Tensor
    ) -> list[Tensor | None]:
        """Gradients of the inputs, from dY and the tokens up to its last row that is not zero."""
        rows = (dY != 0).any(-1)  # NaN is not 0
        n = rows.shape[1]
        last = torch.where(rows, torch.arange(1, n + 1, device=rows.device), 0).amax(1)
        leaves = [x.detach().requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]
        with torch.enable_grad():
            Y = self.up_to(last, *leaves)
        wanted = [x for x in leaves if x.requires_grad]
        found = iter(torch.autograd.grad(Y, wanted, dY, allow_unused=True))
        return [next(found) if x.requires_grad else None for x in leaves]


def no_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Where a surrounding autocast does not send our float32 products back to half precision."""
    if not torch.amp.is_autocast_available(device.type):  # the meta device has none
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def before(t: Tensor, n: int) -> Tensor:
    """(B, n, 1) whether a row comes before t (B,)."""
    return (torch.arange(n, device=t.device) < t[:, None]).unsqueeze(-1)


class In(torch.autograd.Function):
    """The inputs as they are; their gradients, taken again if they are not finite."""

    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs."""
        ctx.call = call
        ctx.save_for_backward(*inputs)
        return tuple(x.detach() for x in inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs."""
        dY, ctx.call.dY = ctx.call.dY, None
        # a second derivative has to go through the operator itself
        if torch.is_grad_enabled() or finite(*grads):
            return None, *grads
        with no_autocast(dY.device):
            return None, *ctx.call.gradients(dY, ctx.needs_input_grad[1:], *ctx.saved_tensors)


class Out(torch.autograd.Function):
    """Y as it is; its gradient is kept for `In`."""

    @staticmethod
    def forward(ctx: Any, call: Call, Y: Tensor) -> Tensor:
        """Y, in the same memory, but no view of it: views from here may not be written to."""
        ctx.call = call
        return Y.detach()

    @staticmethod
    def backward(ctx: Any, dY: Tensor) -> tuple[None, Tensor]:
        """dY."""
        ctx.call.dY = dY
        return None, dY


class Careful(torch.autograd.Function):
    """Rows from their past alone, up to the first that is not finite."""

    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: Tensor) -> Tensor:
        """Y (B, n, d_v)."""
        B, n, _ = inputs[0].shape
        # rows before `good` are finite; some row before `bad` is not, unless that is n + 1
        good = torch.zeros(B, dtype=torch.long, device=inputs[0].device)
        bad = torch.full_like(good, n + 1)
        while bool((bad - good > 1).any()):
            t = (good + bad) // 2
            Y = call.up_to(t, *inputs)
            right = (Y.isfinite().all(-1) | ~before(t, n)[..., 0]).all(1)
            good, bad = torch.where(right, t, good), torch.where(right, bad, t)
        ctx.call = call
        ctx.save_for_backward(*inputs)
        return torch.where(before(good, n), call.up_to(good, *inputs), torch.nan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dY: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs."""
        with no_autocast(dY.device):
            return None, *ctx.call.gradients(dY, ctx.needs_input_grad[1:], *ctx.saved_tensors)
