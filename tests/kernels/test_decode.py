"""One token at a time equals all at once; the past may lie in a ring."""

import pytest
import torch
from cases import draw, relative

pytest.importorskip("triton", reason="the kernels need Triton: pip install chacal[gpu]")

from test_kernels import HALF, SINGLE, inputs, oracle

from chacal.kernels.configs import Config
from chacal.kernels.decode import decode


def generate(q, k, v, gamma, capacity, **options):
    """Outputs of all tokens, one after another."""
    B, h, n, d = q.shape
    keys = torch.full((B, k.shape[1], capacity, d), torch.nan, dtype=q.dtype, device=q.device)
    Z = torch.full((B, h, capacity, v.shape[-1]), torch.nan, dtype=q.dtype, device=q.device)
    outputs = []
    for t in range(n):
        keys[:, :, t % capacity] = k[:, :, t]
        lengths = torch.full((B,), t, dtype=torch.int32, device=q.device)
        token = slice(t, t + 1)
        Y = decode(
            q[:, :, token], v[:, :, token], gamma, keys, Z, lengths, scale=d**-0.5,
            config=Config(tile=4, warps=1), **options,
        )  # fmt: skip
        outputs.append(Y)
    return torch.cat(outputs, 2)


@pytest.mark.parametrize("drop", [False, True])
def test_exact(drop, device):
    q, k, v, gamma = inputs(21, d=20, d_v=17, heads=4, key_heads=2, batch=2, device=device)
    Y = generate(q, k, v, gamma, capacity=70, drop=drop)
    assert relative(Y.cpu(), oracle(q, k, v, gamma, drop=drop)) < SINGLE


@pytest.mark.parametrize("window", [1, 9])
def test_a_ring_of_the_window_is_enough(window, device):
    q, k, v, gamma = inputs(31, heads=1, key_heads=1, device=device)
    Y = generate(q, k, v, gamma, capacity=window, window=window)
    assert relative(Y.cpu(), oracle(q, k, v, gamma, window=window)) < SINGLE


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision(dtype, device):
    q, k, v, gamma = inputs(25, heads=1, key_heads=1, dtype=dtype, device=device)
    Y = generate(q, k, v, gamma, capacity=64)
    assert Y.dtype == dtype
    assert relative(Y.cpu(), oracle(q, k, v, gamma)) < HALF[dtype]


def test_sequences_of_different_length_in_one_call(device):
    q, k, v, gamma = inputs(12, heads=1, key_heads=1, batch=2, device=device)
    keys, Z = k.clone(), draw(2, 1, 12, 16, seed=9, dtype=torch.float32).to(device)
    lengths = torch.tensor([11, 4], dtype=torch.int32, device=device)
    rows = torch.stack([x[b, :, t] for x in (q, v) for b, t in ((0, 11), (1, 4))])
    q_t, v_t = rows.view(2, 2, 1, 1, 16)
    kept = Z.clone()
    both = decode(q_t, v_t, gamma, keys, Z, lengths, scale=0.25)
    for b, t in ((0, 11), (1, 4)):
        room = kept[b : b + 1].clone()
        alone = decode(
            q_t[b : b + 1], v_t[b : b + 1], gamma, keys[b : b + 1], room, lengths[b : b + 1],
            scale=0.25,
        )  # fmt: skip
        torch.testing.assert_close(both[b : b + 1], alone)
        torch.testing.assert_close(Z[b : b + 1], room)
        assert not torch.equal(room[:, :, t], kept[b : b + 1, :, t])
