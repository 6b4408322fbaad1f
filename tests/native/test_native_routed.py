"""The compiled choice of tiles and forward pass of the routed resolvent, against PyTorch's."""

import itertools

import pytest
import torch
from cases import LEAF_CROSSING, draw, draw_qkv, leaves, relative

import chacal
from chacal.native import resolvent, routed
from chacal.ops.routing import Routing
from chacal.ops.tiled import View

FLOAT32 = 3e-5
"""Norm-wise, outputs and gradients, against float64. PyTorch's backward pass makes the scores anew
and rounds them otherwise; a row that sees itself alone has 1/(1-γ) of that in the gradient of v."""

pytestmark = pytest.mark.usefixtures("kind")

OPERATORS = [
    "routed",
    "routed@3",
    "routed@2,near=0,gamma=0.5",
    "routed@2,near=0,routes=2",
    "routed@1,near=2,routes=2,score=bound",
    "routed@3,near=0,parts=2,score=keys",
    "routed@16,routes=3,parts=4,score=keys",
    "routed@64,routes=2",
    "routed@70,near=0,routes=2,parts=3,score=bound",
    "routed@7,near=2,routes=5",
    "routed@8,near=20",
]


@pytest.mark.parametrize("text", OPERATORS)
@pytest.mark.parametrize("n", [2, 5, 23, 64, 65, LEAF_CROSSING, 333])
def test_outputs_and_gradients(text, n):
    inputs, dY = draw_qkv(2, n=n, d=5, d_v=3, dtype=torch.float32), draw(2, n, 3, seed=4)
    results = []
    for dtype in (torch.float32, torch.float64):
        each = leaves(*(x.to(dtype) for x in inputs))
        Y = chacal.parse_operator(text)(*each)
        results.append([Y, *torch.autograd.grad((Y * dY.to(dtype)).sum(), each)])
    for a, b in zip(*results, strict=True):
        assert a.dtype == torch.float32
        assert relative(a, b) < FLOAT32 if float(b.detach().norm()) else float(a.norm()) < FLOAT32


@pytest.mark.parametrize(("score", "parts"), [("mean", 1), ("mean", 3), ("bound", 2), ("keys", 3)])
@pytest.mark.parametrize(
    ("n", "tile", "near", "routes"),
    [(LEAF_CROSSING, 3, 1, 2), (600, 4, 0, 3), (100, 7, 2, 1), (70, 64, 1, 1), (5, 2, 0, 9)],
)
def test_the_same_tiles_as_pytorch_chooses(score, parts, n, tile, near, routes, monkeypatch):
    q, k, _ = draw_qkv(2, n=n, d=6, dtype=torch.float32)
    routing, view = Routing(routes, parts, score), View(tile, near=near)
    summary = routing.summary(k[:, : n // tile * tile].unflatten(1, (-1, tile)))
    ours = routing.choose(q, summary, view)
    monkeypatch.setattr(resolvent, "fits", lambda *_: False)
    theirs = routing.choose(q, summary, view)
    assert torch.equal(ours.sort(-1).values, theirs.sort(-1).values)
    if routes > 1:
        assert torch.equal(ours, theirs)  # the best first


@pytest.mark.parametrize("t", [0, 5, 63, 64, 70, 129])
@pytest.mark.parametrize("text", ["routed@3", "routed@16,near=0,routes=3", "routed@64"])
def test_no_row_depends_on_a_later_token(text, t):
    inputs = draw_qkv(2, n=LEAF_CROSSING, dtype=torch.float32)
    operator = chacal.parse_operator(text)
    Y = operator(*inputs)
    for x in inputs:
        x[:, t + 1 :] = draw(*x[:, t + 1 :].shape, seed=7, dtype=torch.float32)
    assert torch.equal(Y[:, : t + 1], operator(*inputs)[:, : t + 1])


def test_with_all_tiles_chosen_it_is_exact():
    q, k, v = draw_qkv(2, n=200, dtype=torch.float32)
    all_tiles = chacal.routed_resolvent_attention(q, k, v, block_size=8, near=0, routes=25)
    assert relative(all_tiles, chacal.resolvent_attention(q, k, v)) < FLOAT32


def test_a_bad_token_is_none_of_the_rows_before_it():
    q, k, v = draw_qkv(1, n=LEAF_CROSSING, dtype=torch.float32)
    gamma, chosen = torch.tensor([[[0.9]]]), torch.full((1, LEAF_CROSSING, 1), -1)
    chosen[0, 100:, 0] = 2
    before = routed.forward(q, k, v, gamma, 0.5, 8, 0, chosen)[0]
    v[0, 20] = torch.nan
    after = routed.forward(q, k, v, gamma, 0.5, 8, 0, chosen)[0]
    assert torch.equal(before[0, :20], after[0, :20])
    assert after[0, 20:24].isnan().all()  # its tile
    assert after[0, 100:].isnan().all()  # those who chose it


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_share_heads(threads):
    inputs = draw_qkv(7, n=100, dtype=torch.float32)
    operator = chacal.parse_operator("routed@8,routes=2")
    alone = operator(*inputs)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(alone, operator(*inputs))
    finally:
        torch.set_num_threads(1)


def test_every_route_and_every_place_of_a_tile():
    """Tiles that end before, at and within a row's own 64 rows, by hand."""
    q, k, v = draw_qkv(1, n=150, d=4, dtype=torch.float32)
    gamma = torch.tensor([[[0.7]]])
    for tile, near in itertools.product((1, 5, 64, 66), (0, 1)):
        A = torch.zeros(150, 150, dtype=torch.float64)
        chosen = torch.full((1, 150, 2), -1)
        for t in range(150):
            first = max(0, t // tile - near)
            if first:
                chosen[0, t, 0] = (7 * t) % first
                chosen[0, t, 1] = first - 1 if first - 1 != chosen[0, t, 0] else -1
            seen = [
                s for s in range(t + 1) if s // tile >= first or s // tile in chosen[0, t].tolist()
            ]
            A[t, seen] = torch.softmax((q[0, t].double() * k[0, seen].double()).sum(-1) * 0.5, -1)
        exact = chacal.resolvent(A, v[0].double(), 0.7)
        ours = routed.forward(q, k, v, gamma, 0.5, tile, near, chosen)[0]
        assert relative(ours[0], exact) < FLOAT32
