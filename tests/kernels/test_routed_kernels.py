"""Rows that choose blocks of keys, by kernels, against the float64 oracle and the plain twin."""

import pytest
import torch
from cases import draw, relative

import chacal

pytest.importorskip("triton", reason="the kernels need Triton: pip install chacal[gpu]")

import oracles
from test_kernels import HALF, SINGLE, inputs

from chacal.kernels.lists import chosen_blocks, rows_of_blocks
from chacal.ops.routed import TRITON_ROUTED


def attend(q, k, v, gamma, block, near=1, routes=1, parts=1, score="mean"):
    return TRITON_ROUTED(q, k, v, gamma, q.shape[-1] ** -0.5, block, near, routes, parts, score)


def oracle(q, k, v, gamma, block, near=1, routes=1, parts=1, score="mean"):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))

    def one(q, k, v, gamma):
        A = oracles.routed_matrix(q, k, block, near, routes, parts, score)
        return oracles.resolvent(A, v, gamma)

    return oracles.each(one, *(x.detach().cpu() for x in (q, k, v)), gamma=gamma.detach().cpu())


def plain_gradients(q, k, v, gamma, dY, block, near=1, routes=1, parts=1, score="mean"):
    leaves = [x.detach().cpu().double().requires_grad_() for x in (q, k, v, gamma)]
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in leaves[1:3])
    Y = chacal.routed_resolvent_attention(
        leaves[0], k, v, gamma=leaves[3], block_size=block, near=near, routes=routes, parts=parts,
        score=score,
    )  # fmt: skip
    return torch.autograd.grad(Y, leaves, dY.cpu().double())


# the interpreter's tiles have 32 rows
CASES = [
    pytest.param({"n": 141, "d": 20, "d_v": 17}, {"block": 23}, id="ragged"),
    pytest.param({"n": 137, "heads": 1, "key_heads": 1}, {"block": 40, "routes": 2}, id="wide"),
    pytest.param(
        {"n": 133, "heads": 1, "key_heads": 1}, {"block": 7, "near": 0, "routes": 3}, id="small"
    ),
    pytest.param(
        {"n": 99, "heads": 2, "key_heads": 1, "batch": 2},
        {"block": 16, "near": 0, "parts": 3, "score": "bound"},
        id="grouped",
    ),
    pytest.param({"n": 70}, {"block": 50, "near": 3}, id="all near"),
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
        assert relative(grad.cpu(), right) < SINGLE, name


def test_half_precision_chooses_in_float32(device):
    q, k, v, gamma = inputs(75, dtype=torch.bfloat16, device=device)
    leaves = [x.requires_grad_() for x in (q, k, v, gamma)]
    Y = attend(*leaves, block=12)
    assert relative(Y.cpu(), oracle(*leaves, block=12)) < HALF[torch.bfloat16]
    dY = draw(*Y.shape, seed=4, dtype=torch.bfloat16).to(device)
    wanted = plain_gradients(*leaves, dY, block=12)
    for name, grad, right in zip("qkvγ", torch.autograd.grad(Y, leaves, dY), wanted, strict=True):
        assert relative(grad.cpu(), right) < HALF[torch.bfloat16], name


def test_lists_by_hand():
    chosen = torch.tensor([-1, -1, -1, -1, 0, 0, 1, 0, 2, 0, -1], dtype=torch.int32)
    chosen = chosen.view(1, 1, 11, 1)  # blocks of 2, tiles of 4
    blocks = chosen_blocks(chosen, tile=4, block=2)
    # the second tile sees the first anyway; the third leaves out block 2, in the tile before it
    assert blocks[0, 0, :, 0].tolist() == [0, 0, 1]
    assert blocks[0, 0, 2, 1] == 0
    rows, begins = rows_of_blocks(chosen, block=2)
    assert begins.tolist() == [[[0, 4, 5, 6, 6, 6, 6]]]
    assert rows[0, 0, :6].tolist() == [9, 7, 5, 4, 6, 8]


def test_pytorch_accepts_the_operator():
    q, k, v, gamma = (x.requires_grad_() for x in inputs(20))
    torch.library.opcheck(
        TRITON_ROUTED.op, (q, k, v, gamma[None].detach(), 0.25, 5, 1, 2, 1, "mean")
    )
