"""Query heads of a group share keys and values: as if these were repeated, to the bit."""

import pytest
import torch
from cases import CAUSAL, DECODABLE, draw_qkv, leaves

import chacal

HEADS, KEY_HEADS, N = 6, 2, 20


def grouped(*leading, n=N):
    q = draw_qkv(*leading, HEADS, n=n, d_v=2)[0]
    return [q, *draw_qkv(*leading, KEY_HEADS, n=n, d_v=2)[1:]]


def repeated(q, k, v):
    return [q, *(x.repeat_interleave(HEADS // KEY_HEADS, -3) for x in (k, v))]


@pytest.mark.parametrize("text", CAUSAL)
def test_as_if_keys_were_repeated(text):
    operator = chacal.parse_operator(text)
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[1, :7] = False
    cases = [
        (grouped(2), {}),
        (grouped(2), {"mask": mask}),
        (grouped(), {"cu_seqlens": torch.tensor([0, 9, 12, 20])}),
    ]
    for inputs, options in cases:
        ours, theirs = leaves(*inputs), leaves(*inputs)
        Y = operator(*ours, **options)
        expected = operator(*repeated(*theirs), **options)
        assert torch.equal(Y, expected)
        weights = torch.linspace(-1, 1, Y.numel(), dtype=Y.dtype).view_as(Y)
        found = torch.autograd.grad((Y * weights).sum(), ours)
        for a, b in zip(
            found, torch.autograd.grad((expected * weights).sum(), theirs), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("text", DECODABLE)
def test_a_decoder_takes_them_and_keeps_keys_once(text):
    operator = chacal.parse_operator(text)
    inputs = grouped(2)
    ours, theirs = operator.decoder(), operator.decoder()
    theirs.share_keys(HEADS // KEY_HEADS)
    for part in (slice(0, 8), slice(8, 9), slice(9, 20)):
        some = [x[:, :, part] for x in inputs]
        assert torch.equal(ours.extend(*some), theirs.extend(*repeated(*some)))
    assert ours.nbytes == theirs.nbytes


def test_bytes_per_token_are_those_of_the_guide():
    # SmolLM2-135M: 9 heads, 3 of keys, 64 wide; docs/transformers.md has these figures
    q, k, v = torch.randn(1, 9, 100, 64), *(torch.randn(1, 3, 100, 64) for _ in range(2))
    decoder, fixed = chacal.Resolvent().decoder(), chacal.Resolvent().fixed_decoder(100)
    for one in (decoder, fixed):
        one.extend(q, k, v)
    assert decoder.nbytes == 100 * 3072
    assert fixed.nbytes == 100 * 3072 + 8  # and a length
    apart = chacal.Resolvent().decoder()
    apart.extend(q, *(x.repeat_interleave(3, 1) for x in (k, v)))
    assert apart.nbytes == 100 * 4608


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 6, 5, 3), (2, 4, 5, 3), (2, 4, 5, 3)),
        ((2, 6, 5, 3), (1, 6, 5, 3), (1, 6, 5, 3)),
        ((2, 6, 5, 3), (2, 12, 5, 3), (2, 12, 5, 3)),
        ((2, 6, 5, 3), (2, 2, 5, 3), (2, 6, 5, 3)),
        ((2, 6, 5, 3), (2, 0, 5, 3), (2, 0, 5, 3)),
    ],
)
def test_heads_that_do_not_go_together_are_refused(q, k, v):
    with pytest.raises(ValueError, match=r"(k|v) has shape .*; expected"):
        chacal.resolvent_attention(*(torch.zeros(shape) for shape in (q, k, v)))


def test_a_batch_is_no_group_of_heads():
    q, k = torch.zeros(4, 5, 3), torch.zeros(2, 5, 3)
    with pytest.raises(ValueError, match="k has shape"):
        chacal.resolvent_attention(q, k, k, mask=torch.ones(4, 5, dtype=torch.bool))


def test_a_decoder_keeps_to_its_groups():
    decoder = chacal.Resolvent().decoder()
    decoder.extend(*repeated(*grouped(2)))
    with pytest.raises(ValueError, match="keys of 20 tokens are kept; expected an empty decoder"):
        decoder.extend(*grouped(2))
