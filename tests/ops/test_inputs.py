"""What every operator refuses, by name, and what it does with padding."""

import math

import pytest
import torch
from cases import CAUSAL, LEAKY, RESOLVENTS, draw, draw_qkv, far, leaves

import chacal
from chacal.ops.inputs import check_gamma

ALL = CAUSAL + LEAKY
every = pytest.mark.parametrize("text", ["dense", "local@4", "bigbird@3", *RESOLVENTS])


def call(text, *args, **options):
    return chacal.parse_operator(text)(*args, **options)


@every
def test_bad_tensors_are_named(text):
    q, k, v = draw_qkv(2, n=5, d_v=2)
    for bad, name, message in [
        ((q[0, 0], k, v), "q", r"shape \(3,\).*n >= 1"),
        ((q, k[0, 0], v), "k", r"shape \(3,\)"),
        ((q, k, v[0, 0]), "v", r"shape \(2,\)"),
        ((q[:, :0], k[:, :0], v[:, :0]), "q", r"shape \(2, 0, 3\).*n >= 1"),
        ((q[..., :0], k[..., :0], v), "q", r"shape \(2, 5, 0\).*d >= 1"),
        ((q, k, v[..., :0]), "v", r"shape \(2, 5, 0\)"),
        ((q, k[..., :2], v), "k", r"shape \(2, 5, 2\).*\(2, 5, 3\)"),
        ((q, k[:, :4], v), "k", r"shape \(2, 4, 3\).*\(2, 5, 3\)"),
        ((q, k[:1], v), "k", r"shape \(1, 5, 3\).*\(2, 5, 3\)"),
        ((q, k[0], v), "k", r"shape \(5, 3\).*\(2, 5, 3\)"),
        ((q, k, v[:, :4]), "v", r"shape \(2, 4, 2\).*\(2, 5\)"),
        ((q, k, v[0]), "v", r"shape \(5, 2\).*\(2, 5\)"),
        ((q.long(), k.long(), v.long()), "q", "dtype torch.int64.*floating"),
        ((q, k.long(), v), "k", "dtype torch.int64.*floating"),
        ((q, k.float(), v), "k", "dtype torch.float32 and q has torch.float64.*one dtype"),
        ((q, k, v.bfloat16()), "v", "dtype torch.bfloat16 and q has torch.float64"),
        ((q, k.to("meta"), v), "k", "device meta and q on cpu.*one device"),
        ((q, k, v.to("meta")), "v", "device meta and q on cpu"),
        ((q.tolist(), k, v), "q", "list.*Tensor"),
        ((q, k, None), "v", "NoneType.*Tensor"),
    ]:
        with pytest.raises(ValueError, match=f"^{name} (has|is) .*{message}"):
            call(text, *bad)


@every
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "1", True, torch.tensor(1.0)])
def test_a_bad_scale_is_named(text, scale):
    shown = "tensor" if isinstance(scale, torch.Tensor) else repr(scale)
    with pytest.raises(ValueError, match=f"scale is {shown}.*finite number"):
        call(text, *draw_qkv(n=3), scale=scale)


@every
def test_a_bad_mask_is_named(text):
    inputs = draw_qkv(2, 3, n=5)
    for mask, message in [
        (torch.ones(2, 5), "mask is torch.float32.*boolean"),
        (torch.ones(2, 5, dtype=torch.long), "mask is torch.int64.*boolean"),
        ([[True] * 5] * 2, "mask is list.*boolean"),
        (torch.ones(2, 4, dtype=torch.bool), r"mask has shape \(2, 4\).*\(2, 5\)"),
        (torch.ones(5, dtype=torch.bool), r"mask has shape \(5,\).*\(2, 5\)"),
        (torch.ones(2, 3, 5, dtype=torch.bool), r"mask has shape \(2, 3, 5\).*\(2, 5\)"),
        (torch.ones(2, 5, dtype=torch.bool, device="meta"), "mask is on device meta.*cpu"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(text, *inputs, mask=mask)
    with pytest.raises(ValueError, match=r"mask has shape \(1, 5\).*\(5,\)"):
        call(text, *(x[0, 0] for x in inputs), mask=torch.ones(1, 5, dtype=torch.bool))


@pytest.mark.parametrize("text", RESOLVENTS)
def test_a_bad_gamma_is_named(text):
    inputs = draw_qkv(2, 3, n=5)
    for gamma in (1, 1.0, 1.5, -0.1, float("nan"), float("inf"), "0.5", True):
        with pytest.raises(ValueError, match=rf"gamma is {gamma!r}.*\[0, 1\)"):
            call(text, *inputs, gamma=gamma)
    for gamma, message in [
        (torch.tensor(1.0), r"gamma holds 1; .*\[0, 1\)"),
        (torch.tensor([0.5, -0.25, 0.5]), r"gamma holds 0.5, -0.25, 0.5; .*\[0, 1\)"),
        (torch.tensor([0.5, float("nan"), 0.5]), r"gamma holds 0.5, nan, 0.5; .*\[0, 1\)"),
        (torch.tensor([0, 0, 0]), "gamma has dtype torch.int64.*floating"),
        (torch.full((2,), 0.5), r"gamma has shape \(2,\).*\(2, 3\)"),
        (torch.full((3, 5, 3), 0.5), r"gamma has shape \(3, 5, 3\).*\(2, 3\)"),
        (torch.full((4, 2, 3), 0.5), r"gamma has shape \(4, 2, 3\).*\(2, 3\)"),
        (torch.full((3,), 0.5, device="meta"), "gamma is on device meta.*cpu"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(text, *inputs, gamma=gamma)


def test_gamma_is_not_read_where_that_costs(monkeypatch):
    # a meta tensor has no values: whoever asks for them gets an error, as an accelerator waits
    q = torch.empty(2, 3, 5, 4, device="meta")
    gamma = torch.empty(3, device="meta")
    assert check_gamma(gamma, q) is gamma
    assert check_gamma(0.5, q).device.type == "meta"
    for text in ("chacal", "chacal,top_k=2", "window@2", "pooled@2", "pattern", "block@2"):
        assert call(text, q, q, q, gamma=gamma).shape == q.shape
    monkeypatch.setenv("CHACAL_CHECK", "1")
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        check_gamma(gamma, q)
    # on the CPU a look is free
    monkeypatch.delenv("CHACAL_CHECK")
    with pytest.raises(ValueError, match="gamma holds 2"):
        check_gamma(torch.tensor(2.0), torch.zeros(5, 4))


def test_a_compiled_graph_does_not_read_gamma():
    q = torch.zeros(2, 3, 5, 4)
    compiled = torch.compile(check_gamma, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.full((3,), 0.5), q), torch.full((3,), 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma_is_below_1_in_the_dtype_that_counts(dtype):
    q = torch.zeros(5, 4, dtype=dtype)
    below = 1 - torch.finfo(dtype).eps / 2
    half_way = 1 - torch.finfo(torch.float32).eps / 4
    for gamma in (0, 0.5, below, half_way, math.nextafter(half_way, 0), math.nextafter(1.0, 0)):
        if bool(torch.tensor(gamma, dtype=dtype) < 1):
            assert float(check_gamma(gamma, q)) == float(torch.tensor(gamma, dtype=dtype))
        else:
            with pytest.raises(ValueError, match="gamma is"):
                check_gamma(gamma, q)


# Padding

MASKS = {
    "none": "111111111",
    "left": "000111111",
    "right": "111111100",
    "both sides": "001111100",
    "holes": "101101011",
    "one token": "000010000",
    "all": "000000000",
}


def masks(repeat: int = 1) -> torch.Tensor:
    rows = [[c == "1" for c in text for _ in range(repeat)] for text in MASKS.values()]
    return torch.tensor(rows)


def check_padding(text, inputs, mask, tolerance, **options):
    """Outputs and gradients of real tokens are those without padding, and zero elsewhere."""
    weights = draw(*inputs[2].shape, seed=8)
    poisoned = [x.clone() for x in inputs]
    for x in poisoned:
        x.transpose(1, -2)[~mask] = torch.nan
    poisoned = leaves(*poisoned)
    Y = call(text, *poisoned, mask=mask, **options)
    grads = torch.autograd.grad((Y * weights).sum(), poisoned)
    for x in (Y, *grads):
        assert bool((x.transpose(1, -2)[~mask] == 0).all())
    for i, real in enumerate(mask):
        if real.any():
            alone = leaves(*(x[i : i + 1][..., real, :] for x in inputs))
            Y_alone = call(text, *alone, **options)
            weighted = (Y_alone * weights[i : i + 1][..., real, :]).sum()
            assert far(Y[i : i + 1][..., real, :], Y_alone) < tolerance
            for a, b in zip(grads, torch.autograd.grad(weighted, alone), strict=True):
                assert far(a[i : i + 1][..., real, :], b) < tolerance


@pytest.mark.parametrize("text", ALL)
def test_padding_changes_no_real_token(text):
    check_padding(text, draw_qkv(7, 2, n=9, d_v=2), masks(), 1e-12)


@pytest.mark.parametrize(
    "text",
    ["chacal", "chacal,diagonal=drop", "window@40", "pooled", "routed", "pattern", "block/2"],
)
@pytest.mark.parametrize("d_v", [2, 3])
def test_padding_across_tiles(text, d_v):
    check_padding(text, draw_qkv(7, 1, n=135, d_v=d_v), masks(15), 1e-10)


@pytest.mark.parametrize("text", RESOLVENTS)
@pytest.mark.parametrize("shape", [(2,), (2, 1, 1), (7, 1), (7, 2), (1, 1), ()])
def test_padding_with_a_gamma_per_head_or_sequence(text, shape):
    inputs, mask = draw_qkv(7, 2, n=9, d_v=2), masks()
    gamma = 0.1 + 0.8 * torch.rand(shape, dtype=torch.float64)
    each = (gamma[..., 0, 0] if gamma.ndim > 2 else gamma).expand(7, 2)
    Y = call(text, *inputs, mask=mask, gamma=gamma)
    for i, real in enumerate(mask):
        if real.any():
            alone = (x[i][:, real] for x in inputs)
            assert far(Y[i][:, real], call(text, *alone, gamma=each[i])) < 1e-12


@pytest.mark.parametrize(
    "text", ["chacal", "pooled", "routed", "block/2", "block@3,rows=mean", "dense"]
)
def test_a_mask_without_heads_or_batch(text):
    q, k, v = draw_qkv(7, n=9, d_v=2)
    mask = masks()
    Y = call(text, q, k, v, mask=mask)
    expected = call(text, q[:, None], k[:, None], v[:, None], mask=mask)[:, 0]
    assert far(Y, expected) < 1e-12
    for i in range(7):
        assert far(call(text, q[i], k[i], v[i], mask=mask[i]), expected[i]) < 1e-12


@pytest.mark.parametrize("text", ["pooled", "routed", "block/2"])
def test_a_gamma_per_sequence_without_heads(text):
    inputs, mask = draw_qkv(7, n=9), masks()
    gamma = torch.linspace(0.1, 0.9, 7, dtype=torch.float64)
    Y = call(text, *inputs, mask=mask, gamma=gamma)
    for i, real in enumerate(mask):
        if real.any():
            alone = (x[i][real] for x in inputs)
            assert far(Y[i][real], call(text, *alone, gamma=float(gamma[i]))) < 1e-12


@pytest.mark.parametrize("text", ALL)
def test_a_mask_of_real_tokens_only_changes_nothing(text):
    inputs = draw_qkv(2, 3, n=9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    assert far(call(text, *inputs, mask=mask), call(text, *inputs)) < 1e-12
