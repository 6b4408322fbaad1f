"""What the operator tests share: draws, lengths, and the texts that cover every option."""

import itertools

import torch
from torch import Tensor

from chacal.ops.resolvent import PRUNINGS

EXACT = 1e-10
"""Float64 against an oracle."""

LEAF_CROSSING = 130
"""Two whole tiles of the recursion (64 rows each) and a ragged third."""

CAUSAL = [
    "dense",
    "dense,top_k=3",
    "local@4",
    "local",
    "bigbird@3",
    "bigbird@2,links=1,seed=5",
    "bigbird@2,links=0",
    "chacal",
    "chacal,gamma=0",
    "chacal,gamma=0.5,diagonal=drop",
    "chacal,top_k=3",
    "chacal,diagonal=drop,top_k=2",
    "t_post",
    *(f"{name},top_k=2,prune={prune}" for name in ("t_post", "t_pre") for prune in PRUNINGS),
    "t_pre",
    "window@1",
    "window@4",
    "window@4,gamma=0.5,diagonal=drop",
    "window@64",
    "pooled",
    "pooled,near=0",
    "pooled@1,near=0",
    "pooled@3,gamma=0.5",
    "pooled@3,near=0",
    "pooled@2,near=2",
    "pooled@3,near=9",
    "routed",
    "routed@3",
    "routed@2,near=0,gamma=0.5",
    "routed@2,near=0,routes=2",
    "routed@2,parts=2,score=bound",
    "routed@1,near=2,routes=2,score=bound",
    "routed@3,near=0,parts=2,score=keys",
    "pattern",
    "pattern,offsets=squares,gamma=0.5",
    "pattern,offsets=2+5",
    "pattern,offsets=400",
    "delta",
    "delta,beta=0",
    "delta,beta=0.5,read=keys",
    "delta,beta=-1",
    "block@1",
    *(
        f"block{size},columns={columns},branches={branches}"
        for size, columns, branches in itertools.product(
            ("@3", "/2"), ("sum", "mean"), ("both", "local", "residual")
        )
    ),
    *(
        f"block{size},columns={columns},branches={branches},values=rows"
        for size, columns, branches in itertools.product(
            ("@3", "/2"), ("sum", "mean"), ("both", "residual")
        )
    ),
    "block@4,gamma=0.5",
    "block@3,rows=mean,branches=local",
    "block@3,rows=last,branches=local",
]

LEAKY = [
    f"block{size},rows={rows},columns={columns},branches={branches},values={values}"
    for size, rows, columns, branches, values in itertools.product(
        ("@3", "/2"), ("mean", "last"), ("sum", "mean"), ("both", "residual"), ("rows", "mean")
    )
]

DECODABLE = [
    "dense",
    "chacal",
    "chacal,gamma=0.5,diagonal=drop",
    "local@5",
    "window@1",
    "window@5",
    "window@40,diagonal=drop",
    "pooled@1,near=0",
    "pooled@4",
    "pooled@3,near=0",
    "pooled@2,near=2",
    "pooled@500",
    "routed@1,near=0",
    "routed@4",
    "routed@3,near=0,routes=2,score=bound",
    "routed@5,near=0,parts=2",
    "routed@2,near=2,routes=3",
    "routed@500",
    "pattern",
    "pattern,offsets=squares",
    "pattern,offsets=1+2+5",
    "pattern,offsets=7+70",
    "delta",
    "delta,beta=0.5,read=keys",
    "block@1",
    "block@4",
    "block@5,columns=mean",
    "block@5,rows=mean,branches=local",
    "block@5,branches=residual",
    "block@1,values=rows",
    "block@4,values=rows",
    "block@5,values=rows,columns=mean,branches=residual",
    "block@500",
]

RESOLVENTS = [
    "chacal",
    "chacal,diagonal=drop",
    "window@4",
    "window@4,diagonal=drop",
    "pooled@3",
    "pooled@3,near=0",
    "pooled",
    "routed@3",
    "routed@2,near=0,routes=2,score=bound",
    "pattern",
    "pattern,offsets=squares",
    "pattern,offsets=1+3",
    "block@3",
    "block@3,values=rows",
    "block/2,rows=mean,columns=mean",
]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same for the same seed in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def draw_qkv(
    *leading: int, n: int, d: int = 3, d_v: int | None = None, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """q, k (..., n, d) and v (..., n, d_v); sharp enough for attention to have preferences."""
    d_v = d if d_v is None else d_v
    q, k = (2 * draw(*leading, n, d, seed=i, dtype=torch.float64) for i in (1, 2))
    return [q.to(dtype), k.to(dtype), draw(*leading, n, d_v, seed=3, dtype=dtype)]


def draw_gamma(
    shape: tuple[int, ...] | None, leading: tuple[int, ...]
) -> tuple[float | Tensor, Tensor]:
    """γ as a user may write it for 3 heads (None: a float), and as one number, or one a head."""
    if shape and not leading:
        shape = (1,)
    gamma = 0.7 if shape is None else 0.1 + 0.8 * torch.rand(shape, dtype=torch.float64)
    each = torch.as_tensor(gamma, dtype=torch.float64)
    return gamma, each.reshape(()) if each.numel() == 1 else each.reshape(3)


def leaves(*tensors: Tensor) -> list[Tensor]:
    """Copies that collect gradients."""
    return [x.detach().clone().requires_grad_() for x in tensors]


def far(a: Tensor, b: Tensor) -> float:
    """The largest difference; NaN counts as infinitely far."""
    assert a.shape == b.shape
    return float((a - b).detach().abs().nan_to_num(nan=torch.inf).max())


def relative(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|, norms over everything, in float64."""
    assert a.shape == b.shape
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def extend(decoder, inputs, calls, mask=None, **options):
    """The outputs of a decoder that is given its tokens in these calls."""
    parts = [
        decoder.extend(
            *(x[..., at, :] for x in inputs), None if mask is None else mask[..., at], **options
        )
        for at in calls
    ]
    return torch.cat(parts, -2)
