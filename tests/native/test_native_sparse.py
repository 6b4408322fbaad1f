"""The compiled windows, routes and choice of tiles, against float64 and what PyTorch chooses."""

import itertools
import sys
from pathlib import Path

import pytest
import torch
from cases import LEAF_CROSSING, draw, draw_qkv, leaves, relative

import chacal
from chacal.native import resolvent, sparse
from chacal.ops.routing import Routing
from chacal.ops.view import View

FLOAT32 = 1e-5
"""Norm-wise, outputs and gradients, against float64, as for plain PyTorch (test_precision.py)."""

pytestmark = pytest.mark.usefixtures("kind")

OPERATORS = [
    "window@2,diagonal=drop",
    "window@7",
    "window@64",
    "window@65,diagonal=drop",
    "window@130",
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


def with_gradients(text, inputs, gamma, dY):
    """Y and the gradients of q, k, v and γ."""
    *inputs, gamma = leaves(*inputs, gamma)
    Y = chacal.parse_operator(text)(*inputs, gamma=gamma)
    return [Y, *torch.autograd.grad((Y * dY).sum(), [*inputs, gamma])]


@pytest.mark.parametrize("text", OPERATORS)
@pytest.mark.parametrize(
    ("n", "d", "d_v"), [(5, 5, 3), (64, 5, 3), (65, 5, 3), (LEAF_CROSSING, 16, 32), (333, 3, 7)]
)
def test_outputs_and_gradients(text, n, d, d_v):
    q, k, v = draw_qkv(3, n=n, d=d, d_v=d_v, dtype=torch.float32)
    inputs, gamma = [q / d**0.25, k / d**0.25, v], torch.tensor([0.0, 0.5, 0.9])
    dY = draw(3, n, d_v, seed=4, dtype=torch.float32)
    ours = with_gradients(text, inputs, gamma, dY)
    exact = with_gradients(text, [x.double() for x in inputs], gamma.double(), dY.double())
    for a, b in zip(ours, exact, strict=True):
        assert a.dtype == torch.float32
        # γ's gradient is a difference of two sums, which may be much larger
        far = FLOAT32 if a.ndim > 1 else 3 * FLOAT32
        assert relative(a, b) < far if float(b.detach().norm()) else float(a.norm()) < far


def test_a_row_that_sees_itself_alone():
    inputs, dY = draw_qkv(2, n=70, dtype=torch.float32), draw(2, 70, 3, dtype=torch.float32)
    Y, *grads = with_gradients("window@1", inputs, torch.tensor([0.5, 0.9]), dY)
    assert relative(Y, inputs[2]) < FLOAT32
    assert relative(grads[2], dY) < FLOAT32
    assert max(float(x.abs().max()) for x in grads[:2]) < 1e-4  # of numbers up to 100


@pytest.mark.parametrize("text", ["window@40", "window@40,diagonal=drop", "routed@16,routes=2"])
def test_the_pass_back_may_be_the_other_one(text, monkeypatch):
    """The number of threads may change between the two."""
    inputs, dY = draw_qkv(2, n=150, dtype=torch.float32), draw(2, 150, 3, dtype=torch.float32)
    gamma, fits = torch.tensor([0.9, 0.5]), resolvent.fits
    exact = with_gradients(text, [x.double() for x in inputs], gamma.double(), dY.double())
    for first in (True, False):
        *each, g = leaves(*inputs, gamma)
        monkeypatch.setattr(resolvent, "fits", fits if first else lambda *_: False)
        Y = chacal.parse_operator(text)(*each, gamma=g)
        monkeypatch.setattr(resolvent, "fits", (lambda *_: False) if first else fits)
        grads = torch.autograd.grad((Y * dY).sum(), [*each, g])
        for a, b in zip(grads, exact[1:], strict=True):
            assert relative(a, b) < 5 * FLOAT32


@pytest.mark.parametrize("text", ["window@64", "routed@70,near=0", "routed@16,near=3,routes=2"])
def test_texts_far_longer_than_what_is_kept(text):
    """Keys and Z of a few tiles are kept; all others have made room."""
    inputs, dY = draw_qkv(1, n=3001, dtype=torch.float32), draw(1, 3001, 3, dtype=torch.float32)
    gamma = torch.tensor([0.9])
    exact = with_gradients(text, [x.double() for x in inputs], gamma.double(), dY.double())
    for a, b in zip(with_gradients(text, inputs, gamma, dY), exact, strict=True):
        assert relative(a, b) < 3 * FLOAT32


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
@pytest.mark.parametrize("text", ["routed@3", "routed@16,near=0,routes=3", "routed@64", "window@9"])
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
    seen = sparse.Seen(tile=8, near=0, chosen=chosen)
    before = sparse.forward(q, k, v, gamma, 0.5, False, seen)[0]
    v[0, 20] = torch.nan
    after = sparse.forward(q, k, v, gamma, 0.5, False, seen)[0]
    assert torch.equal(before[0, :20], after[0, :20])
    assert after[0, 20:24].isnan().all()  # its tile
    assert after[0, 100:].isnan().all()  # those who chose it


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_share_heads(threads):
    inputs, dY = draw_qkv(7, n=100, dtype=torch.float32), draw(7, 100, 3, dtype=torch.float32)
    for_all = "routed@8,routes=2", inputs, torch.linspace(0, 0.9, 7), dY
    alone = with_gradients(*for_all)
    torch.set_num_threads(threads)
    try:
        assert all(map(torch.equal, alone, with_gradients(*for_all)))
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
        seen = sparse.Seen(tile=tile, near=near, chosen=chosen)
        ours = sparse.forward(q, k, v, gamma, 0.5, False, seen)[0]
        assert relative(ours[0], exact) < FLOAT32


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is read from /proc")
@pytest.mark.parametrize("text", ["window@64", "routed@64"])
def test_a_long_text_needs_little_room(text, kind):
    """Forward a routed head has Z's size besides, for what rows saw of far tiles."""
    resource = pytest.importorskip("resource")
    if kind != "as it is used":
        pytest.skip("the same room")
    n, d = 1 << 17, 64
    q = torch.randn(1, 1, d).expand(1, n, d)
    chosen = None if text == "window@64" else torch.arange(n).view(1, n, 1).div(640).long()
    seen = sparse.Seen(window=64) if chosen is None else sparse.Seen(tile=64, chosen=chosen)
    gamma = torch.full((1, 1, 1), 0.5)
    inner, (Y, lse), _alive = resolvent.forward_call(q, q, q, gamma, 1.0, False)
    forward = sparse.SparseForwardCall(inner, seen.keys(n))
    inner, _grads, _alive_too = resolvent.backward_call(q, q, q, gamma, 1.0, False, Y, lse, q)
    backward = sparse.SparseBackwardCall(inner, seen.keys(n))
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    of_rows = 0 if chosen is None else 2 * n * 4  # who chose what, and W·H
    for name, call, room in (
        ("chacal_sparse_forward", forward, of_rows + (n * (d + 2) * 4 if of_rows else 0)),
        ("chacal_sparse_backward", backward, of_rows + n * 4),
    ):
        held = next(
            1024 * int(line.split()[1])
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmData")
        )
        resource.setrlimit(resource.RLIMIT_DATA, (held + room + (1 << 20), limits[1]))
        try:
            resolvent.run(name, call, n)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limits)
