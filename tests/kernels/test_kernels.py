"""Exact and windowed kernels against the float64 oracle, and their gradients against float64."""

import itertools
import math

import pytest
import torch
from cases import draw, relative

import chacal

pytest.importorskip("triton", reason="the kernels need Triton: pip install chacal[gpu]")

import oracles

from chacal.kernels.configs import Config
from chacal.kernels.resolvent import Call, backward, forward
from chacal.ops.cards import TRITON

SINGLE = 1e-5
"""Float32 kernels against float64, relative."""
HALF = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Z, W and products are stored with 11 and 8 bits, and γ = 0.9 adds up ten of them."""


def inputs(n, d=16, d_v=16, heads=2, key_heads=2, batch=1, dtype=torch.float32, device="cpu"):
    q = draw(batch, heads, n, d, seed=1, dtype=dtype)
    k = draw(batch, key_heads, n, d, seed=2, dtype=dtype)
    v = draw(batch, key_heads, n, d_v, seed=3, dtype=dtype)
    gamma = torch.linspace(0.3, 0.9, heads)
    return [x.to(device) for x in (q, k, v, gamma)]


def oracle(q, k, v, gamma, drop=False, window=None):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    visible = oracles.causal if window is None else oracles.within(window)

    def one(q, k, v, gamma):
        A = oracles.attention(q, k, visible)
        return oracles.resolvent(A, v, gamma, "drop" if drop else "keep")

    return oracles.each(one, *(x.cpu() for x in (q, k, v)), gamma=gamma.cpu())


def plain_gradients(q, k, v, gamma, dY, drop=False, window=None, dtype=torch.float64):
    """By the plain twins, which tests/ops holds to finite differences."""
    leaves = [x.detach().cpu().to(dtype).requires_grad_() for x in (q, k, v, gamma)]
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in leaves[1:3])
    diagonal = "drop" if drop else "keep"
    if window is None:
        Y = chacal.resolvent_attention(leaves[0], k, v, gamma=leaves[3], diagonal=diagonal)
    else:
        Y = chacal.window_resolvent_attention(
            leaves[0], k, v, gamma=leaves[3], diagonal=diagonal, window=window
        )
    return torch.autograd.grad(Y, leaves, dY.cpu().to(dtype))


def call_of(q, drop=False, window=None, **options):
    return Call(1 / math.sqrt(q.shape[-1]), drop, window, **options)


def attend(q, k, v, gamma, drop=False, window=None, packed=None):
    """The kernels as the operators call them, with gradients."""
    return TRITON(q, k, v, gamma, packed, 1 / math.sqrt(q.shape[-1]), drop, window)


CASES = [
    pytest.param({"n": 77, "d": 24, "d_v": 20}, {}, id="ragged"),
    pytest.param({"n": 1}, {}, id="one token"),
    pytest.param({"n": 64, "heads": 4, "key_heads": 2}, {}, id="grouped"),
    pytest.param({"n": 69}, {"drop": True}, id="drop"),
    pytest.param({"n": 70}, {"window": 5}, id="window"),
    pytest.param({"n": 105, "heads": 1, "key_heads": 1}, {"window": 40}, id="window over tiles"),
    pytest.param({"n": 68, "heads": 1, "key_heads": 1}, {"window": 33, "drop": True}, id="both"),
    pytest.param({"n": 33, "d": 256, "d_v": 130, "heads": 1, "key_heads": 1}, {}, id="wide"),
    pytest.param({"n": 35, "batch": 2}, {}, id="batch"),
]


@pytest.mark.parametrize(("shape", "options"), CASES)
def test_outputs_and_gradients(shape, options, device, poison):
    q, k, v, gamma = (x.requires_grad_() for x in inputs(**shape, device=device))
    Y = attend(q, k, v, gamma, **options)
    assert relative(Y.cpu(), oracle(q, k, v, gamma, **options)) < SINGLE
    dY = draw(*Y.shape, seed=4, dtype=torch.float32).to(device)
    grads = torch.autograd.grad(Y, (q, k, v, gamma), dY)
    wanted = plain_gradients(q, k, v, gamma, dY, **options)
    for name, grad, right in zip("qkvγ", grads, wanted, strict=True):
        # of one token alone, q, k and γ have none
        assert (grad.cpu() - right).norm() < SINGLE * max(1, right.norm()), name


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision(dtype, device):
    q, k, v, gamma = (x.requires_grad_() for x in inputs(45, dtype=dtype, device=device))
    Y = attend(q, k, v, gamma)
    assert Y.dtype == dtype
    assert relative(Y.cpu(), oracle(q, k, v, gamma)) < HALF[dtype]
    dY = draw(*Y.shape, seed=4, dtype=dtype).to(device)
    grads = torch.autograd.grad(Y, (q, k, v, gamma), dY)
    wanted = plain_gradients(q, k, v, gamma, dY)
    for name, grad, right in zip("qkvγ", grads, wanted, strict=True):
        assert relative(grad.cpu(), right) < HALF[dtype], name


def test_near_one_the_gradients_keep_their_digits(device):
    # all rows of Z are close to v_0 / (1-γ) there, and dA - W·H cancels it
    q, k, v, _ = inputs(40, heads=1, key_heads=1, device=device)
    gamma = torch.tensor([1 - 2**-10], device=device)
    leaves = [x.requires_grad_() for x in (q, k, v + 5)]
    Y = attend(*leaves, gamma)
    dY = draw(*Y.shape, seed=4, dtype=torch.float32).to(device)
    grads = torch.autograd.grad(Y, leaves, dY)
    wanted = plain_gradients(*leaves, gamma, dY)
    plain = plain_gradients(*leaves, gamma, dY, dtype=torch.float32)
    for name, grad, twin, right in zip("qkv", grads, plain, wanted, strict=False):
        assert relative(grad.cpu(), right) < 3 * relative(twin, right) + 1e-6, name


@pytest.mark.parametrize("tile", [32, 64, 128])
def test_tiles_of_any_size(tile, device):
    q, k, v, gamma = inputs(130, heads=1, key_heads=1, device=device)
    Y, _, lse = forward(q, k, v, gamma, call_of(q, config=Config(tile=tile, warps=4)))
    assert relative(Y.cpu(), oracle(q, k, v, gamma)) < SINGLE
    S = (q.double() @ k.double().mT / 4).masked_fill(
        torch.ones(130, 130, device=device).triu(1).bool(), -torch.inf
    )
    assert (lse - S.logsumexp(-1)).abs().max() < 1e-5


def test_channels_in_pieces(device, poison):
    # as wide heads of float32 need it; 40 and 33 channels are padded to 64
    leaves = [x.requires_grad_() for x in inputs(50, d=40, d_v=33, heads=1, key_heads=1)]
    q, k, v, gamma = (x.detach().to(device) for x in leaves)
    call = call_of(q, config=Config(tile=16, warps=4, columns=32, depth=16))
    Y, Z, lse = forward(q, k, v, gamma, call)
    assert relative(Y.cpu(), oracle(*leaves)) < SINGLE
    dY = draw(*Y.shape, seed=4, dtype=torch.float32).to(device)
    grads = backward(dY, q, k, v, gamma, Y, Z, lse, call)
    wanted = plain_gradients(*leaves, dY)
    for name, grad, right in zip("qkv", grads, wanted, strict=False):
        assert relative(grad.cpu(), right) < SINGLE, name


# of keys that a row does not see, and that are masked then
@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")
def test_a_row_may_see_nothing_for_long_and_then_only_low_scores(device):
    # of 32 keys before the window, nothing; then scores near -200
    q, k, v, gamma = inputs(90, heads=1, key_heads=1, device=device)
    q, k = q / 8 + 14, k / 8 - 14
    options = {"window": 40}
    Y = attend(q, k, v, gamma, **options)
    assert relative(Y.cpu(), oracle(q, k, v, gamma, **options)) < 10 * SINGLE


def test_heads_beside_channels_are_read_in_place(device):
    # (batch, n, heads, d) as models have it
    q, k, v, gamma = inputs(40, heads=4, key_heads=2, batch=2, device=device)
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not moved[0].is_contiguous()
    call = call_of(q)
    assert torch.equal(forward(*moved, gamma, call)[0], forward(q, k, v, gamma, call)[0])
    apart = [x.mT.contiguous().mT for x in (q, k, v)]  # channels that do not lie side by side
    assert torch.equal(forward(*apart, gamma, call)[0], forward(q, k, v, gamma, call)[0])


def test_offsets_past_two_billion(device):
    # memory that is asked for and hardly touched costs nothing
    apart = 2**31 + 64
    room = torch.empty(apart + 40 * 16, dtype=torch.float16, device=device)
    far = room.as_strided((2, 1, 40, 16), (apart, 16, 16, 1))
    q, k, v, gamma = inputs(40, heads=1, key_heads=1, batch=2, dtype=torch.float16, device=device)
    far.copy_(v)
    call = call_of(q)
    assert torch.equal(forward(q, k, far, gamma, call)[0], forward(q, k, v, gamma, call)[0])


PACKED = [0, 1, 34, 34, 98, 110]  # one token, a ragged tile, none, two whole tiles, and a few


@pytest.mark.parametrize("options", [{}, {"window": 6}, {"drop": True}], ids=str)
def test_packed_sequences_are_as_one_by_one(options, device, poison):
    q, k, v, gamma = inputs(PACKED[-1], heads=2, key_heads=1, device=device)
    leaves = [x.requires_grad_() for x in (q, k, v, gamma)]
    cu = torch.tensor(PACKED, dtype=torch.int32, device=device)
    Y = attend(*leaves, **options, packed=cu)
    dY = draw(*Y.shape, seed=4, dtype=torch.float32).to(device)
    grads = torch.autograd.grad(Y, leaves, dY)
    alone = torch.cat(
        [oracle(*(x[:, :, a:b] for x in (q, k, v)), gamma, **options)
         for a, b in itertools.pairwise(PACKED) if b > a], 2,
    )  # fmt: skip
    assert relative(Y.cpu(), alone) < SINGLE
    wanted = [torch.zeros_like(x, dtype=torch.float64, device="cpu") for x in leaves]
    for a, b in itertools.pairwise(PACKED):
        if b > a:
            part = [x[:, :, a:b] for x in (q, k, v)]
            some = plain_gradients(*part, gamma, dY[:, :, a:b], **options)
            for total, grad in zip(wanted[:3], some[:3], strict=True):
                total[:, :, a:b] += grad
            wanted[3] += some[3]
    for name, grad, right in zip("qkvγ", grads, wanted, strict=True):
        assert relative(grad.cpu(), right) < SINGLE, name
