"""Half and single precision, large logits, γ near 1, autocast, and buffers read before written."""

import pytest
import torch
from cases import CAUSAL, DECODABLE, LEAKY, RESOLVENTS, draw, draw_qkv, far, leaves, relative

import chacal

FLOAT32 = 1e-5
"""Norm-wise, outputs and gradients, against float64."""
FLOAT16 = 2**-11
BFLOAT16 = 2**-8
"""One rounding of the result: computed in float32, inputs and outputs are all that is half."""

ALL = CAUSAL + LEAKY


def value_and_grads(text, inputs, weights, **options):
    inputs = leaves(*inputs)
    Y = chacal.parse_operator(text)(*inputs, **options)
    return [Y.detach(), *torch.autograd.grad((Y * weights.to(Y.dtype)).sum(), inputs)]


def without_pruning(texts):
    """A rounded score may change which entries are the largest."""
    return [text for text in texts if "top_k" not in text]


@pytest.mark.parametrize("text", without_pruning(ALL))
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, FLOAT32), (torch.float16, FLOAT16), (torch.bfloat16, BFLOAT16)],
)
def test_precision(text, dtype, tolerance):
    inputs = draw_qkv(2, n=23, d=4, d_v=3, dtype=dtype)
    # numbers that every dtype holds exactly
    weights = draw(2, 23, 3, seed=8).sign()
    ours = value_and_grads(text, inputs, weights)
    exact = value_and_grads(text, [x.double() for x in inputs], weights)
    # below its smallest normal number a dtype is evenly spaced, and rounds by half of that
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for a, b in zip(ours, exact, strict=True):
        assert a.dtype == dtype
        if float(b.norm()):  # a row that sees only itself has no gradient of q
            assert relative(a, b) < tolerance + spacing / 2 * b.numel() ** 0.5 / float(b.norm())
        else:
            assert float(a.abs().max()) < tolerance


@pytest.mark.parametrize(
    "text",
    [
        "chacal",
        "chacal,diagonal=drop",
        "window@40",
        "pooled",
        "routed@16",
        "pattern",
        "pattern,offsets=squares",
        "block/2",
    ],
)
@pytest.mark.parametrize("d_v", [8, 5])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, FLOAT32), (torch.float16, FLOAT16), (torch.bfloat16, BFLOAT16)],
)
def test_precision_across_tiles(text, d_v, dtype, tolerance):
    inputs = draw_qkv(2, n=300, d=8, d_v=d_v, dtype=dtype)
    weights = draw(2, 300, d_v, seed=8).sign()
    ours = value_and_grads(text, inputs, weights)
    exact = value_and_grads(text, [x.double() for x in inputs], weights)
    for a, b in zip(ours, exact, strict=True):
        assert a.dtype == dtype
        assert relative(a, b) < tolerance


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize(
    ("dtype", "n"), [(torch.float32, 9), (torch.float32, 70), (torch.float16, 9)]
)
def test_logits_of_eighty_stay_finite(text, dtype, n):
    q, k, v = draw_qkv(2, n=n, d=4, d_v=3)
    k[:, 1] = -k[:, 0]
    q[:, 0] = k[:, 0]
    scale = 80 / float((q @ k.mT).abs().max())
    inputs = [x.to(dtype) for x in (q, k, v)]
    for x in value_and_grads(text, inputs, torch.ones_like(v), scale=scale):
        assert bool(x.isfinite().all())


@pytest.mark.parametrize("text", without_pruning(CAUSAL))
@pytest.mark.parametrize("n", [9, 70])
def test_large_logits_are_right_and_not_only_finite(text, n):
    q, k, v = draw_qkv(2, n=n, d=4, d_v=3)
    scale = 80 / float((q @ k.mT).abs().max())
    operator = chacal.parse_operator(text)
    inputs = [x.float() for x in (q, k, v)]
    exact = operator(*(x.double() for x in inputs), scale=scale)
    # a logit of 80 is itself known to 80 · 2⁻²⁴
    assert relative(operator(*inputs, scale=scale), exact) < 10 * FLOAT32


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_keys_give_even_weights(text, dtype):
    q, k, v = draw_qkv(2, n=9, d=4, d_v=3, dtype=dtype)
    k = k[:, :1].expand_as(k)
    values = value_and_grads(text, [q, k, v], torch.ones_like(v))
    assert all(bool(x.isfinite().all()) for x in values)
    zero = torch.zeros_like(q)
    even = chacal.parse_operator(text)(zero, zero, v)
    assert relative(values[0], even) < {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}[dtype]


@pytest.mark.parametrize("text", RESOLVENTS)
@pytest.mark.parametrize("n", [9, 130])
def test_gamma_close_to_one(text, n):
    q, k, v = draw_qkv(2, n=n, d=4, d_v=3, dtype=torch.float32)
    weights = draw(2, n, 3, seed=8)
    ours = value_and_grads(text, [q, k, v], weights, gamma=0.999)
    exact = value_and_grads(text, [x.double() for x in (q, k, v)], weights, gamma=0.999)
    for a, b in zip(ours, exact, strict=True):
        assert bool(a.isfinite().all())
        # the inverse magnifies a rounding by up to 1/(1-γ)
        assert relative(a, b) < FLOAT32 / (1 - 0.999)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "chacal",
            "chacal,diagonal=drop",
            "window@39",
            "window@64",
            "pooled@8",
            "pooled@16,near=9",
        ),
        *("routed@16", "pattern", "block@40", "block@40,rows=mean", "block@40,values=mean"),
    ],
)
@pytest.mark.parametrize("n", [40, 200])
def test_gamma_close_to_one_costs_no_more_digits_than_it_must(text, n):
    # with H as it is, all of it near v_0 / (1-γ), dq was wrong by up to a tenth
    q, k, v = draw_qkv(2, n=n, d=16, dtype=torch.float32)
    weights = draw(2, n, 16, seed=8)
    gamma = float(torch.tensor(0.999))  # as float32 has it
    ours = value_and_grads(text, [q / 2, k / 2, v], weights, gamma=gamma)
    exact = value_and_grads(text, [(q / 2).double(), (k / 2).double(), v.double()], weights,
                            gamma=gamma)  # fmt: skip
    for a, b in zip(ours, exact, strict=True):
        assert relative(a, b) < 5e-4


@pytest.mark.parametrize("text", ALL)
def test_autocast_does_not_reach_inside(text):
    inputs = draw_qkv(2, n=70, d=4, d_v=3, dtype=torch.float32)
    operator = chacal.parse_operator(text)
    Y = operator(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = operator(*inputs)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, Y)


@pytest.fixture
def poisoned_buffers():
    """Fresh memory holds NaN, so that reading it before writing shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert bool(torch.empty(3).isnan().all())
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("text", "n", "d_v"),
    [(text, 9, 2) for text in ALL]
    + [
        (text, 140, d_v)
        for text in (
            "chacal",
            "chacal,diagonal=drop",
            "window@40",
            "pooled",
            "routed@16",
            "pattern",
            "pattern,offsets=3+70",
            "block@70",
            "block/2",
        )
        for d_v in (3, 2)
    ],
)
def test_no_buffer_is_read_before_it_is_written(text, n, d_v, poisoned_buffers):
    inputs = draw_qkv(2, n=n, d_v=d_v)
    weights = draw(2, n, d_v, seed=8)
    mask = torch.ones(2, n, dtype=torch.bool)
    mask[1, :4] = mask[1, 6] = False
    for options in ({}, {"mask": mask}):
        values = value_and_grads(text, inputs, weights, **options)
        assert not any(bool(x.isnan().any()) for x in values)


@pytest.mark.parametrize("text", DECODABLE)
def test_no_decoding_buffer_is_read_before_it_is_written(text, poisoned_buffers):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, n=40, d_v=2)
    decoder = operator.decoder()
    parts = [decoder.extend(*(x[:, a : a + 4] for x in inputs)) for a in range(0, 40, 4)]
    assert far(torch.cat(parts, 1), operator(*inputs)) < 1e-10
