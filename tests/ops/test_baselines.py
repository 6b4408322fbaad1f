"""The baselines: dense, local and BigBird attention."""

import oracles
import pytest
import torch
from cases import EXACT, LEAF_CROSSING, draw, draw_qkv, far, leaves

import chacal
from chacal.ops.baselines import random_links


def linked(n: int, window: int, links: int, seed: int) -> oracles.Visible:
    """A row sees its window and the links that BigBird says it has."""
    index, real = random_links(n, window, links, seed)
    targets = [set(index[t][real[t]].tolist()) for t in range(n)]
    return lambda t, s: oracles.within(window)(t, s) or s in targets[t]


@pytest.mark.parametrize("n", [1, 2, 7, 33, LEAF_CROSSING])
@pytest.mark.parametrize("d_v", [3, 5])
@pytest.mark.parametrize("scale", [None, 0.4])
def test_dense(n, d_v, scale):
    q, k, v = draw_qkv(2, n=n, d_v=d_v)
    A = oracles.each(lambda q, k: oracles.attention(q, k, scale=scale), q, k)
    assert far(chacal.dense_attention(q, k, v, scale=scale), A @ v) < EXACT


@pytest.mark.parametrize("n", [1, 2, 7, 33, LEAF_CROSSING])
@pytest.mark.parametrize("window", [1, 2, 5, 32, 200])
def test_local(n, window):
    q, k, v = draw_qkv(2, n=n, d_v=2)
    A = oracles.each(lambda q, k: oracles.attention(q, k, oracles.within(window), 0.4), q, k)
    assert far(chacal.local_attention(q, k, v, window=window, scale=0.4), A @ v) < EXACT


@pytest.mark.parametrize("n", [1, 2, 7, 33, LEAF_CROSSING])
@pytest.mark.parametrize(("window", "links", "seed"), [
    (1, 1, 0), (2, 3, 0), (5, 3, 7), (5, 0, 0), (32, 2, 1), (200, 3, 0),
])  # fmt: skip
def test_bigbird(n, window, links, seed):
    q, k, v = draw_qkv(2, n=n, d_v=2)
    visible = linked(n, window, links, seed)
    A = oracles.each(lambda q, k: oracles.attention(q, k, visible, 0.4), q, k)
    Y = chacal.bigbird_attention(q, k, v, window=window, links=links, seed=seed, scale=0.4)
    assert far(Y, A @ v) < EXACT


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_leading_dimensions_are_independent(leading):
    q, k, v = draw_qkv(*leading, n=20, d_v=2)
    visible = {
        chacal.dense_attention: oracles.causal,
        chacal.local_attention: oracles.within(4),
        chacal.bigbird_attention: linked(20, 4, 3, 0),
    }
    for function, sees in visible.items():
        options = {} if function is chacal.dense_attention else {"window": 4}
        A = oracles.each(lambda q, k, sees=sees: oracles.attention(q, k, sees), q, k)
        assert far(function(q, k, v, **options), A @ v) < EXACT


def test_gradcheck():
    inputs = leaves(*draw_qkv(2, n=7, d=2, d_v=3))
    assert torch.autograd.gradcheck(chacal.dense_attention, inputs)
    for window in (1, 3, 9):
        for function in (chacal.local_attention, chacal.bigbird_attention):
            assert torch.autograd.gradcheck(
                lambda q, k, v, f=function, w=window: f(q, k, v, window=w), inputs
            )


def test_rows_sum_to_one():
    q, k, v = draw_qkv(2, n=40)
    ones = torch.ones_like(v)
    assert far(chacal.dense_attention(q, k, ones), ones) < EXACT
    assert far(chacal.local_attention(q, k, ones, window=3), ones) < EXACT
    assert far(chacal.bigbird_attention(q, k, ones, window=3), ones) < EXACT


def test_a_window_of_n_is_dense():
    q, k, v = draw_qkv(2, n=40)
    dense = chacal.dense_attention(q, k, v)
    assert far(chacal.local_attention(q, k, v, window=40), dense) < EXACT
    assert far(chacal.bigbird_attention(q, k, v, window=40), dense) < EXACT
    assert far(chacal.local_attention(q, k, v, window=39), dense) > 1e-9


@pytest.mark.parametrize(("window", "links", "seed"), [(1, 1, 0), (4, 3, 0), (4, 3, 1), (9, 7, 5)])
def test_links_point_before_the_window_and_do_not_repeat(window, links, seed):
    index, real = random_links(300, window, links, seed)
    for t in range(300):
        mine = index[t][real[t]].tolist()
        assert all(0 <= s <= t - window for s in mine)
        assert len(set(mine)) == len(mine)
        assert bool(mine) == (t >= window)
    assert real[50:].mean() > 0.8  # repeats are rare where there is room


def test_links_depend_on_the_seed_and_neither_on_n_nor_on_the_call():
    index, real = random_links(300, 4, 3, 0)
    again, _ = random_links(300, 4, 3, 0)
    shorter, shorter_real = random_links(100, 4, 3, 0)
    other, _ = random_links(300, 4, 3, 1)
    assert (index == again).all()
    assert (index[:100] == shorter).all()
    assert (real[:100] == shorter_real).all()
    assert (index != other).mean() > 0.8


def test_links_are_spread_over_the_past():
    index, real = random_links(2000, 1, 2, 0)
    t = torch.arange(2000)[:, None].expand(2000, 2)
    share = (torch.from_numpy(index) + 0.5) / t.clamp(min=1)
    counts = torch.histc(share[torch.from_numpy(real) & (t > 100)], 10, 0, 1)
    assert counts.min() > 0.8 * counts.mean()


@pytest.mark.parametrize(("name", "value", "least"), [
    ("window", 0, 1), ("links", -1, 0), ("links", 1.5, 0), ("seed", -1, 0), ("seed", None, 0),
])  # fmt: skip
def test_bad_numbers_are_named(name, value, least):
    with pytest.raises(ValueError, match=f"{name} is {value}.*whole number of at least {least}"):
        chacal.bigbird_attention(*draw_qkv(n=3), **{name: value})


def test_gradients_of_the_links_reach_their_targets():
    n, window = 60, 3
    q, k, v = draw_qkv(n=n)
    v = leaves(v)[0]
    weights = draw(3)
    visible = linked(n, window, 2, 0)
    Y = chacal.bigbird_attention(q, k, v, window=window, links=2)
    for t in (5, 30, 59):
        grad = torch.autograd.grad((Y[t] * weights).sum(), v, retain_graph=True)[0]
        assert [bool(g.any()) for g in grad] == [visible(t, s) for s in range(n)]
