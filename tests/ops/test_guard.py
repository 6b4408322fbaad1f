"""A bad token, NaN, infinite or too large, is no business of the rows before it."""

import zlib

import pytest
import torch
from cases import CAUSAL, DECODABLE, draw, draw_qkv, far, leaves

import chacal
from chacal.ops.guard import In

BAD = {
    "nan": torch.nan,
    "inf": torch.inf,
    "-inf": -torch.inf,
    "1e25": 1e25,  # finite, but not its square
    "3e38": 3e38,
}

LONG = ["chacal", "window@40", "window@64,diagonal=drop", "pooled@16", "routed@16", "pattern",
        "block@48", "block/3,values=mean", "local@20", "bigbird@20", "chacal,top_k=9"]  # fmt: skip

PLACES = {"q": [0], "k": [1], "v": [2], "q and k": [0, 1], "all": [0, 1, 2]}

bad = pytest.mark.parametrize("bad", BAD)


def anywhere(text, which, bad, first, last):
    """A place from first to last, the same in every run."""
    return first + zlib.crc32(f"{text} {which} {bad}".encode()) % (last - first)


def spoil(inputs, which, bad, at):
    """The inputs with one bad token, in the first sequence only; one channel or all of them."""
    inputs = [x.clone() for x in inputs]
    for i in PLACES[which]:
        inputs[i][0, at, : 1 + at % 2] = BAD[bad]
    return inputs


def loss_of(Y, weights, at):
    """Of rows before the bad token, and of other sequences."""
    return (Y * weights)[0, :at].sum() + (Y * weights)[1:].sum()


def check(text, n, which, bad, at, **options):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, n=n, d_v=2, dtype=torch.float32)
    weights = draw(2, n, 2, seed=8, dtype=torch.float32)
    good, spoiled = leaves(*inputs), leaves(*spoil(inputs, which, bad, at))
    Y, Y_spoiled = operator(*good), operator(*spoiled)
    assert far(Y_spoiled[0, :at], Y[0, :at]) < 1e-5
    assert far(Y_spoiled[1], Y[1]) < 1e-5
    grads = torch.autograd.grad(loss_of(Y, weights, at), good)
    found = torch.autograd.grad(loss_of(Y_spoiled, weights, at), spoiled)
    for a, b in zip(found, grads, strict=True):
        size = 1 + float(b.abs().max())
        assert far(a, b) < 1e-4 * size  # from the bad token on, both are zero


@bad
@pytest.mark.parametrize("text", CAUSAL)
def test_rows_before_a_bad_token_are_as_without_it(text, bad):
    for which in PLACES:
        check(text, 13, which, bad, anywhere(text, which, bad, 1, 13))


@bad
@pytest.mark.parametrize("text", LONG)
def test_across_tiles(text, bad):
    for which in PLACES:
        check(text, 150, which, bad, anywhere(text, which, bad, 20, 150))


@bad
def test_heads_that_lie_apart(bad):
    # as a layer has them for one sequence: (1, n, h, d) transposed, which is no copy
    inputs = [draw(1, 40, 2, 4, seed=i, dtype=torch.float32).transpose(1, 2) for i in range(3)]
    expected = chacal.window_resolvent_attention(*inputs, window=8)
    for which in PLACES:
        spoiled = [x.mT.contiguous().mT for x in inputs]  # channels apart: nor is this one
        for i in PLACES[which]:
            spoiled[i][0, 1, 30] = BAD[bad]
        spoiled = leaves(*spoiled)
        Y = chacal.window_resolvent_attention(*spoiled, window=8)
        assert far(Y[0, :, :30], expected[0, :, :30]) < 1e-5
        assert far(Y[0, 0], expected[0, 0]) < 1e-5
        for grad in torch.autograd.grad(Y[0, :, :30].sum(), spoiled):
            assert bool(grad.isfinite().all())


def test_padding_and_a_gamma_per_head():
    q, k, v = draw_qkv(2, 3, n=20)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, :4] = False
    gamma = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    bad = q.clone()
    bad[0, 1, 15] = torch.nan
    Y, spoiled = (chacal.resolvent_attention(x, k, v, gamma=gamma, mask=mask) for x in (q, bad))
    assert far(spoiled[0, 1, :15], Y[0, 1, :15]) < 1e-12
    assert bool(spoiled[0, 1, 15:].isnan().all())
    others = torch.tensor([True, False, True])
    assert far(spoiled[0, others], Y[0, others]) < 1e-12
    (expected,) = torch.autograd.grad(Y[:, :, :15].sum(), gamma)
    (found,) = torch.autograd.grad(spoiled[:, :, :15].sum(), gamma)
    assert far(found, expected) < 1e-10


def test_values_whose_sum_alone_is_too_large():
    inputs = draw_qkv(n=9, dtype=torch.float32)
    inputs[2] = torch.full_like(inputs[2], 3e38)
    Y = chacal.resolvent_attention(*inputs, gamma=0.0)
    assert bool(((Y / 3e38 - 1).abs() < 1e-5).all())


def test_ordinary_numbers_are_not_watched_a_second_time():
    Y = chacal.resolvent_attention(*leaves(*draw_qkv(n=9)))
    assert not any(isinstance(node, In._backward_cls) for node in graph(Y.grad_fn))


def test_what_has_to_be_computed_again_is_let_go():
    inputs = leaves(*draw_qkv(n=9))
    inputs[0].data[5] = 1e12  # large enough to be watched
    Y = chacal.resolvent_attention(*inputs)
    Y.sum().backward(retain_graph=True)
    assert Y.grad_fn.next_functions  # the graph is still there, the gradient it passed on is not
    call = next(node for node in graph(Y.grad_fn) if isinstance(node, In._backward_cls)).call
    assert call.dY is None
    Y.sum().backward()


@pytest.mark.parametrize("text", ["local@4", "bigbird@2", "block@3"])
def test_a_result_may_be_written_to(text):
    inputs = leaves(*draw_qkv(2, n=9, dtype=torch.float32))
    inputs[2].data[0, 5] = 3e38  # finite forward, and gradients that have to be taken again
    Y = chacal.parse_operator(text)(*inputs)
    assert bool(Y[:, :5].isfinite().all())
    expected = torch.autograd.grad((Y[:, :5] * 3).sum(), inputs, retain_graph=True)
    Y.mul_(3)
    for a, b in zip(torch.autograd.grad(Y[:, :5].sum(), inputs), expected, strict=True):
        assert bool(a.isfinite().all())
        assert far(a, b) < 1e-5


def test_a_result_that_the_backward_needs_is_not_written_to_unnoticed():
    Y = chacal.resolvent_attention(*leaves(*draw_qkv(2, n=9)))
    Y.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Y.sum().backward()


def graph(node):
    """All nodes below one."""
    yield node
    for below, _ in node.next_functions:
        if below is not None:
            yield from graph(below)


@pytest.mark.parametrize("text", DECODABLE)
@pytest.mark.parametrize(("bad", "with_mask"), [(b, False) for b in BAD] + [("nan", True)])
def test_decoding(text, bad, with_mask):
    operator = chacal.parse_operator(text)
    good = draw_qkv(2, n=30, d_v=2, dtype=torch.float32)
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, :3] = not with_mask
    Y = operator(*good, mask=mask)
    for which in PLACES:
        at = anywhere(text, which, bad, 12, 30)
        inputs = spoil(good, which, bad, at)
        decoder = operator.decoder()
        found = torch.cat(
            [
                decoder.extend(*(x[:, part] for x in inputs), mask[:, part])
                for part in (slice(0, 11), slice(11, 30))
            ],
            1,
        )
        assert far(found[0, :at], Y[0, :at]) < 1e-5
        assert far(found[1], Y[1]) < 1e-5
        # and what is remembered of earlier tokens is right
        decoder.crop(at)
        again = decoder.extend(*(x[:, at:] for x in good), mask[:, at:])
        assert far(again, Y[:, at:]) < 1e-5
