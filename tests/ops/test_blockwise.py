"""Algorithm 1, on a given A and from q, k, v."""

import itertools

import oracles
import pytest
import torch
from cases import EXACT, LEAF_CROSSING, draw, draw_gamma, draw_qkv, far, leaves

import chacal

OPTIONS = list(
    itertools.product(
        ("first", "mean", "last"), ("sum", "mean"), ("both", "local", "residual"), ("rows", "mean")
    )
)
options = pytest.mark.parametrize(("rows", "columns", "branches", "values"), OPTIONS)


@pytest.fixture(scope="module")
def long_A():
    """The A of `draw_qkv(1, n=LEAF_CROSSING)`."""
    q, k, _ = draw_qkv(1, n=LEAF_CROSSING)
    return oracles.attention(q[0], k[0])


@options
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 3), (7, 1), (7, 3), (8, 4), (33, 5), (33, 32)])
def test_forward_is_algorithm_1(rows, columns, branches, values, n, m):
    q, k, v = draw_qkv(1, n=n, d_v=2)
    A = oracles.attention(q[0], k[0])
    expected = oracles.algorithm_1(A, v[0], 0.8, m, rows, columns, branches, values)
    assert far(chacal.blockwise(A, v[0], 0.8, m, rows, columns, branches, values), expected) < EXACT
    Y = chacal.block_resolvent_attention(
        q,
        k,
        v,
        gamma=0.8,
        block_size=m,
        rows=rows,
        columns=columns,
        branches=branches,
        values=values,
    )
    assert far(Y[0], expected) < EXACT


@options
@pytest.mark.parametrize("m", [43, 129])
def test_forward_across_tiles(rows, columns, branches, values, m, long_A):
    for d_v in (3, 5):
        q, k, v = draw_qkv(1, n=LEAF_CROSSING, d_v=d_v)
        expected = oracles.algorithm_1(long_A, v[0], 0.9, m, rows, columns, branches, values)
        Y = chacal.block_resolvent_attention(
            q,
            k,
            v,
            block_size=m,
            rows=rows,
            columns=columns,
            branches=branches,
            values=values,
        )
        assert far(Y[0], expected) < EXACT


@pytest.mark.parametrize("n", [1, 2, 7, 33])
@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 50])
def test_a_divisor_makes_blocks_of_n_over_it(n, divisor):
    q, k, v = draw_qkv(2, n=n)
    m = max(1, n // divisor)
    A = oracles.each(oracles.attention, q, k)
    expected = oracles.each(lambda A, v: oracles.algorithm_1(A, v, 0.9, m), A, v)
    assert far(chacal.block_resolvent_attention(q, k, v, divisor=divisor), expected) < EXACT


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [None, (), (3,), (3, 1, 1)])
def test_leading_dimensions_gamma_and_scale(leading, shape):
    gamma, each = draw_gamma(shape, leading)
    q, k, v = draw_qkv(*leading, n=23)
    Y = chacal.block_resolvent_attention(q, k, v, block_size=5, gamma=gamma, scale=0.9)

    def oracle(q, k, v, g):
        return oracles.algorithm_1(oracles.attention(q, k, scale=0.9), v, g, 5)

    assert far(Y, oracles.each(oracle, q, k, v, gamma=each)) < EXACT


@options
def test_gradcheck(rows, columns, branches, values):
    inputs = leaves(*draw_qkv(2, n=7, d=2, d_v=1), torch.tensor([0.4, 0.9]).double())

    def function(q, k, v, gamma):
        return chacal.block_resolvent_attention(
            q,
            k,
            v,
            gamma=gamma,
            block_size=3,
            rows=rows,
            columns=columns,
            branches=branches,
            values=values,
        )

    assert torch.autograd.gradcheck(function, inputs)


@options
@pytest.mark.parametrize("m", [13, 70])
def test_gradients_across_tiles(rows, columns, branches, values, m):
    for d_v in (3, 5):
        inputs = leaves(*draw_qkv(2, n=LEAF_CROSSING, d_v=d_v), torch.tensor([0.4, 0.9]).double())
        q, k, v, gamma = inputs
        weights = draw(2, LEAF_CROSSING, d_v, seed=9)
        ours = chacal.block_resolvent_attention(
            q,
            k,
            v,
            gamma=gamma,
            block_size=m,
            rows=rows,
            columns=columns,
            branches=branches,
            values=values,
        )
        # the algorithm on A in full, itself checked against the oracle above
        A = chacal.attention_weights(q, k)
        theirs = chacal.blockwise(A, v, gamma[:, None, None], m, rows, columns, branches, values)
        grads = torch.autograd.grad((ours * weights).sum(), inputs)
        expected = torch.autograd.grad((theirs * weights).sum(), inputs)
        for a, b in zip(grads, expected, strict=True):
            assert far(a, b) < EXACT * max(1, float(b.abs().max()))


@pytest.mark.parametrize("rows", ["first", "mean", "last"])
@pytest.mark.parametrize(("heads", "n", "m"), [(9, 449, 200), (1, 1100, 400)])
def test_many_tiles_and_many_pieces(rows, heads, n, m):
    # more scores than are held at once: by heads, then by rows
    inputs = leaves(*draw_qkv(heads, n=n, d_v=2))
    weights = draw(heads, n, 2, seed=9)
    ours = chacal.block_resolvent_attention(*inputs, block_size=m, rows=rows)
    q, k, v = inputs
    theirs = chacal.blockwise(chacal.attention_weights(q, k), v, 0.9, m, rows)
    assert far(ours, theirs) < EXACT
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))


@pytest.mark.parametrize("n", [1, 7, LEAF_CROSSING])
@pytest.mark.parametrize("rows", ["first", "mean", "last"])
def test_one_block_is_exact_chacal(n, rows):
    q, k, v = draw_qkv(2, n=n)
    exact = chacal.resolvent_attention(q, k, v)
    for size in ({"block_size": n}, {"block_size": n + 5}, {"divisor": 1}):
        assert far(chacal.block_resolvent_attention(q, k, v, rows=rows, **size), exact) < EXACT
    A = chacal.attention_weights(q, k)
    assert far(chacal.blockwise(A, v, 0.9, n, rows), exact) < EXACT


@pytest.mark.parametrize("rows", ["first", "mean", "last"])
@pytest.mark.parametrize("columns", ["sum", "mean"])
def test_local_and_residual_add_up_to_both(rows, columns):
    q, k, v = draw_qkv(2, n=33)
    both, local, residual = (
        chacal.block_resolvent_attention(
            q, k, v, block_size=5, rows=rows, columns=columns, branches=branches
        )
        for branches in ("both", "local", "residual")
    )
    assert far(local + residual, both) < EXACT
    assert float(local.abs().max()) > 0.1
    assert float(residual.abs().max()) > 1e-3
    assert bool((residual[:, :5] == 0).all())  # nothing lies before the first block


def test_gamma_zero_is_one_hop_within_and_one_across():
    q, k, v = draw_qkv(n=33)
    A = oracles.attention(q, k)
    same = torch.arange(33)[:, None] // 5 == torch.arange(33) // 5
    local = chacal.block_resolvent_attention(q, k, v, block_size=5, gamma=0, branches="local")
    assert far(local, torch.where(same, A, 0) @ v) < EXACT


@pytest.mark.parametrize("rows", ["first", "mean", "last"])
def test_column_sums_keep_the_mass_that_column_means_lose(rows):
    # γ = 0 and equal values: the residual is the attention that leaves the block
    q, k, v = draw_qkv(n=30)
    ones = torch.ones_like(v)
    kept, lost = (
        chacal.block_resolvent_attention(
            q, k, ones, block_size=5, gamma=0, rows=rows, columns=columns, branches="residual"
        )
        for columns in ("sum", "mean")
    )
    assert far(kept / 5, lost) < EXACT
    A = oracles.attention(q, k)
    left = torch.stack([A[t, : t // 5 * 5].sum() for t in range(30)])
    stands = {"first": left[::5], "last": left[4::5], "mean": left.reshape(6, 5).mean(1)}[rows]
    assert far(kept[::5, 0], stands) < EXACT


def test_a_chain_is_cut_at_the_border_of_a_block():
    # each token sees only the one before it; the residual knows only the block's first row
    n, m = 12, 4
    k = 300 * torch.eye(n, dtype=torch.float64)
    q = torch.eye(n, dtype=torch.float64).roll(-1, 1)
    q[0] = k[0]
    v = torch.zeros(n, 1, dtype=torch.float64)
    v[0] = 1
    Y = chacal.block_resolvent_attention(
        q, k, v, gamma=0.5, block_size=m, scale=1.0, values="rows"
    )[:, 0]
    within = [1, 1, 0.5, 0.25]
    # block 1's first row points into block 0, whose first value is 1: one hop of (1-γ); block 2's
    # takes two
    assert Y.tolist() == pytest.approx([*within, *[0.5] * 4, *[0.25] * 4])
    exact = chacal.resolvent_attention(q, k, v, gamma=0.5, scale=1.0)[:, 0]
    assert exact[-1].item() == pytest.approx(0.5**10)


def test_block_means_keep_the_values_that_first_rows_lose():
    # one value, in the middle of block 0: block 1 has it in part, or not at all
    n, m = 8, 4
    q, k, _ = draw_qkv(n=n)
    v = torch.zeros(n, 1, dtype=torch.float64)
    v[2] = 1
    lost, kept = (
        chacal.block_resolvent_attention(
            q, k, v, gamma=0, block_size=m, branches="residual", values=values
        )[m:, 0]
        for values in ("rows", "mean")
    )
    assert lost.tolist() == [0] * m
    seen = oracles.attention(q, k)[m, :m].sum()
    assert kept.tolist() == pytest.approx([float(seen) / m] * m)


@pytest.mark.parametrize("sizes", [{}, {"block_size": 2, "divisor": 3}])
def test_exactly_one_size(sizes):
    given = {"block_size": None, "divisor": None, **sizes}
    expected = "block_size is {block_size} and divisor is {divisor}.*exactly one".format(**given)
    with pytest.raises(ValueError, match=expected):
        chacal.block_resolvent_attention(*draw_qkv(n=3), **sizes)


@pytest.mark.parametrize("name", ["block_size", "divisor"])
@pytest.mark.parametrize("value", [0, -2, 1.5, True])
def test_bad_sizes_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}.*whole number of at least 1"):
        chacal.block_resolvent_attention(*draw_qkv(n=3), **{name: value})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rows", "'first', 'mean', 'last'"),
        ("columns", "'sum', 'mean'"),
        ("branches", "'both', 'local', 'residual'"),
        ("values", "'rows', 'mean'"),
    ],
)
def test_unknown_options_are_named(name, expected):
    q, k, v = draw_qkv(n=3)
    with pytest.raises(ValueError, match=f"{name} is 'median'.*{expected}"):
        chacal.block_resolvent_attention(q, k, v, block_size=2, **{name: "median"})
    with pytest.raises(ValueError, match=f"{name} is 'median'.*{expected}"):
        chacal.blockwise(oracles.attention(q, k), v, 0.9, 2, **{name: "median"})


def test_blockwise_names_a_bad_gamma_and_size():
    q, k, v = draw_qkv(n=3)
    A = oracles.attention(q, k)
    with pytest.raises(ValueError, match=r"gamma is 1\.0.*\[0, 1\)"):
        chacal.blockwise(A, v, 1.0, 2)
    with pytest.raises(ValueError, match=r"block_size is 0.*at least 1"):
        chacal.blockwise(A, v, 0.9, 0)


@pytest.mark.parametrize("n", [1, 6, 7, 9])
@pytest.mark.parametrize("branches", ["both", "local", "residual"])
@pytest.mark.parametrize("rows", ["first", "mean", "last"])
def test_without_gradients_the_outputs_are_the_same(n, branches, rows):
    q, k, v = draw_qkv(2, n=n)
    options = {"block_size": 3, "branches": branches, "rows": rows}
    with torch.no_grad():
        plain = chacal.block_resolvent_attention(q, k, v, **options)
    tracked = chacal.block_resolvent_attention(*leaves(q, k, v), **options)
    assert torch.equal(plain, tracked)


@pytest.mark.parametrize("wanted", ["v", "gamma"])
@pytest.mark.parametrize("shape", [(), (3, 1, 1)])
@pytest.mark.parametrize("branches", ["both", "local", "residual"])
def test_the_gradient_of_one_input_alone(wanted, shape, branches):
    """Of a γ that all heads share, too: against autograd through Algorithm 1 on the matrix."""
    q, k, v = draw_qkv(2, 3, n=8)
    gamma = torch.full(shape, 0.7, dtype=q.dtype)
    asked = {"v": v, "gamma": gamma}[wanted].requires_grad_()
    Y = chacal.block_resolvent_attention(
        q, k, v, gamma=gamma.squeeze(), block_size=3, branches=branches
    )
    dY = torch.randn_like(Y)
    heads = zip(q.flatten(0, 1), k.flatten(0, 1), strict=True)
    A = torch.stack([oracles.attention(*head) for head in heads]).unflatten(0, (2, 3))
    expected = chacal.blockwise(A, v, gamma, 3, branches=branches)
    torch.testing.assert_close(
        torch.autograd.grad(Y, asked, dY)[0], torch.autograd.grad(expected, asked, dY)[0]
    )
