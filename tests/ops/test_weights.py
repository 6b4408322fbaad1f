"""A itself, and its pruning."""

import oracles
import pytest
import torch
from cases import EXACT, draw, draw_qkv, far

import chacal


@pytest.mark.parametrize("n", [1, 2, 7, 33])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_weights_are_the_row_softmax(n, scale):
    q, k, _ = draw_qkv(2, n=n)
    A = chacal.attention_weights(q, k, scale)
    assert far(A, oracles.each(lambda q, k: oracles.attention(q, k, scale=scale), q, k)) < EXACT
    assert bool((A.triu(1) == 0).all())
    assert far(A.sum(-1), torch.ones(2, n, dtype=torch.float64)) < EXACT


@pytest.mark.parametrize("count", [1, 2, 5, 7, 100])
def test_top_k_keeps_the_largest_of_a_row(count):
    q, k, _ = draw_qkv(2, n=7)
    A = oracles.each(oracles.attention, q, k)
    pruned = chacal.top_k(A, count)
    assert far(pruned, oracles.each(lambda A: oracles.top_k(A, count), A)) < EXACT
    assert (pruned > 0).sum(-1).tolist() == [[min(t + 1, count) for t in range(7)]] * 2
    assert far(pruned.sum(-1), torch.ones(2, 7, dtype=torch.float64)) < EXACT


def test_top_k_prefers_the_most_recent_of_equals():
    A = torch.tensor([[0.2, 0.3, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25], [1.0, 0, 0, 0], [0, 0, 0, 0]])
    assert chacal.top_k(A, 1).tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]
    two = chacal.top_k(A, 3)
    assert torch.allclose(two[0], torch.tensor([0.0, 0.375, 0.25, 0.375]))
    assert two[2:].tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("count", [1, 3])
def test_top_k_is_differentiable_where_it_keeps(count):
    # no two entries of a row are equal, so that a small step changes no choice
    A = draw(5, 5).softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda A: chacal.top_k(A, count), (A,))


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None])
def test_top_k_names_a_bad_count(count):
    with pytest.raises(ValueError, match=f"top_k is {count}.*whole number"):
        chacal.top_k(torch.eye(3), count)
