"""An operator with a backward of its own, in the two forms that PyTorch asks for.

Called, it is an `autograd.Function`, the form with the least overhead. To a compiler it is one
operator of `torch.library`, `torch.ops.chacal.<name>`, of which only shapes are known: a compiled
or exported graph holds it whole, at any length, without a break. Both forms run the same two
functions:

    forward(q, k, v, gamma, *options)  ->  (Y, *kept)
    backward(dY, q, k, v, gamma, Y, *kept, *options, gamma_needed)  ->  (dq, dk, dv, dγ)

with tensors (B, n, d) and γ (B or 1, 1, 1), or others that both functions agree on. What is kept is
for the backward alone and has no gradient; a backward without a use for Y is called without it, and
Y may be written to. dγ is an empty tensor where it is not needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from chacal.ops.guard import no_autocast

LIBRARY = torch.library.Library("chacal", "DEF")

Tensors = tuple[Tensor, ...]


class Operation:
    """One operator, to be called as operation(q, k, v, gamma, *options)."""

    def __init__(
        self,
        name: str,
        options: str,
        forward: Callable[..., Tensors],
        backward: Callable[..., Tensors],
        kept: Callable[..., Tensors],
        num_kept: int = 1,
        output_needed: bool = True,
    ) -> None:
        """Defines torch.ops.chacal.`name` and torch.ops.chacal.`name`_backward.

        Args:
            name: of the operator.
            options: what follows γ, as a schema writes it: "float scale, bool drop".
            forward: as above.
            backward: as above.
            kept: (q, k, v, gamma, *options) -> empty tensors of the shapes that are kept.
            num_kept: how many tensors are kept.
            output_needed: whether the backward is given Y.
        """
        self.forward, self.backward = forward, backward
        self.first_kept = 0 if output_needed else 1
        inputs = "Tensor q, Tensor k, Tensor v, Tensor gamma"
        keeps = ["Y"] * output_needed + [f"kept_{i}" for i in range(num_kept)]
        saved = "".join(f", Tensor {x}" for x in keeps)
        outputs = ", ".join(["Tensor"] * (1 + num_kept))
        LIBRARY.define(f"{name}({inputs}, {options}) -> ({outputs})")
        LIBRARY.define(
            f"{name}_backward(Tensor dY, {inputs}{saved}, {options}, bool gamma_needed)"
            " -> (Tensor, Tensor, Tensor, Tensor)"
        )
        LIBRARY.impl(name, forward, "CompositeExplicitAutograd")
        LIBRARY.impl(f"{name}_backward", backward, "CompositeExplicitAutograd")
        self.op = getattr(torch.ops.chacal, name).default
        self.op_backward = getattr(torch.ops.chacal, f"{name}_backward").default
        torch.library.register_fake(
            self.op,
            lambda q, k, v, *rest: (
                v.new_empty(*q.shape[:-1], v.shape[-1]),
                *kept(q, k, v, *rest),
            ),
            lib=LIBRARY,
        )
        torch.library.register_fake(self.op_backward, _fake_backward, lib=LIBRARY)
        torch.library.register_autograd(
            self.op,
            exact_backward(self._backward_in_a_graph),
            setup_context=self._setup_context,
            lib=LIBRARY,
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, *options: Any) -> Tensor:
        """Y (B, n, d_v)."""
        if torch.compiler.is_compiling():
            return self.op(q, k, v, gamma, *options)[0]
        return Called.apply(self, q, k, v, gamma, *options)

    def _setup_context(self, ctx: Any, inputs: Sequence[Any], output: Tensors) -> None:
        ctx.save_for_backward(*inputs[:4], *output[self.first_kept :])
        ctx.mark_non_differentiable(*output[1:])
        ctx.options = inputs[4:]

    def _backward_in_a_graph(self, ctx: Any, dY: Tensor, *kept: Any) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[3]
        dq, dk, dv, dgamma = self.op_backward(dY, *ctx.saved_tensors, *ctx.options, needed)
        return dq, dk, dv, dgamma if needed else None, *[None] * len(ctx.options)


def exact_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A Function's backward that autocast does not reach, and that has no derivative itself.

    Asked for one (`create_graph=True`) it raises: a gradient without a graph looks like one that
    does not depend on the inputs, and a penalty on it would do nothing without a word.
    """

    @once_differentiable
    def plain(ctx: Any, *grads: Tensor) -> Any:
        with no_autocast(grads[0].device):
            return backward(ctx, *grads)

    @functools.wraps(backward)
    def refusing(ctx: Any, *grads: Tensor) -> Any:
        # a compiler traces a backward with gradients enabled, and asks for no second one
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "a resolvent's gradient was asked for with create_graph=True, and it has no "
                "derivative itself; expected first derivatives only (for second ones, "
                "chacal.resolvent of chacal.attention_weights is plain PyTorch)"
            )
        return plain(ctx, *grads)

    return refusing


class Called(torch.autograd.Function):
    """An operation called outside a graph."""

    @staticmethod
    def forward(
        ctx: Any,
        operation: Operation,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gamma: Tensor,
        *options: Any,
    ) -> Tensor:
        """Y (B, n, d_v)."""
        output = operation.forward(q, k, v, gamma, *options)
        ctx.save_for_backward(q, k, v, gamma, *output[operation.first_kept :])
        ctx.operation, ctx.options = operation, options
        return output[0]

    @staticmethod
    @exact_backward
    def backward(ctx: Any, dY: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, k, v and γ."""
        needed = ctx.needs_input_grad[4]
        dq, dk, dv, dgamma = ctx.operation.backward(dY, *ctx.saved_tensors, *ctx.options, needed)
        return None, dq, dk, dv, dgamma if needed else None, *[None] * len(ctx.options)


def _fake_backward(
    dY: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, *rest: Any
) -> Tensors:
    dgamma = gamma.new_empty(gamma.shape) if rest[-1] else no_dgamma(gamma)
    return (*(x.new_empty(x.shape) for x in (q, k, v)), dgamma)


def no_dgamma(gamma: Tensor) -> Tensor:
    """What stands for dγ where it is not needed."""
    return gamma.new_empty(0)
