"""One token on a card goes to its kernel, from both decoders and from transformers' caches."""

import pytest
import torch
from cases import draw_qkv, far

import chacal
from chacal.ops import cards

pytest.importorskip("triton", reason="the kernels need Triton: pip install chacal[gpu]")

SINGLE = 2e-5

OPERATORS = ["chacal", "chacal,diagonal=drop", "window@9", "dense", "local@4"]


@pytest.fixture
def ran(device, monkeypatch):
    """Dtypes of the caches given to a kernel. Where Triton interprets, the CPU is the card."""
    from chacal.kernels import decode

    given, plain = [], decode.decode

    def watched(q, v, gamma, keys, Z, lengths, **options):
        given.append(Z.dtype)
        return plain(q, v, gamma, keys, Z, lengths, **options)

    monkeypatch.setattr(decode, "decode", watched)
    if device == "cpu":
        monkeypatch.setattr("chacal.ops.cards.fits", lambda q, v: q.dtype != torch.float64)
    return given


def grouped(n, device, dtype=torch.float32):
    q = draw_qkv(2, 4, n=n, d=8, d_v=6, dtype=dtype)[0]
    k, v = draw_qkv(2, 2, n=n, d=8, d_v=6, dtype=dtype)[1:]
    return [x.to(device) for x in (q, k, v)]


def oracle(text, q, k, v, gamma=None):
    """In float64, which no kernel takes."""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    options = {} if gamma is None else {"gamma": gamma.double()}
    return chacal.parse_operator(text)(*(x.double() for x in (q, k, v)), **options)


def run(decoder, inputs, cuts, **options):
    parts = zip(*(x.split(cuts, 2) for x in inputs), strict=True)
    return torch.cat([decoder.extend(*part, **options) for part in parts], 2)


CUTS = [1, 4, 1, 1, 7, *[1] * 11]


@pytest.mark.parametrize("text", OPERATORS)
def test_the_decoder_that_grows(text, ran, device):
    q, k, v = grouped(25, device)
    operator = chacal.parse_operator(text)
    gamma = torch.tensor([0.2, 0.5, 0.8, 0.95], device=device) if operator.has_gamma else None
    decoder = operator.decoder(rollback=2)
    decoder.share_keys(2)
    full = [q, *(x.repeat_interleave(2, 1) for x in (k, v))]
    options = {} if gamma is None else {"gamma": gamma}
    Y = run(decoder, full, CUTS, **options)
    assert ran == [torch.float32] * 14
    assert far(Y, oracle(text, q, k, v, gamma)) < SINGLE
    # what the kernel left in the cache goes on
    decoder.crop(23)
    rest = run(decoder, [x[:, :, 23:] for x in full], [1, 1], **options)
    assert far(rest, Y[:, :, 23:]) < SINGLE


@pytest.mark.parametrize("text", ["chacal", "window@9"])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_decoder_of_fixed_size(text, compiled, ran, device):
    q, k, v = grouped(25, device)
    decoder = chacal.parse_operator(text).fixed_decoder(25)
    mask = torch.ones(2, 25, dtype=torch.bool, device=device)
    mask[1, 2:6] = False
    parts = [decoder.extend(*(x[:, :, :10] for x in (q, k, v)), mask[:, :10])]
    step = decoder.extend
    if compiled:
        torch._dynamo.reset()
        step = torch.compile(step, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for t in range(10, 25):
            token = slice(t, t + 1)
            parts.append(step(*(x[:, :, token] for x in (q, k, v)), mask[:, token]))
    assert len(ran) == 15
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    Y = chacal.parse_operator(text)(*(x.double() for x in (q, k, v)), mask=mask)
    assert far(torch.cat(parts, 2), Y) < SINGLE


def test_half_precision_is_kept_as_it_is(ran, device):
    inputs = grouped(20, device, torch.bfloat16)
    decoder = chacal.parse_operator("chacal,gamma=0.5").fixed_decoder(20)
    Y = run(decoder, inputs, [8, *[1] * 12])
    assert ran == [torch.bfloat16] * 12
    assert Y.dtype == torch.bfloat16
    assert far(Y.double(), oracle("chacal,gamma=0.5", *inputs)) < 0.05


@pytest.mark.parametrize("text", ["chacal,diagonal=drop", "window@9"])
def test_a_prompt_goes_to_the_kernel_of_whole_sequences(text, ran, device, monkeypatch):
    solved, plain = [], cards.solve_on_card

    def watched(kernel, q, k, v, gamma, scale):
        solved.append((q.shape[1], k.shape[1], q.shape[2]))
        return plain(kernel, q, k, v, gamma, scale)

    monkeypatch.setattr(cards, "solve_on_card", watched)
    inputs = grouped(20, device)
    for decoder in (
        chacal.parse_operator(text).decoder(),
        chacal.parse_operator(text).fixed_decoder(20),
    ):
        Y = run(decoder, inputs, [8, 3, *[1] * 9])
        assert far(Y, oracle(text, *inputs)) < SINGLE
    assert solved == [(8, 4, 8)] * 2  # once for each, with the keys of a group once


@pytest.mark.parametrize("text", ["pooled@4", "routed@4", "block@4", "pattern"])
def test_what_has_no_kernel_stays_plain(text, ran, device):
    inputs = grouped(20, device)
    Y = run(chacal.parse_operator(text).fixed_decoder(20), inputs, [8, *[1] * 12])
    assert not ran
    assert far(Y, oracle(text, *inputs)) < SINGLE


def test_transformers_caches(ran, device):
    transformers = pytest.importorskip("transformers")
    import chacal.hf

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
        bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().to(device)
    chacal.hf.patch(model, "chacal", layers=[1])
    tokens = torch.randint(3, 31, (2, 9)).to(device)
    for options in ({}, {"cache_implementation": "static", "disable_compile": True}):
        ran.clear()
        got = model.generate(tokens, do_sample=False, max_new_tokens=6, **options)
        assert len(ran) == 5
        expected = model.generate(tokens, do_sample=False, max_new_tokens=6, use_cache=False)
        assert torch.equal(got, expected)


def test_pytorch_accepts_the_operator():
    q, k, v = grouped(1, "cpu")
    keys, Z = torch.zeros(2, 2, 5, 8), torch.zeros(2, 4, 5, 6)
    keys[:, :, :1] = k
    lengths = torch.zeros(2, dtype=torch.int32)
    gamma = torch.full((2, 4), 0.5)
    torch.library.opcheck(
        torch.ops.chacal.decode.default, (q, v, gamma, keys, Z, lengths, 0.5, False, None)
    )


def test_the_cpu_stays_plain():
    assert not cards.fits(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8))
