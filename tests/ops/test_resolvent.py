"""Eq. 1 and the operators of the sparsity section, on a given A."""

import oracles
import pytest
import torch
from cases import EXACT, draw, draw_qkv, far

import chacal


def matrix(n: int) -> torch.Tensor:
    q, k, _ = draw_qkv(2, n=n)
    return oracles.each(oracles.attention, q, k)


@pytest.mark.parametrize("n", [1, 2, 7, 33])
@pytest.mark.parametrize("gamma", [0, 0.5, 0.9])
@pytest.mark.parametrize("diagonal", ["keep", "drop"])
def test_resolvent_is_the_inverse_and_the_sum_of_hops(n, gamma, diagonal):
    A, V = matrix(n), draw(2, n, 3)
    Y = chacal.resolvent(A, V, gamma, diagonal)
    inverse = oracles.each(lambda A, V: oracles.resolvent(A, V, gamma, diagonal), A, V)
    hops = oracles.each(lambda A, V: oracles.neumann_sum(A, V, gamma, diagonal), A, V)
    assert far(Y, inverse) < EXACT
    assert far(Y, hops) < EXACT


def test_two_tokens_by_hand():
    # row 1 hops to itself with 1/2: Y_1 = (1-γ) Σ γ^t (A^(t+1) V)_1, A^t's row 1 = [1-2^-t, 2^-t]
    A = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    V = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert chacal.resolvent(A, V, 0.5).flatten().tolist() == pytest.approx([0, 1 / 3])
    assert chacal.resolvent(A, V, 0.5, "drop").flatten().tolist() == pytest.approx([0, 1 / 4])


def test_gamma_may_differ_per_head_and_has_a_gradient():
    A, V = matrix(5), draw(2, 5, 2)
    gamma = torch.tensor([0.2, 0.8], dtype=torch.float64).reshape(2, 1, 1)
    for i in range(2):
        assert (
            far(chacal.resolvent(A, V, gamma)[i], chacal.resolvent(A[i], V[i], [0.2, 0.8][i]))
            < EXACT
        )
    inputs = (A.requires_grad_(), V.requires_grad_(), gamma.requires_grad_())
    for diagonal in ("keep", "drop"):
        assert torch.autograd.gradcheck(
            lambda A, V, gamma, diagonal=diagonal: chacal.resolvent(A.tril(), V, gamma, diagonal),
            inputs,
        )


@pytest.mark.parametrize("count", [None, 1, 2, 4, 9])
def test_t_raw_prunes_and_attends(count):
    A, V = matrix(9), draw(2, 9, 3)
    expected = oracles.each(lambda A, V: oracles.t_raw(A, V, count), A, V)
    assert far(chacal.t_raw(A, V, count), expected) < EXACT


@pytest.mark.parametrize("name", ["t_post", "t_pre"])
@pytest.mark.parametrize("count", [None, 1, 3])
@pytest.mark.parametrize("prune", ["both", "outside", "inside"])
@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_t_post_and_t_pre_prune_where_their_reading_says(name, count, prune, gamma):
    A, V = matrix(9), draw(2, 9, 3)
    ours, oracle = getattr(chacal, name), getattr(oracles, name)
    expected = oracles.each(lambda A, V: oracle(A, V, count, prune, gamma), A, V)
    assert far(ours(A, V, count, prune=prune, gamma=gamma), expected) < EXACT


def test_the_readings_are_different_operators():
    A, V = matrix(9), draw(2, 9, 3)
    results = [
        t(A, V, 3, prune=prune)
        for t in (chacal.t_post, chacal.t_pre)
        for prune in ("both", "outside", "inside")
    ]
    for i, a in enumerate(results):
        for b in results[i + 1 :]:
            assert far(a, b) > 1e-3


def test_t_pre_is_t_post_without_a_diagonal_to_drop():
    # A commutes with its own resolvent; only dropping the diagonal inside tells the two apart
    A, V = matrix(9), draw(2, 9, 3)
    strict = A.tril(-1)
    assert far(chacal.t_pre(strict, V), chacal.t_post(strict, V)) < EXACT
    assert far(chacal.t_pre(strict, V, 3), chacal.t_post(strict, V, 3)) < EXACT
    assert far(chacal.t_pre(A, V), chacal.t_post(A, V)) > 1e-3


def test_t_post_without_pruning_is_the_dropped_diagonal_resolvent():
    A, V = matrix(9), draw(2, 9, 3)
    expected = chacal.resolvent(A, V, 0.7, "drop") / 0.3
    assert far(chacal.t_post(A, V, gamma=0.7), expected) < EXACT


@pytest.mark.parametrize("gamma", [1, 1.5, -0.1, float("nan")])
def test_gamma_out_of_range_is_named(gamma):
    A, V = matrix(3), draw(2, 3, 2)
    with pytest.raises(ValueError, match=rf"gamma is {gamma}.*\[0, 1\)"):
        chacal.resolvent(A, V, gamma)
    with pytest.raises(ValueError, match=r"(?s)gamma is tensor.*\[0, 1\)"):
        chacal.resolvent(A, V, torch.tensor([0.5, gamma]).double().reshape(2, 1, 1))


@pytest.mark.parametrize(
    "function",
    [
        lambda A, V: chacal.resolvent(A, V, 0.5),
        lambda A, V: chacal.blockwise(A, V, 0.5, 2),
        chacal.t_raw,
        chacal.t_post,
        chacal.t_pre,
    ],
)
def test_matrices_that_do_not_fit_are_named(function):
    A, V = matrix(4), draw(2, 4, 3)
    with pytest.raises(ValueError, match=r"A has shape \(2, 4, 3\).*n, n"):
        function(V, V)
    with pytest.raises(ValueError, match=r"A has shape \(4,\)"):
        function(A[0, 0], V)
    with pytest.raises(ValueError, match=r"V has shape \(2, 3, 3\).*4, d"):
        function(A, V[:, 1:])
    with pytest.raises(ValueError, match=r"V is torch.float32.*torch.float64"):
        function(A, V.float())
    with pytest.raises(ValueError, match=r"V is .* on meta.*on cpu"):
        function(A, V.to("meta"))


def test_unknown_readings_are_named():
    A, V = matrix(4), draw(2, 4, 3)
    with pytest.raises(ValueError, match=r"diagonal is 'skip'.*'keep', 'drop'"):
        chacal.resolvent(A, V, 0.5, "skip")
    for t in (chacal.t_post, chacal.t_pre):
        with pytest.raises(ValueError, match=r"prune is 'all'.*'both', 'outside', 'inside'"):
            t(A, V, 2, prune="all")
