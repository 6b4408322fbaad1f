"""Corners that once were wrong: refused calls, autocast, odd shapes of γ, huge sizes."""

import pytest
import torch
from cases import (
    CAUSAL,
    DECODABLE,
    EXACT,
    LEAF_CROSSING,
    LEAKY,
    draw,
    draw_qkv,
    extend,
    far,
    leaves,
)
from test_precision import value_and_grads

import chacal


@pytest.mark.parametrize("text", DECODABLE)
def test_decoding_under_autocast(text):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, n=40, d=4, d_v=3, dtype=torch.float32)
    Y = extend(operator.decoder(), inputs, [slice(0, 30), slice(30, 40)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = extend(operator.decoder(), inputs, [slice(0, 30), slice(30, 40)])
    assert torch.equal(inside, Y)


@pytest.mark.parametrize(
    "text",
    [
        t
        for t in CAUSAL
        if t.startswith(("chacal", "window", "pooled", "routed", "pattern")) and "top_k" not in t
    ],
)
def test_backward_under_autocast(text):
    inputs = draw_qkv(2, n=70, d=4, d_v=3, dtype=torch.float32)
    weights = draw(2, 70, 3, seed=8, dtype=torch.float32)
    outside = value_and_grads(text, inputs, weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = value_and_grads(text, inputs, weights)
    for a, b in zip(inside, outside, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "text",
    [
        "chacal",
        "chacal,diagonal=drop",
        "window@4",
        "pooled@2",
        "routed@2",
        "pattern",
        "block@3,branches=local",
    ],
)
def test_a_second_derivative_is_refused(text):
    q, k, v = leaves(*draw_qkv(n=5, d=2))
    # of the sum alone dY needs no gradient, and dq would be a constant without a word
    for loss in (torch.sum, lambda Y: Y.square().sum()):
        Y = chacal.parse_operator(text)(q, k, v)
        with pytest.raises(RuntimeError, match=r"create_graph=True, .*first derivatives only"):
            torch.autograd.grad(loss(Y), q, create_graph=True)
        torch.autograd.grad(loss(Y), q)


# the compiler itself reads .grad of what is no leaf, and makes an instance of Function
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("text", ["local@4", "bigbird@4", "chacal"])
def test_compiled_equals_not_compiled(text):
    operator = chacal.parse_operator(text)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: operator(*inputs), backend="eager")
    for n in (20, 23):  # the second with sizes that may change
        inputs = draw_qkv(2, n=n)
        ours, theirs = leaves(*inputs), leaves(*inputs)
        Y, Y_compiled = operator(*ours), compiled(*theirs)
        assert far(Y_compiled, Y) < EXACT
        Y.square().sum().backward()
        Y_compiled.square().sum().backward()
        for a, b in zip(theirs, ours, strict=True):
            assert far(a.grad, b.grad) < EXACT


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by jvp itself
@pytest.mark.parametrize(
    "text", ["chacal", "window@4", "pooled@2", "routed@2", "pattern", "block@3"]
)
def test_torch_func_is_refused_by_name(text):
    operator = chacal.parse_operator(text)
    q, k, v = draw_qkv(3, n=5, d=2)
    gamma = torch.full((4,), 0.5, dtype=torch.float64)
    for call in (
        lambda: torch.func.vmap(operator)(q, k, v),
        lambda: torch.func.vmap(lambda g: operator(q, k, v, gamma=g))(gamma),
        lambda: torch.func.grad(lambda q: operator(q, k, v).sum())(q),
        lambda: torch.func.jvp(lambda v: operator(q, k, v), (v,), (v,)),
    ):
        with pytest.raises(NotImplementedError, match=r"torch\.func .* leading dimensions"):
            call()


@pytest.mark.parametrize(
    "text", ["local@5", "window@5", "pooled@4", "pattern,offsets=1+5", "block@4"]
)
@pytest.mark.parametrize("with_mask", [False, True])
def test_a_refused_crop_changes_nothing(text, with_mask):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, n=204)
    mask = torch.ones(2, 204, dtype=torch.bool)
    if with_mask:
        mask[1, :197] = False  # its state has nothing to refuse
    Y = operator(*inputs, mask=mask)
    decoder = operator.decoder(rollback=8)
    extend(decoder, inputs, [slice(t, t + 4) for t in range(0, 200, 4)], mask)
    with pytest.raises(ValueError, match="length is"):
        decoder.crop(20)
    assert decoder.length == 200
    decoder.crop(199)
    assert far(extend(decoder, inputs, [slice(199, 204)], mask), Y[:, 199:]) < EXACT


def test_a_refused_call_changes_nothing():
    q, k, v = draw_qkv(2, 3, n=4)
    for bad in ({"gamma": 2.0}, {"scale": "x"}, {"mask": torch.ones(3)}):
        decoder = chacal.parse_operator("chacal").decoder()
        with pytest.raises(ValueError, match=f"{next(iter(bad))} is"):
            decoder.extend(q, k, v, **bad)
        assert decoder.length == 0
        decoder.extend(q[:1], k[:1], v[:1])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_gamma_of_any_rank(shape):
    operator = chacal.parse_operator("chacal")
    inputs = draw_qkv(n=6)
    gamma = torch.full(shape, 0.5, dtype=torch.float64)
    assert (
        far(operator.decoder().extend(*inputs, gamma=gamma), operator(*inputs, gamma=0.5)) < EXACT
    )


@pytest.mark.parametrize("text", ["pooled", "routed", "block/2", "chacal"])
def test_one_gamma_of_any_rank_with_padding(text):
    inputs = draw_qkv(3, n=6)
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = False
    gamma = torch.full((1, 1), 0.5, dtype=torch.float64)
    op = chacal.parse_operator(text)
    assert far(op(*inputs, gamma=gamma, mask=mask), op(*inputs, gamma=0.5, mask=mask)) < EXACT


@pytest.mark.parametrize("text", ["dense", "local@5"])
def test_decoders_without_a_gamma_refuse_one(text):
    with pytest.raises(ValueError, match=r"gamma"):
        chacal.parse_operator(text).decoder().extend(*draw_qkv(2, n=4), gamma=0.5)


def test_a_block_longer_than_the_sequence_costs_nothing():
    from test_memory import Watch

    inputs = draw_qkv(1, n=9)
    with Watch() as watch:
        Y = chacal.pooled_resolvent_attention(*inputs, block_size=1000)
        chacal.parse_operator("pooled@1000").decoder().extend(*inputs)
    assert far(Y, chacal.resolvent_attention(*inputs)) < EXACT
    assert watch.largest < 10_000


def test_gamma_that_rounds_to_one():
    inputs = draw_qkv(1, n=9, dtype=torch.float32)
    with pytest.raises(ValueError, match="gamma"):
        chacal.resolvent_attention(*inputs, gamma=1 - 1e-9)


def test_seeds_are_different():
    from chacal.ops.baselines import random_links

    a, _ = random_links(300, 4, 3, 1)
    b, _ = random_links(300, 4, 3, 1 + 2**24)
    assert (a != b).any()


def test_huge_seed():
    with pytest.raises(ValueError, match="seed is"):
        chacal.bigbird_attention(*draw_qkv(n=5), seed=2**64 + 1)


def test_decoder_width_and_dtype_change():
    q, k, v = draw_qkv(2, n=4, d=4)
    decoder = chacal.parse_operator("chacal").decoder()
    decoder.extend(q, k, v)
    with pytest.raises(ValueError, match="q"):
        decoder.extend(q[..., :2], k[..., :2], v)
    with pytest.raises(ValueError, match="v"):
        decoder.extend(q, k, v[..., :2])
    with pytest.raises(ValueError, match="dtype"):
        decoder.extend(q.float(), k.float(), v.float())


def test_attention_weights_names_bad_shapes():
    q, k, _ = draw_qkv(2, n=4)
    with pytest.raises(ValueError, match="k has shape"):
        chacal.attention_weights(q, k[..., :2])


@pytest.mark.parametrize("text", CAUSAL + LEAKY)
@pytest.mark.parametrize("leading", [(0,), (0, 2), (2, 0)])
@pytest.mark.parametrize(("with_mask", "d_v"), [(False, 2), (True, 2), (False, 3)])
def test_an_empty_batch_gives_an_empty_result_with_gradients(text, leading, with_mask, d_v):
    inputs = leaves(*draw_qkv(*leading, n=9, d_v=d_v))  # of width 3 there is a kernel for it
    mask = torch.ones(leading[0], 9, dtype=torch.bool) if with_mask else None
    Y = chacal.parse_operator(text)(*inputs, mask=mask)
    assert Y.shape == (*leading, 9, d_v)
    Y.sum().backward()
    assert all(x.grad.shape == x.shape for x in inputs)


@pytest.mark.parametrize("text", DECODABLE)
@pytest.mark.parametrize(("with_mask", "d_v"), [(False, 2), (True, 2), (False, 3)])
def test_decoding_an_empty_batch(text, with_mask, d_v):
    inputs = draw_qkv(0, 2, n=9, d_v=d_v)
    mask = torch.ones(0, 9, dtype=torch.bool) if with_mask else None
    decoder = chacal.parse_operator(text).decoder()
    parts = [slice(0, 5), slice(5, 6), slice(6, 9)]
    assert extend(decoder, inputs, parts, mask).shape == (0, 2, 9, d_v)
    decoder.crop(4)
    assert extend(decoder, inputs, [slice(4, 9)], mask).shape == (0, 2, 5, d_v)


@pytest.mark.parametrize("text", [*CAUSAL, *LEAKY])
def test_numbers_of_a_row_may_lie_apart(text):
    """A kernel of PyTorch takes them to lie side by side, unless its dispatcher is asked."""
    operator = chacal.parse_operator(text)
    inputs = [*draw_qkv(2, n=LEAF_CROSSING, d=8, d_v=8), draw(2, LEAF_CROSSING, 8, seed=3)]

    def run(*inputs):
        q, k, v, dY = (x.detach() for x in inputs)
        Y = operator(*(x.requires_grad_() for x in (q, k, v)))
        return Y, *torch.autograd.grad(Y, (q, k, v), dY)

    wanted = run(*inputs)
    apart = [x.mT.contiguous().mT for x in inputs]
    every_other = [torch.stack([x, x], -1).flatten(-2)[..., ::2] for x in inputs]
    for made in (apart, every_other):
        assert all(x.stride(-1) != 1 for x in made)
        for a, b in zip(run(*made), wanted, strict=True):
            assert far(a, b) < EXACT * max(1, b.abs().max())
