"""Compilers see one operator each: whole, with shapes, gradients and no break in the graph."""

import pytest
import torch
from cases import EXACT, draw_qkv, far, leaves

import chacal

OPERATORS = {
    "resolvent": (0.5, True),
    "tiled": (0.5, 4, None, 1, True, False),
    "routed": (0.5, 4, 1, 2, 2, "bound"),
    "pattern": (0.5, "powers", None),
    "block": (0.5, 4, "first", "sum", "both", "mean"),
}

COMPILED = ["chacal", "window@5", "pooled@4", "pooled", "routed@4", "routed,routes=2", "pattern",
            "pattern,offsets=1+5", "delta", "block/3", "block@4,rows=last"]  # fmt: skip

MATTERS = ["block/3", "pooled", "routed,routes=2", "block@4,rows=mean", "block/2,rows=last"]
"""Those whose blocks, or rows that stand for blocks, depend on n."""

# the compiler itself reads .grad of what is no leaf
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("gamma_learns", [False, True])
def test_pytorch_accepts_the_operator(name, gamma_learns):
    inputs = leaves(*draw_qkv(2, n=11, d_v=2))
    gamma = torch.full((2, 1, 1), 0.5, dtype=torch.float64, requires_grad=gamma_learns)
    op = getattr(torch.ops.chacal, name).default
    torch.library.opcheck(op, (*inputs, gamma, *OPERATORS[name]))


def test_pytorch_accepts_delta_with_its_beta_for_every_token():
    inputs = leaves(*draw_qkv(2, n=11, d_v=2), torch.full((2, 11, 1), 0.5, dtype=torch.float64))
    torch.library.opcheck(torch.ops.chacal.delta.default, (*inputs, 0.5))


@pytest.mark.parametrize("gamma_learns", [False, True])
def test_pytorch_accepts_the_operator_for_different_lengths(gamma_learns):
    inputs = leaves(*draw_qkv(3, 2, n=11, d_v=2))
    gamma = torch.full((3, 2), 0.5, dtype=torch.float64, requires_grad=gamma_learns)
    counts = torch.tensor([11, 0, 5])
    op = torch.ops.chacal.ragged.default
    torch.library.opcheck(op, (*inputs, gamma, counts, 0.5, "pooled", [0, 1], []))


@pytest.mark.parametrize("text", COMPILED)
def test_one_graph_for_all_lengths(text):
    operator = chacal.parse_operator(text)
    torch._dynamo.reset()
    gamma = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(operator, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (20, 23, 31):
            inputs = draw_qkv(2, n=n, d_v=2)
            ours, theirs = ([*leaves(*inputs), gamma] for _ in range(2))
            given = {"beta" if operator.has_beta else "gamma": gamma}
            Y, Y_compiled = operator(*ours[:3], **given), compiled(*theirs[:3], **given)
            assert far(Y_compiled, Y) < EXACT
            weights = torch.linspace(-1, 1, Y.numel(), dtype=Y.dtype).view_as(Y)
            found = torch.autograd.grad((Y_compiled * weights).sum(), theirs)
            for a, b in zip(found, torch.autograd.grad((Y * weights).sum(), ours), strict=True):
                assert far(a, b) < EXACT


@pytest.mark.parametrize("text", ["chacal", "pooled@4", *MATTERS])
def test_a_padded_batch_is_one_graph_for_all_masks(text):
    operator = chacal.parse_operator(text)
    torch._dynamo.reset()
    compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
    ragged = [[False] * 7 + [True] * 16, [True] * 23, [True] * 2 + [False] * 20 + [True]]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (ragged, ragged[::-1], [ragged[1]] * 3, [[False] * 23] * 3):
            inputs, gamma = draw_qkv(3, 2, n=23, d_v=2), torch.tensor([0.3, 0.9]).double()
            ours, theirs = ([*leaves(*inputs), gamma.clone().requires_grad_()] for _ in range(2))
            mask = torch.tensor(rows)
            Y = operator(*ours[:3], gamma=ours[3], mask=mask)
            Y_compiled = compiled(*theirs[:3], gamma=theirs[3], mask=mask)
            assert far(Y_compiled, Y) < EXACT
            weights = torch.linspace(-1, 1, Y.numel(), dtype=Y.dtype).view_as(Y)
            found = torch.autograd.grad((Y_compiled * weights).sum(), theirs)
            for a, b in zip(found, torch.autograd.grad((Y * weights).sum(), ours), strict=True):
                assert far(a, b) < EXACT


def test_a_padded_batch_in_half_precision():
    operator = chacal.parse_operator("block/3,gamma=0.5")
    inputs = draw_qkv(2, 2, n=12, dtype=torch.bfloat16)
    mask = torch.tensor([[True] * 12, [True] * 5 + [False] * 7])
    torch._dynamo.reset()
    compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*inputs, mask=mask), operator(*inputs, mask=mask))


@pytest.mark.parametrize("text", ["chacal", "block/3", "routed@8", "delta"])
def test_a_model_compiles_and_exports_whole(text):
    torch.manual_seed(0)
    model = chacal.nn.Transformer(
        vocab_size=11, num_classes=5, width=16, heads=2, operators=["dense", text]
    )
    tokens = torch.randint(11, (2, 30))
    expected = model(tokens)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert far(compiled(tokens), expected) < 1e-6
    exported = torch.export.export(model, (tokens,)).module()
    assert far(exported(tokens), expected) < 1e-6
