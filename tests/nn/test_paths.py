"""Hops and paths against the resolvent's row, and against all paths listed one by one."""

import itertools

import numpy as np
import pytest
import torch

from chacal.nn.paths import Ways, by_hops, by_length
from chacal.ops.resolvent import resolvent


def weights(n, sharp=2.0):
    generator = torch.Generator().manual_seed(n)
    S = sharp * torch.randn(n, n, generator=generator, dtype=torch.float64)
    mask = torch.ones(n, n).tril() == 0
    return torch.softmax(S.masked_fill(mask, -torch.inf), -1)


def row_of(A, gamma, row):
    return resolvent(A, torch.eye(len(A), dtype=A.dtype), gamma)[row].numpy()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("row", [0, 1, 6, 12])
def test_hops_add_up_to_the_resolvent(gamma, row):
    A = weights(13)
    found = by_hops(A.numpy(), gamma, row)
    np.testing.assert_allclose(found.sum(0), row_of(A, gamma, row), atol=1e-5)
    assert abs(found.sum() - 1) < 1e-5


@pytest.mark.parametrize(("gamma", "error"), [(0.0, 1e-12), (0.5, 1e-12), (0.9, 0.9**64)])
def test_lengths_add_up_to_the_resolvent_but_for_the_longest(gamma, error):
    A = weights(11)
    found = by_length(A.numpy(), gamma, 10)
    np.testing.assert_allclose(found.sum(0), row_of(A, gamma, 10), atol=error)
    power = np.linalg.matrix_power(A.numpy(), 2)[10]
    if gamma:
        np.testing.assert_allclose(found[1], (1 - gamma) * gamma * power, rtol=1e-12)
    else:
        assert len(found) == 1


def test_a_chain_of_three_hops_is_three_hops_long():
    # 3 -> 2 -> 1 -> 0, and 0 points at itself
    A = np.diag(np.ones(3), -1)
    A[0, 0] = 1
    assert by_hops(A, 0.9, 3)[:, 0] == pytest.approx([0, 0, 0, 0.81])
    assert by_length(A, 0.9, 3)[:5, 0] == pytest.approx([0, 0, 0.081, 0.0729, 0.06561])
    (path, *_) = Ways(A, 0.9, 3).of(3)
    assert path.tokens == (3, 2, 1, 0)
    assert path.weights == (1, 1, 1)
    assert path.share == pytest.approx(0.81)


def all_paths(A, gamma, row):
    """Every path and its share, by enumeration."""
    stay = [1 / (1 - gamma * A[i, i]) for i in range(len(A))]
    found = {(row,): (1 - gamma) * A[row, row] * stay[row]}
    for length in range(1, row + 1):
        for between in itertools.combinations(range(row), length):
            tokens = (row, *reversed(between))
            share = (1 - gamma) * gamma ** (length - 1) * stay[tokens[-1]]
            for a, b in itertools.pairwise(tokens):
                share *= stay[a] * A[a, b]
            found[tokens] = share
    return found


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("row", [0, 3, 8])
@pytest.mark.parametrize("count", [1, 4, 30])
def test_the_Ways_are_those_of_a_list_of_all(gamma, row, count):
    A = weights(9).numpy()
    every = all_paths(A, gamma, row)
    assert sum(every.values()) == pytest.approx(1)
    best = sorted((s for s in every.values() if s > 0), reverse=True)[:count]
    found = Ways(A, gamma, count).of(row)
    assert [path.share for path in found] == pytest.approx(best)
    for path in found:
        assert every[path.tokens] == pytest.approx(path.share)
        steps = itertools.pairwise(path.tokens)
        assert path.weights == pytest.approx([A[a, b] for a, b in steps])
        for hop, flow in enumerate(path.flows, 1):
            begun = path.tokens[: hop + 1]
            same = sum(share for p, share in every.items() if p[: hop + 1] == begun)
            assert flow == pytest.approx(same)
