"""Packed sequences: the same as one by one, for every operator, gradients too."""

import pytest
import torch
from cases import CAUSAL, EXACT, LEAKY, draw, draw_qkv, far, leaves

import chacal

LENGTHS = (3, 17, 1, 9, 10, 17)


def pack(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths], dtype=dtype).cumsum(0, dtype=dtype)


@pytest.mark.parametrize("text", CAUSAL + LEAKY)
@pytest.mark.parametrize("leading", [(), (1, 2)])
def test_packed_equals_one_by_one(text, leading):
    operator = chacal.parse_operator(text)
    n = sum(LENGTHS)
    inputs, weights = draw_qkv(*leading, n=n, d_v=2), draw(*leading, n, 2, seed=8)
    packed, single = leaves(*inputs), leaves(*inputs)
    Y = operator(*packed, cu_seqlens=pack(LENGTHS))
    parts = [x.split(LENGTHS, -2) for x in single]
    expected = torch.cat([operator(*part) for part in zip(*parts, strict=True)], -2)
    assert far(Y, expected) < EXACT
    found = torch.autograd.grad((Y * weights).sum(), packed)
    for a, b in zip(found, torch.autograd.grad((expected * weights).sum(), single), strict=True):
        assert far(a, b) < EXACT


def test_a_gamma_per_head_and_empty_sequences():
    inputs = draw_qkv(1, 2, n=12)
    gamma = torch.tensor([0.2, 0.8], dtype=torch.float64, requires_grad=True)
    Y = chacal.resolvent_attention(*inputs, gamma=gamma, cu_seqlens=pack((0, 5, 0, 7), torch.int64))
    parts = [x.split((5, 7), -2) for x in inputs]
    expected = torch.cat(
        [chacal.resolvent_attention(*part, gamma=gamma) for part in zip(*parts, strict=True)], -2
    )
    assert far(Y, expected) < EXACT
    (found,) = torch.autograd.grad(Y.square().sum(), gamma)
    assert far(found, *torch.autograd.grad(expected.square().sum(), gamma)) < EXACT


def test_a_bad_token_stays_in_its_sequence():
    q, k, v = draw_qkv(n=12)
    bad = v.clone()
    bad[6] = torch.nan
    clean, spoiled = (
        chacal.resolvent_attention(q, k, x, cu_seqlens=pack((5, 7))) for x in (v, bad)
    )
    assert far(spoiled[:6], clean[:6]) < EXACT
    assert bool(spoiled[6:].isnan().all())


def test_one_long_sequence_does_not_pad_the_short_ones():
    from chacal.ops.packed import batches

    ends = pack((1000, *[7] * 100, *[8] * 100)).tolist()
    assert [tuple(index.shape) for index, _ in batches(ends, torch.device("cpu"))] == [
        (1, 1000),
        (200, 8),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([0, 12], "list; expected a tensor"),
        (torch.tensor([0.0, 12.0]), "float32; expected a tensor"),
        (torch.tensor([0, 5]), "holds 0, 5; expected numbers that rise from 0 to n = 12"),
        (torch.tensor([1, 12]), "holds 1, 12"),
        (torch.tensor([0, 7, 5, 12]), "holds 0, 7, 5, 12"),
        (torch.tensor([[0, 12]]), r"shape \(1, 2\)"),
        (torch.tensor(12), "no list"),
    ],
)
def test_what_is_refused(given, words):
    with pytest.raises(ValueError, match=f"cu_seqlens .*{words}"):
        chacal.resolvent_attention(*draw_qkv(n=12), cu_seqlens=given)


def test_a_mask_beside_it_is_refused():
    with pytest.raises(ValueError, match="mask and cu_seqlens"):
        chacal.resolvent_attention(
            *draw_qkv(2, n=12), cu_seqlens=pack((12,)), mask=torch.ones(2, 12, dtype=torch.bool)
        )
