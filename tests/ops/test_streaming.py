"""Exact ChaCAL from q, k, v: forward, gradients, and the shapes that γ may take."""

import oracles
import pytest
import torch
from cases import EXACT, LEAF_CROSSING, draw, draw_qkv, far, leaves

import chacal
from chacal.ops import streaming


def oracle(q, k, v, gamma, diagonal="keep", scale=None):
    return oracles.each(
        lambda q, k, v, g: oracles.resolvent(oracles.attention(q, k, scale=scale), v, g, diagonal),
        q, k, v, gamma=torch.as_tensor(gamma, dtype=torch.float64),
    )  # fmt: skip


def dense(q, k, v, gamma, diagonal="keep"):
    """The formula with A in full, for autograd to differentiate."""
    return chacal.resolvent(chacal.attention_weights(q, k), v, gamma, diagonal)


@pytest.mark.parametrize("n", [1, 2, 7, 33, 64, 65, LEAF_CROSSING])
@pytest.mark.parametrize("d_v", [3, 5])
@pytest.mark.parametrize("diagonal", ["keep", "drop"])
def test_forward(n, d_v, diagonal):
    q, k, v = draw_qkv(2, n=n, d_v=d_v)
    Y = chacal.resolvent_attention(q, k, v, diagonal=diagonal)
    assert far(Y, oracle(q, k, v, 0.9, diagonal)) < EXACT


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
@pytest.mark.parametrize(("heads", "n"), [(9, 449), (1, 1100)])
@pytest.mark.parametrize("d_v", [3, 2])
def test_many_tiles_and_many_pieces(diagonal, heads, n, d_v):
    # more scores than the plain path holds at once: it goes by heads, then by rows
    inputs = leaves(*draw_qkv(heads, n=n, d_v=d_v))
    weights = draw(heads, n, d_v, seed=9)
    ours = chacal.resolvent_attention(*inputs, diagonal=diagonal)
    theirs = dense(*inputs, 0.9, diagonal)
    assert far(ours, theirs) < EXACT
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))


@pytest.mark.parametrize("gamma", [0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("scale", [None, 0.0, 1.7, -0.4])
def test_forward_for_any_gamma_and_scale(gamma, scale):
    q, k, v = draw_qkv(2, n=9)
    for diagonal in ("keep", "drop"):
        Y = chacal.resolvent_attention(q, k, v, gamma=gamma, diagonal=diagonal, scale=scale)
        assert far(Y, oracle(q, k, v, gamma, diagonal, scale)) < EXACT


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3)])
def test_leading_dimensions_are_independent(leading):
    q, k, v = draw_qkv(*leading, n=9, d_v=2)
    Y = chacal.resolvent_attention(q, k, v)
    assert Y.shape == (*leading, 9, 2)
    assert far(Y, oracle(q, k, v, 0.9)) < EXACT


@pytest.mark.parametrize(
    ("leading", "shape"),
    [
        ((), ()),
        ((), (1,)),
        ((3,), ()),
        ((3,), (3,)),
        ((3,), (3, 1, 1)),
        ((2, 3), ()),
        ((2, 3), (1, 1)),
        ((2, 3), (3,)),
        ((2, 3), (3, 1, 1)),
        ((2, 3), (2, 1)),
        ((2, 3), (2, 3, 1, 1)),
        ((2, 2, 3), (2, 3)),
    ],
)
@pytest.mark.parametrize("n", [5, 70])
def test_gamma_broadcasts_over_heads_and_has_a_gradient(leading, shape, n):
    q, k, v = draw_qkv(*leading, n=n, d_v=2)
    gamma = (0.1 + 0.8 * torch.rand(shape, dtype=torch.float64)).requires_grad_()
    each = gamma[..., 0, 0] if gamma.ndim > 2 else gamma
    each = each.reshape(()) if each.numel() == 1 else each
    Y = chacal.resolvent_attention(q, k, v, gamma=gamma)
    assert far(Y, oracle(q, k, v, each.detach())) < EXACT
    weights = draw(*Y.shape)
    (ours,) = torch.autograd.grad((Y * weights).sum(), gamma)
    by_hand = dense(q, k, v, each.expand(leading)[..., None, None])
    (theirs,) = torch.autograd.grad((by_hand * weights).sum(), gamma)
    assert far(ours, theirs) < 1e-9


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("d_v", [2, 3])
def test_gradcheck(diagonal, n, d_v):
    inputs = leaves(*draw_qkv(2, n=n, d=2, d_v=d_v), torch.tensor([0.4, 0.9]).double())

    def function(q, k, v, gamma):
        return chacal.resolvent_attention(q, k, v, gamma=gamma, diagonal=diagonal)

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
@pytest.mark.parametrize("d_v", [3, 5])
@pytest.mark.parametrize("n", [65, LEAF_CROSSING, 200])
def test_gradients_across_tiles(diagonal, d_v, n):
    inputs = leaves(*draw_qkv(2, n=n, d_v=d_v), torch.tensor([0.4, 0.9]).double())
    q, k, v, gamma = inputs
    weights = draw(2, n, d_v, seed=9)
    ours = chacal.resolvent_attention(q, k, v, gamma=gamma, diagonal=diagonal)
    theirs = dense(q, k, v, gamma[:, None, None], diagonal)
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))


@pytest.mark.parametrize("text", ["chacal", "chacal,diagonal=drop", "delta", "block@100"])
@pytest.mark.parametrize("span", [0, 2 * 72 * 160])
def test_how_many_tiles_are_weighed_at_once_does_not_matter(text, span, monkeypatch):
    operator, inputs = chacal.parse_operator(text), leaves(*draw_qkv(2, n=430))
    weights = draw(2, 430, 3, seed=9)

    def results():
        Y = operator(*inputs)
        return Y, *torch.autograd.grad((Y * weights).sum(), inputs)

    expected = results()  # all at once; then each by itself, or a few
    monkeypatch.setattr(streaming, "SPAN", span)
    for a, b in zip(results(), expected, strict=True):
        assert far(a, b) < EXACT


@pytest.mark.parametrize("gamma", [0.01, streaming.LARGE, 0.9])
@pytest.mark.parametrize("n", [1, 64, LEAF_CROSSING])
@pytest.mark.parametrize("large", [0.0, 1.0], ids=["read off Z", "multiplied"])
def test_both_ways_to_h(large, n, gamma, monkeypatch):
    monkeypatch.setattr(streaming, "LARGE", large)
    q, k, v = draw_qkv(2, n=n)
    Y = chacal.resolvent_attention(q, k, v, gamma=gamma)
    assert far(Y, oracle(q, k, v, gamma)) < EXACT


def test_h_is_read_off_z_only_where_no_head_has_a_small_gamma(monkeypatch):
    q, k, v = draw_qkv(2, n=9)
    asked = []
    rows = streaming.Rows
    monkeypatch.setattr(
        streaming, "Rows", lambda *args, **kw: asked.append(kw["only_Z"]) or rows(*args, **kw)
    )
    for gamma in (torch.tensor([0.9, 0.3]), torch.tensor([0.9, 0.0]), 0.9, 0.0):
        chacal.resolvent_attention(q, k, v, gamma=gamma)
    chacal.resolvent_attention(q, k, v, gamma=0.9, diagonal="drop")
    assert asked == [True, False, True, False, False]


def test_gradients_of_only_some_inputs():
    for i in range(3):
        inputs = draw_qkv(2, n=70)
        alone = leaves(inputs[i])[0]
        some = [alone if j == i else x for j, x in enumerate(inputs)]
        all_ = leaves(*inputs)
        (ours,) = torch.autograd.grad(chacal.resolvent_attention(*some).square().sum(), alone)
        every = torch.autograd.grad(chacal.resolvent_attention(*all_).square().sum(), all_)
        assert far(ours, every[i]) == 0


@pytest.mark.parametrize("d_v", [4, 6])
def test_strides_do_not_matter(d_v):
    def transposed(x):  # (batch, n, heads, d) seen as (batch, heads, n, d), as projections give it
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    plain = leaves(*draw_qkv(2, 3, n=70, d=4, d_v=d_v))
    strided = leaves(*plain)
    Y = chacal.resolvent_attention(*plain)
    Y_strided = chacal.resolvent_attention(*map(transposed, strided))
    assert far(Y, Y_strided) < 1e-12
    # a sum hands the backward an expanded gradient, a transposed product a strided one
    for loss in (lambda Y: Y.sum(), lambda Y: (Y.transpose(1, 2).flatten(2) ** 2).sum()):
        ours = torch.autograd.grad(loss(Y), plain, retain_graph=True)
        theirs = torch.autograd.grad(loss(Y_strided), strided, retain_graph=True)
        for a, b in zip(ours, theirs, strict=True):
            assert far(a, b) < 1e-11


def test_one_key_for_all_heads():
    q, k, v = draw_qkv(3, n=70)
    shared = k[:1].expand(3, 70, 3)
    assert far(chacal.resolvent_attention(q, shared, v), oracle(q, shared, v, 0.9)) < EXACT


@pytest.mark.parametrize("n", [1, 9, LEAF_CROSSING])
def test_gamma_zero_is_ordinary_attention(n):
    q, k, v = draw_qkv(2, n=n)
    A = oracles.each(oracles.attention, q, k)
    for diagonal in ("keep", "drop"):
        assert far(chacal.resolvent_attention(q, k, v, gamma=0, diagonal=diagonal), A @ v) < EXACT


@pytest.mark.parametrize("n", [1, 9, LEAF_CROSSING])
def test_rows_sum_to_one(n):
    q, k, v = draw_qkv(2, n=n)
    ones = torch.ones_like(v)
    assert far(chacal.resolvent_attention(q, k, ones, gamma=0.95), ones) < EXACT


def test_a_chain_of_hops_is_followed_to_its_end():
    # each token sees only the one before it: n-1 hops lead to token 0, whose hops stay there
    n, gamma = 100, 0.9
    k = 300 * torch.eye(n, dtype=torch.float64)[None]
    q = torch.eye(n, dtype=torch.float64).roll(-1, 1)[None]
    q[0, 0] = k[0, 0]
    v = torch.zeros(1, n, 1, dtype=torch.float64)
    v[0, 0] = 1
    Y = chacal.resolvent_attention(q, k, v, gamma=gamma, scale=1.0)[0, :, 0]
    expected = torch.tensor([gamma ** max(0, t - 1) for t in range(n)], dtype=torch.float64)
    assert far(Y, expected) < EXACT


def test_unknown_diagonal_is_named():
    with pytest.raises(ValueError, match=r"diagonal is 'none'.*'keep', 'drop'"):
        chacal.resolvent_attention(*draw_qkv(n=3), diagonal="none")
