"""The compiled library against float64, in every width of vectors that this processor has."""

import oracles
import pytest
import torch
from cases import LEAF_CROSSING, draw, draw_qkv, leaves, relative

import chacal
from chacal.native import resolvent

FLOAT32 = 1e-5
"""Norm-wise, outputs and gradients, against float64, as for plain PyTorch (test_precision.py)."""

pytestmark = pytest.mark.usefixtures("kind")


def with_gradients(inputs, gamma, dY, **options):
    """Y and the gradients of q, k, v and γ."""
    *inputs, gamma = leaves(*inputs, gamma)
    Y = chacal.resolvent_attention(*inputs, gamma=gamma, **options)
    return [Y, *torch.autograd.grad((Y * dY).sum(), [*inputs, gamma])]


def against_float64(inputs, gamma, dY, tolerance=FLOAT32, **options):
    ours = with_gradients(inputs, gamma, dY, **options)
    exact = with_gradients([x.double() for x in inputs], gamma.double(), dY.double(), **options)
    for a, b in zip(ours, exact, strict=True):
        a, b = a.detach(), b.detach()
        assert a.dtype == torch.float32
        # γ's gradient is a difference of two sums, which may be much larger
        far = tolerance if a.ndim > 1 else 3 * tolerance
        assert relative(a, b) < far if float(b.norm()) else float(a.norm()) < far


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
@pytest.mark.parametrize("n", [2, 7, 8, 33, 63, 64, 65, LEAF_CROSSING, 333])
@pytest.mark.parametrize(("d", "d_v"), [(3, 3), (1, 17), (24, 5), (64, 64)])
def test_outputs_and_gradients(diagonal, n, d, d_v):
    q, k, v = draw_qkv(3, n=n, d=d, d_v=d_v, dtype=torch.float32)
    gamma = torch.tensor([0.0, 0.5, 0.9])
    dY = draw(3, n, d_v, seed=4, dtype=torch.float32)
    against_float64([q / d**0.25, k / d**0.25, v], gamma, dY, diagonal=diagonal)


def test_one_token_passes_itself_on():
    q, k, v = draw_qkv(2, n=1, dtype=torch.float32)
    assert relative(chacal.resolvent_attention(q, k, v), v) < FLOAT32


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
def test_against_the_oracle(diagonal):
    q, k, v = draw_qkv(2, n=67, d_v=5)
    exact = oracles.each(
        lambda q, k, v: oracles.resolvent(oracles.attention(q, k), v, 0.9, diagonal), q, k, v
    )
    ours = chacal.resolvent_attention(q.float(), k.float(), v.float(), diagonal=diagonal)
    assert relative(ours, exact) < FLOAT32


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
@pytest.mark.parametrize("t", [0, 5, 63, 64, 70, 129])
def test_no_row_depends_on_a_later_token(diagonal, t):
    inputs = leaves(*draw_qkv(2, n=LEAF_CROSSING, dtype=torch.float32))
    Y = chacal.resolvent_attention(*inputs, diagonal=diagonal)
    for x in torch.autograd.grad(Y[:, t].sum(), inputs):
        assert (x[:, t + 1 :] == 0).all()
    later = [x.detach().clone() for x in inputs]
    for x in later:
        x[:, t + 1 :] = draw(*x[:, t + 1 :].shape, seed=7, dtype=torch.float32)
    again = chacal.resolvent_attention(*later, diagonal=diagonal)
    assert torch.equal(Y[:, : t + 1], again[:, : t + 1])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_bad_token_is_none_of_the_rows_before_it(value, which):
    inputs = draw_qkv(2, n=LEAF_CROSSING, dtype=torch.float32)
    before = resolvent.forward(*inputs, torch.tensor(0.9), 0.5, False)[0]
    inputs[which][0, 70] = value
    after = resolvent.forward(*inputs, torch.tensor(0.9), 0.5, False)[0]
    assert torch.equal(before[0, :70], after[0, :70])
    assert torch.equal(before[1], after[1])
    if value is torch.nan:
        seen = after[0, 70:] if which else after[0, 70]
        assert seen.isnan().all()


@pytest.mark.parametrize("payload", [0x7FC00000, 0x7FC00001, 0x7F800001])
def test_every_nan_stays_one(payload):
    q, k, v = draw_qkv(1, n=3, dtype=torch.float32)
    k[0, 1, 0] = torch.tensor(payload, dtype=torch.int32).view(torch.float32)
    Y = resolvent.forward(q, k, v, torch.tensor(0.9), 0.5, False)[0]
    assert Y[0, 1:].isnan().all()
    assert Y[0, 0].isfinite().all()


@pytest.mark.parametrize("sharp", [1, 30, 1000])
def test_scores_of_any_size(sharp):
    q, k, v = draw_qkv(2, n=LEAF_CROSSING, d=8, dtype=torch.float32)
    Y = chacal.resolvent_attention(sharp * q, k, v)
    exact = chacal.resolvent_attention(sharp * q.double(), k.double(), v.double())
    # a score of s is rounded by about s · 1e-7, and its weight by as much of itself
    assert relative(Y, exact) < max(FLOAT32, 1e-6 * sharp)


def test_sharp_rows_near_gamma_1():
    """Where one key has all the weight, it is 1 in the backward pass too, without rounding."""
    q, k, v = draw_qkv(2, n=LEAF_CROSSING, d=8, dtype=torch.float32)
    dY = draw(2, LEAF_CROSSING, 8, seed=4, dtype=torch.float32)
    inputs, gamma = [1000 * q, k, v], torch.tensor([0.99, 0.99])
    exact = with_gradients([x.double() for x in inputs], gamma.double(), dY.double())
    assert relative(with_gradients(inputs, gamma, dY)[3], exact[3]) < 5e-4


def test_gamma_near_1():
    q, k, v = draw_qkv(2, n=LEAF_CROSSING, d=8, dtype=torch.float32)
    dY = draw(2, LEAF_CROSSING, 8, seed=4, dtype=torch.float32)
    against_float64([q, k, v], torch.tensor([0.99, 0.999]), dY, 1e-2)


def test_heads_may_lie_anywhere():
    # (batch, n, heads, d), as a projection makes it, and a value for all heads
    x = draw(2, 70, 3, 12, seed=1, dtype=torch.float32)
    q, k, v = x[..., :5].transpose(1, 2), x[..., 5:10].transpose(1, 2), x[:, :, :1, 10:]
    v = v.transpose(1, 2).expand(2, 3, 70, 2)
    ours = chacal.resolvent_attention(q, k, v)
    assert torch.equal(ours, chacal.resolvent_attention(*(x.contiguous() for x in (q, k, v))))
    odd = q.mT.contiguous().mT  # rows that do not lie together
    assert torch.equal(ours, chacal.resolvent_attention(odd, k, v))
    negative = torch._neg_view(q)  # as .imag of a conjugate is
    assert torch.equal(
        chacal.resolvent_attention(negative, k, v), chacal.resolvent_attention(-q, k, v)
    )
    gamma = torch._neg_view(torch.tensor([-0.9, -0.5, -0.1]))
    assert torch.equal(
        chacal.resolvent_attention(q, k, v, gamma=gamma),
        chacal.resolvent_attention(q, k, v, gamma=torch.tensor([0.9, 0.5, 0.1])),
    )
    nothing = torch._efficientzerotensor(v.shape)  # no memory at all
    assert torch.equal(chacal.resolvent_attention(q, k, nothing), torch.zeros_like(ours))


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_share_heads(threads):
    inputs = draw_qkv(7, n=100, dtype=torch.float32)
    gamma, dY = torch.linspace(0, 0.9, 7), draw(7, 100, 3, seed=4, dtype=torch.float32)
    alone = with_gradients(inputs, gamma, dY)
    torch.set_num_threads(threads)
    try:
        assert all(map(torch.equal, alone, with_gradients(inputs, gamma, dY)))
    finally:
        torch.set_num_threads(1)


def test_it_is_what_an_operator_runs(monkeypatch):
    """Float32 on a CPU goes there, both ways; other dtypes, few tokens and few heads do not."""
    asked = []
    run = resolvent.run
    monkeypatch.setattr(
        resolvent, "run", lambda name, call, n: asked.append((name, n)) or run(name, call, n)
    )
    monkeypatch.setattr(resolvent, "LEAST", 24)
    for n, dtype in ((24, torch.float32), (24, torch.bfloat16), (23, torch.float32)):
        q, k, v = leaves(*draw_qkv(2, n=n, dtype=dtype))
        chacal.parse_operator("chacal")(q, k, v).sum().backward()
    chacal.resolvent_attention(*draw_qkv(2, n=24))
    assert asked == 2 * [("chacal_forward", 24), ("chacal_backward", 24)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert not resolvent.fits(draw(2, 24, 3, dtype=torch.float32))
    x = draw(3, 24, 3, dtype=torch.float32)
    assert resolvent.fits(x, x)
    assert not resolvent.fits(x, x.double())
    assert not resolvent.fits(x, torch.nn.Parameter(x))  # a subclass: what it holds is its own
    for name, asked in (("OMP_PROC_BIND", "true"), ("OMP_PLACES", "cores")):
        with monkeypatch.context() as m:
            m.setenv(name, asked)
            assert not resolvent.fits(x, x)


def test_the_pass_back_may_be_the_other_one(monkeypatch):
    """The number of threads may change between the two."""
    inputs, dY = draw_qkv(2, n=70, dtype=torch.float32), draw(2, 70, 3, dtype=torch.float32)
    exact = with_gradients([x.double() for x in inputs], torch.tensor(0.9).double(), dY.double())
    fits = resolvent.fits
    for first in (True, False):
        q, k, v = leaves(*inputs)
        monkeypatch.setattr(resolvent, "fits", fits if first else lambda *_: False)
        Y = chacal.resolvent_attention(q, k, v, gamma=0.9)
        monkeypatch.setattr(resolvent, "fits", (lambda *_: False) if first else fits)
        for a, b in zip(torch.autograd.grad((Y * dY).sum(), [q, k, v]), exact[1:4], strict=True):
            assert relative(a, b) < 3 * FLOAT32


def test_no_memory_is_said():
    resource = pytest.importorskip("resource")
    q = torch.zeros(1, 1, 1).expand(1, 1 << 22, 64)  # nothing but a number itself
    limits = resource.getrlimit(resource.RLIMIT_AS)
    place = q.data_ptr()
    views = [resolvent.view(q)] * 3
    call = resolvent.ForwardCall(*views, place, place, place, *q.shape, 64, 1.0, False)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, limits[1]))
    try:
        with pytest.raises(MemoryError, match="no memory for 4194304 tokens in chacal_forward"):
            resolvent.run("chacal_forward", call, q.shape[1])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("diagonal", ["keep", "drop"])
def test_plain_pytorch_beside_it_computes_the_same(diagonal, monkeypatch):
    inputs = draw_qkv(2, n=LEAF_CROSSING, d=8, dtype=torch.float32)
    dY = draw(2, LEAF_CROSSING, 8, seed=4, dtype=torch.float32)
    gamma = torch.tensor([0.5, 0.9])
    ours = with_gradients(inputs, gamma, dY, diagonal=diagonal)
    monkeypatch.setattr(resolvent, "fits", lambda *_: False)
    for a, b in zip(ours, with_gradients(inputs, gamma, dY, diagonal=diagonal), strict=True):
        assert relative(a, b) < 2 * FLOAT32
