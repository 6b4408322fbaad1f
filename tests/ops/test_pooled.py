"""The subquadratic operator against its dense form, A = L + W P."""

import math

import oracles
import pytest
import torch
from cases import EXACT, LEAF_CROSSING, draw, draw_gamma, draw_qkv, far, leaves

import chacal


def dense(q, k, v, gamma, m, near):
    """A = L + W P in full, without loops, for autograd to differentiate."""
    n, d = q.shape[-2:]
    t = torch.arange(n)
    whole = n // m
    P = torch.zeros(whole, n, dtype=q.dtype)
    for J in range(whole):
        P[J, J * m : (J + 1) * m] = 1 / m
    single = (t[:, None] >= t) & (t // m >= (t // m)[:, None] - near)
    far_blocks = torch.arange(whole) < (t // m)[:, None] - near
    scores = torch.cat([q @ k.mT, q @ (P @ k).mT + math.sqrt(d) * math.log(m)], -1) / math.sqrt(d)
    seen = torch.cat([single, far_blocks], -1)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return chacal.resolvent(weights[..., :n] + weights[..., n:] @ P, v, gamma)


@pytest.mark.parametrize("n", [1, 2, 7, 33, LEAF_CROSSING])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("near", [0, 1, 2, 5])
def test_forward(n, m, near):
    q, k, v = draw_qkv(1, n=n, d_v=2)
    Y = chacal.pooled_resolvent_attention(q, k, v, block_size=m, near=near, gamma=0.8)
    A = oracles.pooled_matrix(q[0], k[0], m, near)
    assert far(Y[0], oracles.resolvent(A, v[0], 0.8)) < EXACT


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [None, (), (3,), (3, 1, 1)])
def test_leading_dimensions_gamma_and_scale(leading, shape):
    gamma, each = draw_gamma(shape, leading)
    q, k, v = draw_qkv(*leading, n=23)
    Y = chacal.pooled_resolvent_attention(q, k, v, block_size=4, gamma=gamma, scale=0.9)

    def oracle(q, k, v, g):
        return oracles.resolvent(oracles.pooled_matrix(q, k, 4, 1, 0.9), v, g)

    assert far(Y, oracles.each(oracle, q, k, v, gamma=each)) < EXACT


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 2), (16, 4), (40, 8), (64, 8), (256, 16)])
def test_the_default_block_is_about_the_root_of_n(n, m):
    q, k, v = draw_qkv(2, n=n)
    Y = chacal.pooled_resolvent_attention(q, k, v)
    assert far(Y, chacal.pooled_resolvent_attention(q, k, v, block_size=m)) == 0


@pytest.mark.parametrize(("m", "near"), [(1, 0), (2, 0), (3, 0), (3, 1), (2, 2), (9, 1)])
def test_gradcheck(m, near):
    inputs = leaves(*draw_qkv(2, n=7, d=2, d_v=3), torch.tensor([0.4, 0.9]).double())

    def function(q, k, v, gamma):
        return chacal.pooled_resolvent_attention(q, k, v, gamma=gamma, block_size=m, near=near)

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize(("m", "near"), [(16, 0), (16, 1), (13, 3), (65, 1)])
@pytest.mark.parametrize("d_v", [3, 5])
def test_gradients_across_tiles(m, near, d_v):
    inputs = leaves(*draw_qkv(2, n=LEAF_CROSSING, d_v=d_v), torch.tensor([0.4, 0.9]).double())
    q, k, v, gamma = inputs
    weights = draw(2, LEAF_CROSSING, d_v, seed=9)
    ours = chacal.pooled_resolvent_attention(q, k, v, gamma=gamma, block_size=m, near=near)
    theirs = dense(q, k, v, gamma[:, None, None], m, near)
    assert far(ours, theirs) < EXACT
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))


@pytest.mark.parametrize(("m", "near"), [(1, 200), (16, 8), (64, 2), (130, 0), (400, 0)])
def test_with_everything_near_it_is_exact_chacal(m, near):
    q, k, v = draw_qkv(2, n=LEAF_CROSSING)
    Y = chacal.pooled_resolvent_attention(q, k, v, block_size=m, near=near)
    assert far(Y, chacal.resolvent_attention(q, k, v)) < EXACT


def test_blocks_of_one_are_exact_chacal():
    # the mean of one key is that key
    q, k, v = draw_qkv(2, n=40)
    Y = chacal.pooled_resolvent_attention(q, k, v, block_size=1, near=0)
    assert far(Y, chacal.resolvent_attention(q, k, v)) < EXACT


def test_pooling_is_exact_where_a_block_has_one_key():
    # equal keys within every block: a mean loses nothing of them, and m of them count m times
    q, k, v = draw_qkv(2, n=40)
    k = k[:, ::4].repeat_interleave(4, 1)
    A = oracles.each(oracles.attention, q, k)
    Y = chacal.pooled_resolvent_attention(q, k, v, block_size=4, near=0)
    assert far(Y, oracles.each(lambda A, v: oracles.resolvent(A, v, 0.9), A, v)) < EXACT


@pytest.mark.parametrize(("m", "near"), [(1, 0), (7, 0), (7, 1), (16, 2)])
def test_identities(m, near):
    q, k, v = draw_qkv(2, n=70)
    ones = torch.ones_like(v)
    Y = chacal.pooled_resolvent_attention(q, k, ones, block_size=m, near=near)
    assert far(Y, ones) < EXACT
    A = oracles.each(lambda q, k: oracles.pooled_matrix(q, k, m, near), q, k)
    Y = chacal.pooled_resolvent_attention(q, k, v, block_size=m, near=near, gamma=0)
    assert far(Y, A @ v) < EXACT


@pytest.mark.parametrize(("name", "value", "least"), [
    ("block_size", 0, 1), ("block_size", 2.5, 1), ("near", -1, 0), ("near", None, 0),
])  # fmt: skip
def test_bad_sizes_are_named(name, value, least):
    with pytest.raises(ValueError, match=f"{name} is {value}.*whole number of at least {least}"):
        chacal.pooled_resolvent_attention(*draw_qkv(n=3), **{name: value})


@pytest.mark.parametrize("near", [0, 1])
@pytest.mark.parametrize("d_v", [3, 2])
def test_a_block_longer_than_what_is_solved_at_once(near, d_v):
    inputs = leaves(*draw_qkv(2, n=470, d_v=d_v), torch.tensor([0.4, 0.9]).double())
    q, k, v, gamma = inputs
    ours = chacal.pooled_resolvent_attention(q, k, v, gamma=gamma, block_size=150, near=near)
    theirs = dense(q, k, v, gamma[:, None, None], 150, near)
    assert far(ours, theirs) < EXACT
    weights = draw(2, 470, d_v, seed=9)
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))
