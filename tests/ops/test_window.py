"""The resolvent of sliding-window attention."""

import oracles
import pytest
import torch
from cases import EXACT, LEAF_CROSSING, draw, draw_gamma, draw_qkv, far, leaves

import chacal


def band(n: int, window: int) -> torch.Tensor:
    t = torch.arange(n)
    return (t[:, None] >= t) & (t[:, None] - t < window)


def dense(q, k, v, gamma, window, diagonal="keep"):
    """The formula with A in full, for autograd to differentiate."""
    S = (q @ k.mT) * q.shape[-1] ** -0.5
    A = S.masked_fill(~band(q.shape[-2], window), -torch.inf).softmax(-1)
    return chacal.resolvent(A, v, gamma, diagonal)


@pytest.mark.parametrize("n", [1, 2, 7, 33, LEAF_CROSSING])
@pytest.mark.parametrize("window", [1, 2, 5, 32, 33, 129])
@pytest.mark.parametrize("diagonal", ["keep", "drop"])
def test_forward(n, window, diagonal):
    q, k, v = draw_qkv(1, n=n, d_v=2)
    Y = chacal.window_resolvent_attention(q, k, v, window=window, gamma=0.8, diagonal=diagonal)
    A = oracles.attention(q[0], k[0], oracles.within(window))
    assert far(Y[0], oracles.resolvent(A, v[0], 0.8, diagonal)) < EXACT


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [None, (), (3,), (3, 1, 1)])
def test_leading_dimensions_gamma_and_scale(leading, shape):
    gamma, each = draw_gamma(shape, leading)
    q, k, v = draw_qkv(*leading, n=40)
    Y = chacal.window_resolvent_attention(q, k, v, window=6, gamma=gamma, scale=0.9)

    def oracle(q, k, v, g):
        return oracles.resolvent(oracles.attention(q, k, oracles.within(6), 0.9), v, g)

    assert far(Y, oracles.each(oracle, q, k, v, gamma=each)) < EXACT


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
@pytest.mark.parametrize("window", [1, 3, 20])
def test_gradcheck(diagonal, window):
    inputs = leaves(*draw_qkv(2, n=7, d=2, d_v=3), torch.tensor([0.4, 0.9]).double())

    def function(q, k, v, gamma):
        return chacal.window_resolvent_attention(
            q, k, v, gamma=gamma, window=window, diagonal=diagonal
        )

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
@pytest.mark.parametrize("window", [5, 33, 129])
@pytest.mark.parametrize("d_v", [3, 5])
def test_gradients_across_tiles(diagonal, window, d_v):
    inputs = leaves(*draw_qkv(2, n=LEAF_CROSSING, d_v=d_v), torch.tensor([0.4, 0.9]).double())
    q, k, v, gamma = inputs
    weights = draw(2, LEAF_CROSSING, d_v, seed=9)
    ours = chacal.window_resolvent_attention(q, k, v, gamma=gamma, window=window, diagonal=diagonal)
    theirs = dense(q, k, v, gamma[:, None, None], window, diagonal)
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))


@pytest.mark.parametrize("n", [1, 7, LEAF_CROSSING])
@pytest.mark.parametrize("diagonal", ["keep", "drop"])
def test_a_window_of_n_is_exact_chacal(n, diagonal):
    q, k, v = draw_qkv(2, n=n)
    exact = chacal.resolvent_attention(q, k, v, diagonal=diagonal)
    for window in (n, n + 1, 10 * n):
        Y = chacal.window_resolvent_attention(q, k, v, window=window, diagonal=diagonal)
        assert far(Y, exact) < EXACT
    if n > 1:
        shorter = chacal.window_resolvent_attention(q, k, v, window=n - 1, diagonal=diagonal)
        assert far(shorter[:, -1:], exact[:, -1:]) > 1e-9
        assert far(shorter[:, :-1], exact[:, :-1]) < EXACT


@pytest.mark.parametrize("window", [1, 4, 40])
def test_identities(window):
    q, k, v = draw_qkv(2, n=70)
    ones = torch.ones_like(v)
    assert far(chacal.window_resolvent_attention(q, k, ones, window=window), ones) < EXACT
    local = chacal.local_attention(q, k, v, window=window)
    assert far(chacal.window_resolvent_attention(q, k, v, window=window, gamma=0), local) < EXACT


def test_chains_longer_than_the_window_are_followed():
    # the first value reaches the last token through hops of at most 3
    q, k, v = draw_qkv(n=40)
    v = leaves(v)[0]
    Y = chacal.window_resolvent_attention(q, k, v, window=4)
    assert float(torch.autograd.grad(Y[-1].sum(), v)[0][0].abs().sum()) > 0


@pytest.mark.parametrize("window", [0, -3, 2.0, None, True])
def test_a_bad_window_is_named(window):
    for function in (chacal.window_resolvent_attention, chacal.local_attention):
        with pytest.raises(ValueError, match=f"window is {window}.*whole number of at least 1"):
            function(*draw_qkv(n=3), window=window)


def test_unknown_diagonal_is_named():
    with pytest.raises(ValueError, match=r"diagonal is 'none'.*'keep', 'drop'"):
        chacal.window_resolvent_attention(*draw_qkv(n=3), diagonal="none")


# Z is held for eight times what a tile sees: 296 rows here, so that it moves twice
@pytest.mark.parametrize("diagonal", ["keep", "drop"])
@pytest.mark.parametrize("d_v", [3, 2])  # where d_v is d, dq takes the place of Z
def test_rows_far_behind_what_is_held(diagonal, d_v):
    inputs = leaves(*draw_qkv(2, n=701, d_v=d_v), torch.tensor([0.4, 0.9]).double())
    q, k, v, gamma = inputs
    ours = chacal.window_resolvent_attention(q, k, v, gamma=gamma, window=5, diagonal=diagonal)
    theirs = dense(q, k, v, gamma[:, None, None], 5, diagonal)
    assert far(ours, theirs) < EXACT
    weights = draw(2, 701, d_v, seed=9)
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))
