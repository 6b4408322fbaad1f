"""The resolvent of fixed patterns: a row sees itself and the rows at given offsets before it."""

import math

import oracles
import pytest
import torch
from cases import EXACT, LEAF_CROSSING, draw, draw_gamma, draw_qkv, far, leaves

import chacal

# near ones only, a tile's length and around it, far ones only, all of it, none within reach
GIVEN = [(1,), (1, 2, 5), (3, 63, 64, 65, 128), (70, 100), tuple(range(1, 130)), (500,)]
every = pytest.mark.parametrize("offsets", ["powers", "squares", *GIVEN], ids=str)


def dense(q, k, v, gamma, offsets):
    """The formula with A in full, for autograd to differentiate."""
    n = q.shape[-2]
    sees = oracles.at_offsets(offsets)
    visible = torch.tensor([[s <= t and sees(t, s) for s in range(n)] for t in range(n)])
    S = (q @ k.mT) / math.sqrt(q.shape[-1])
    return chacal.resolvent(S.masked_fill(~visible, -torch.inf).softmax(-1), v, gamma)


def check_gradients(inputs, offsets):
    """Y and every gradient are those of `dense`."""
    q, k, v, gamma = inputs
    weights = draw(*v.shape, seed=9)
    ours = chacal.pattern_resolvent_attention(q, k, v, gamma=gamma, offsets=offsets)
    theirs = dense(q, k, v, gamma[:, None, None], offsets)
    assert far(ours, theirs) < EXACT
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))


def test_what_a_row_sees():
    # γ = 0 and V = I give A itself; equal keys give every key seen the same weight
    zero, I = torch.zeros(30, 2), torch.eye(30)
    for offsets, row, expected in [
        ("powers", 29, [13, 21, 25, 27, 28, 29]),
        ("powers", 16, [0, 8, 12, 14, 15, 16]),
        ("squares", 29, [3, 12, 19, 24, 27, 28, 29]),
        ("squares", 17, [0, 7, 12, 15, 16, 17]),
        ((5, 2, 20), 29, [9, 24, 27, 29]),
        ((5, 2, 20), 19, [14, 17, 19]),
        ((5, 2, 20), 1, [1]),
    ]:
        A = chacal.pattern_resolvent_attention(zero, zero, I, gamma=0, offsets=offsets)
        assert A[row].nonzero()[:, 0].tolist() == expected
        assert far(A[row, expected], torch.full((len(expected),), 1 / len(expected))) < 1e-6


@every
@pytest.mark.parametrize("n", [1, 2, 7, 33, 64, 65, LEAF_CROSSING])
def test_forward(n, offsets):
    q, k, v = draw_qkv(1, n=n, d_v=2)
    Y = chacal.pattern_resolvent_attention(q, k, v, offsets=offsets, gamma=0.8)
    A = oracles.attention(q[0], k[0], oracles.at_offsets(offsets))
    assert far(Y[0], oracles.resolvent(A, v[0], 0.8)) < EXACT


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [None, (), (3,), (3, 1, 1)])
def test_leading_dimensions_gamma_and_scale(leading, shape):
    gamma, each = draw_gamma(shape, leading)
    q, k, v = draw_qkv(*leading, n=23)
    Y = chacal.pattern_resolvent_attention(q, k, v, gamma=gamma, scale=0.9)

    def oracle(q, k, v, g):
        return oracles.resolvent(oracles.attention(q, k, oracles.at_offsets("powers"), 0.9), v, g)

    assert far(Y, oracles.each(oracle, q, k, v, gamma=each)) < EXACT


@pytest.mark.parametrize("offsets", ["powers", "squares", (1,), (3, 5), (9,)], ids=str)
@pytest.mark.parametrize("gamma", [0.6, [0.4, 0.9]])
def test_gradcheck(offsets, gamma):
    inputs = leaves(*draw_qkv(2, n=7, d=2, d_v=3), torch.tensor(gamma).double())

    def function(q, k, v, gamma):
        return chacal.pattern_resolvent_attention(q, k, v, gamma=gamma, offsets=offsets)

    assert torch.autograd.gradcheck(function, inputs)


@every
@pytest.mark.parametrize("d_v", [3, 5])
def test_gradients_across_tiles(offsets, d_v):
    inputs = draw_qkv(2, n=LEAF_CROSSING, d_v=d_v)
    check_gradients(leaves(*inputs, torch.tensor([0.4, 0.9]).double()), offsets)


@pytest.mark.parametrize("offsets", ["powers", "squares", (1, 300, 511, 512, 513)], ids=str)
def test_gradients_across_groups_of_tiles_and_pieces_of_rows(offsets):
    # 8 tiles of 64 rows are written at once, and so are 512 rows of 8 x 64 numbers
    q, k, v = draw_qkv(8, n=601, d=64, d_v=64)
    gamma = torch.linspace(0.1, 0.9, 8, dtype=torch.float64)
    check_gradients(leaves(q / 3, k / 3, v, gamma), offsets)


@pytest.mark.parametrize("n", [2, 7, LEAF_CROSSING])
def test_all_offsets_are_exact_chacal(n):
    q, k, v = draw_qkv(2, n=n)
    Y = chacal.pattern_resolvent_attention(q, k, v, offsets=tuple(range(1, n)))
    assert far(Y, chacal.resolvent_attention(q, k, v)) < EXACT


@pytest.mark.parametrize("window", [2, 5, 70])
def test_the_first_offsets_are_a_window(window):
    q, k, v = draw_qkv(2, n=LEAF_CROSSING)
    Y = chacal.pattern_resolvent_attention(q, k, v, offsets=tuple(range(1, window)))
    assert far(Y, chacal.window_resolvent_attention(q, k, v, window=window)) < EXACT


def test_the_order_of_offsets_does_not_matter():
    inputs = draw_qkv(2, n=LEAF_CROSSING)
    Y = chacal.pattern_resolvent_attention(*inputs, offsets=(70, 1, 9))
    assert torch.equal(Y, chacal.pattern_resolvent_attention(*inputs, offsets=(1, 9, 70)))


@every
def test_identities(offsets):
    q, k, v = draw_qkv(2, n=70)
    ones = torch.ones_like(v)
    assert far(chacal.pattern_resolvent_attention(q, k, ones, offsets=offsets), ones) < EXACT
    A = oracles.each(lambda q, k: oracles.attention(q, k, oracles.at_offsets(offsets)), q, k)
    Y = chacal.pattern_resolvent_attention(q, k, v, offsets=offsets, gamma=0)
    assert far(Y, A @ v) < EXACT


@pytest.mark.parametrize("offsets", ["powers", "squares", (1, 50)], ids=str)
def test_hops_reach_what_no_offset_does(offsets):
    # 99 is neither a power of 2 nor a square and one: the first value comes by several hops
    q, k, v = draw_qkv(n=100)
    v = leaves(v)[0]
    for gamma, reached in ((0.0, False), (0.9, True)):
        Y = chacal.pattern_resolvent_attention(q, k, v, gamma=gamma, offsets=offsets)
        assert bool(torch.autograd.grad(Y[-1].sum(), v)[0][0].any()) == reached


@pytest.mark.parametrize(
    "offsets",
    ["cubes", "", None, 3, True, (), [1, 2], (0,), (1, -2), (1, 1), (True,), (1, 2.0), ("1",)],
)
def test_bad_offsets_are_named(offsets):
    with pytest.raises(ValueError, match="offsets is ") as error:
        chacal.pattern_resolvent_attention(*draw_qkv(n=3), offsets=offsets)
    assert str(error.value) == (
        f"offsets is {offsets!r}; expected one of 'powers', 'squares', or a tuple of different "
        f"whole numbers of at least 1, such as (1, 2, 5) (as text, 1+2+5)"
    )
