"""DeltaFormer against its loop, in values and every gradient, and through β too."""

import itertools
import math

import oracles
import pytest
import torch
from cases import EXACT, LEAF_CROSSING, draw, draw_qkv, extend, far, leaves

import chacal
from chacal.ops.delta import READS

reads = pytest.mark.parametrize("read", READS)


def draw_beta(*shape: int) -> torch.Tensor:
    """A number in [-1, 1] for every token."""
    return draw(*shape, seed=4).tanh()


def dense(q, k, v, beta, read):
    """(I + βA')⁻¹ in full, for autograd to differentiate."""
    n, d = q.shape[-2:]
    asks = q if read == "queries" else k
    S = (asks @ k.mT / math.sqrt(d)).masked_fill(~torch.ones(n, n).tril(-1).bool(), -torch.inf)
    strict = torch.cat([torch.zeros_like(S[..., :1, :]), S[..., 1:, :].softmax(-1)], -2)
    M = torch.eye(n, dtype=q.dtype) + beta.unsqueeze(-1) * strict
    return chacal.attention_weights(q, k) @ torch.linalg.inv(M) @ v


@reads
@pytest.mark.parametrize("n", [1, 2, 7, 33, 64, 65, LEAF_CROSSING])
@pytest.mark.parametrize("d_v", [3, 2])
def test_forward(read, n, d_v):
    q, k, v = draw_qkv(2, n=n, d_v=d_v)
    beta = draw_beta(2, n)
    Y = chacal.delta_attention(q, k, v, beta=beta, read=read)
    expected = oracles.each(lambda *x: oracles.delta(*x, read=read), q, k, v, beta.unsqueeze(-1))
    assert far(Y, expected) < EXACT


def test_the_first_token_keeps_its_value_and_the_second_takes_the_first_away():
    q, k, v = draw_qkv(n=2)
    Y = chacal.delta_attention(q, k, v, beta=torch.tensor([0.3, 0.5]).double())
    A = chacal.attention_weights(q, k)
    assert far(Y, A @ torch.stack([v[0], v[1] - 0.5 * v[0]])) < EXACT


@reads
def test_no_beta_is_ordinary_attention_and_none_is_one(read):
    q, k, v = draw_qkv(2, 3, n=20)
    nothing = chacal.delta_attention(q, k, v, beta=0.0, read=read)
    assert far(nothing, chacal.dense_attention(q, k, v)) < EXACT
    whole = chacal.delta_attention(q, k, v, read=read)
    assert torch.equal(whole, chacal.delta_attention(q, k, v, beta=1.0, read=read))
    assert far(whole, nothing) > 1e-2


@pytest.mark.parametrize("shape", [(1,), (11,), (3, 1), (2, 3, 11)])
def test_beta_broadcasts_over_tokens(shape):
    q, k, v = draw_qkv(2, 3, n=11)
    beta = draw_beta(*shape)
    Y = chacal.delta_attention(q, k, v, beta=beta)
    assert far(Y, chacal.delta_attention(q, k, v, beta=beta.expand(2, 3, 11).clone())) < EXACT


@reads
@pytest.mark.parametrize("d_v", [2, 3])
def test_gradcheck(read, d_v):
    inputs = leaves(*draw_qkv(2, n=7, d=2, d_v=d_v), draw_beta(2, 7))

    def function(q, k, v, beta):
        return chacal.delta_attention(q, k, v, beta=beta, read=read)

    assert torch.autograd.gradcheck(function, inputs)


@reads
@pytest.mark.parametrize("d_v", [3, 5])
def test_gradients_across_tiles(read, d_v):
    inputs = leaves(*draw_qkv(2, n=LEAF_CROSSING, d_v=d_v), draw_beta(2, LEAF_CROSSING))
    q, k, v, beta = inputs
    weights = draw(2, LEAF_CROSSING, d_v, seed=9)
    ours = chacal.delta_attention(q, k, v, beta=beta, read=read)
    theirs = dense(q, k, v, beta, read)
    assert far(ours, theirs) < EXACT
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * (1 + float(b.abs().max()))


@reads
def test_no_output_depends_on_a_later_token_through_any_input(read):
    n = 7
    inputs = leaves(*draw_qkv(n=n, d=2, d_v=3), draw_beta(n))
    Y = chacal.delta_attention(*inputs[:3], beta=inputs[3], read=read)
    for t in range(n):
        for j in range(3):
            grads = torch.autograd.grad(Y[t, j], inputs, retain_graph=True)
            assert all(bool((grad[t + 1 :] == 0).all()) for grad in grads)
            if t > 1:
                assert all(bool((grad[:t] != 0).any()) for grad in grads[1:])


@reads
def test_a_later_beta_changes_nothing_before_it(read):
    q, k, v = draw_qkv(2, n=LEAF_CROSSING)
    beta = draw_beta(2, LEAF_CROSSING)
    Y = chacal.delta_attention(q, k, v, beta=beta, read=read)
    for t in (1, 63, 64, 65, 129):
        changed = beta.clone()
        changed[:, t:] *= -0.5
        Y_changed = chacal.delta_attention(q, k, v, beta=changed, read=read)
        assert torch.equal(Y_changed[:, :t], Y[:, :t])
        assert far(Y_changed[:, t:], Y[:, t:]) > 1e-6


@reads
def test_padding_on_any_side_with_any_beta_there(read):
    q, k, v = draw_qkv(3, 2, n=9, d_v=2)
    beta = draw_beta(3, 2, 9)
    mask = torch.tensor(
        [[c == "1" for c in row] for row in ("000111111", "110011011", "111111000")]
    )
    for x in (q, k, v, beta):
        x.transpose(1, 2)[~mask] = torch.nan
    Y = chacal.delta_attention(q, k, v, beta=beta, mask=mask, read=read)
    for i, real in enumerate(mask):
        q_i, k_i, v_i, beta_i = (x[i][:, real] for x in (q, k, v, beta))
        alone = chacal.delta_attention(q_i, k_i, v_i, beta=beta_i, read=read)
        assert far(Y[i][:, real], alone) < EXACT
        assert bool((Y[i][:, ~real] == 0).all())


@reads
def test_packed_sequences_do_not_see_each_other(read):
    ends = [0, 3, 8, 8, 20]
    q, k, v = draw_qkv(2, n=20)
    beta = draw_beta(2, 20)
    Y = chacal.delta_attention(q, k, v, beta=beta, cu_seqlens=torch.tensor(ends), read=read)
    for a, b in itertools.pairwise(ends):
        if b > a:
            part = [x[:, a:b] for x in (q, k, v)]
            alone = chacal.delta_attention(*part, beta=beta[:, a:b], read=read)
            assert far(Y[:, a:b], alone) < EXACT


@reads
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_a_bad_token_leaves_those_before_it_alone(read, bad):
    inputs = [*draw_qkv(2, n=90, dtype=torch.float32), draw_beta(2, 90).float()]
    for which in range(4):
        if which == 3 and bad is not torch.nan:
            continue  # refused: it is no β
        good, spoiled = leaves(*inputs), leaves(*inputs)
        spoiled[which].data[0, 70] = bad
        Y, Y_spoiled = (
            chacal.delta_attention(*x[:3], beta=x[3], read=read) for x in (good, spoiled)
        )
        assert far(Y_spoiled[0, :70], Y[0, :70]) < 1e-5
        assert far(Y_spoiled[1], Y[1]) < 1e-5
        grads = [
            torch.autograd.grad(y[:, :70].square().sum(), x)
            for y, x in ((Y, good), (Y_spoiled, spoiled))
        ]
        for a, b in zip(*grads, strict=True):
            assert far(a, b) < 1e-4 * (1 + float(b.abs().max()))


@reads
@pytest.mark.parametrize("calls", [[1] * 23, [23], [5, 1, 1, 16], [1, 22]])
def test_decoding_with_a_beta_for_every_token(read, calls):
    q, k, v = draw_qkv(2, 2, n=23, d_v=2)
    beta = draw_beta(2, 2, 23)
    operator = chacal.parse_operator(f"delta,read={read}")
    Y = operator(q, k, v, beta=beta)
    decoder, parts, at = operator.decoder(), [], 0
    for count in calls:
        part = slice(at, at + count)
        parts.append(decoder.extend(*(x[..., part, :] for x in (q, k, v)), beta=beta[..., part]))
        at += count
    assert far(torch.cat(parts, -2), Y) < EXACT
    decoder.crop(7)
    rest = decoder.extend(*(x[..., 7:, :] for x in (q, k, v)), beta=beta[..., 7:])
    assert far(rest, Y[..., 7:, :]) < EXACT


def test_decoding_across_tiles():
    inputs = draw_qkv(2, n=230)
    operator = chacal.parse_operator("delta,beta=0.7")
    calls = [slice(0, 97), slice(97, 98), slice(98, 230)]
    assert far(extend(operator.decoder(), inputs, calls), operator(*inputs)) < EXACT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 2.0}, r"beta is 2.0; expected a number in \[-1, 1\]"),
        ({"beta": True}, "beta is True"),
        ({"beta": torch.full((5,), 1.5)}, "beta reaches from 1.5 to 1.5; expected every value"),
        ({"beta": torch.ones(5, dtype=torch.long)}, "beta has dtype torch.int64"),
        ({"beta": torch.ones(4)}, r"beta has shape \(4,\); expected one that broadcasts to"),
        ({"read": "values"}, "read is 'values'; expected one of 'queries', 'keys'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        chacal.delta_attention(*draw_qkv(2, n=5), **options)


def test_only_delta_takes_a_beta():
    q, k, v = draw_qkv(n=5)
    with pytest.raises(ValueError, match="beta was given to chacal; expected delta"):
        chacal.parse_operator("chacal")(q, k, v, beta=0.5)
    with pytest.raises(ValueError, match="only delta has a β"):
        chacal.parse_operator("chacal").decoder().extend(q, k, v, beta=0.5)
