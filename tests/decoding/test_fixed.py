"""A decoder whose memory is allocated once gives the parallel outputs, compiled too."""

import pytest
import torch
from cases import DECODABLE, EXACT, draw_qkv, far

import chacal

decodable = pytest.mark.parametrize("text", DECODABLE)

CUTS = ([1] * 60, [60], [17, 1, 1, 1, 20, 20], [1, 3, 1, 1, 14] + [1] * 40)


def grouped(batch, heads, key_heads, n, d_v=2):
    """q with all heads, k and v with those of the keys; and both with all."""
    q = draw_qkv(batch, heads, n=n, d_v=d_v)[0]
    k, v = draw_qkv(batch, key_heads, n=n, d_v=d_v)[1:]
    return (q, k, v), (q, *(x.repeat_interleave(heads // key_heads, 1) for x in (k, v)))


def run(decoder, inputs, cuts, mask=None, **options):
    parts, masks = [], [None] * len(cuts) if mask is None else mask.split(cuts, 1)
    for *part, real in zip(*(x.split(cuts, 2) for x in inputs), masks, strict=True):
        parts.append(decoder.extend(*part, real, **options))
    return torch.cat(parts, 2)


@decodable
@pytest.mark.parametrize("key_heads", [4, 2])
def test_any_split_gives_the_parallel_outputs(text, key_heads):
    operator = chacal.parse_operator(text)
    inputs, full = grouped(2, 4, key_heads, n=60)
    Y = operator(*full)
    for cuts in CUTS:
        decoder = operator.fixed_decoder(60)
        assert far(run(decoder, inputs, cuts), Y) < EXACT
        assert decoder.lengths.tolist() == [60, 60]


@decodable
def test_padding_takes_no_room(text):
    operator = chacal.parse_operator(text)
    inputs, full = grouped(3, 2, 1, n=60)
    mask = torch.ones(3, 60, dtype=torch.bool)
    mask[1, :9] = mask[2, 3:50:2] = False
    for x in inputs:
        x.transpose(1, 2)[~mask] = torch.nan
    Y = operator(*full, mask=mask)
    room = int(mask.sum(1).max())
    for cuts in CUTS:
        decoder = operator.fixed_decoder(room)
        assert far(run(decoder, inputs, cuts, mask), Y) < EXACT
        assert decoder.lengths.tolist() == mask.sum(1).tolist()


@decodable
def test_gamma_and_scale_may_be_given(text):
    operator = chacal.parse_operator(text)
    options = {"scale": 0.3}
    if operator.has_gamma:
        options["gamma"] = torch.tensor([0.2, 0.95], dtype=torch.float64)
    inputs, full = grouped(2, 2, 2, n=30)
    Y = operator(*full, **options)
    assert far(run(operator.fixed_decoder(40), inputs, [5] + [1] * 25, **options), Y) < EXACT


@decodable
def test_reordered_and_reset_in_place(text):
    operator = chacal.parse_operator(text)
    inputs, full = grouped(3, 2, 1, n=24)
    decoder = operator.fixed_decoder(30)
    run(decoder, [x[:, :, :12] for x in inputs], [7] + [1] * 5)
    before = [x.data_ptr() for x in decoder.tensors()]
    index = torch.tensor([2, 0, 0])
    decoder.reorder(index)
    Y = operator(*(x[index] for x in full))
    rest = [x[index][:, :, 12:] for x in inputs]
    assert far(run(decoder, rest, [1] * 6 + [6]), Y[:, :, 12:]) < EXACT
    decoder.reset()
    assert far(run(decoder, inputs, [1] * 24), operator(*full)) < EXACT
    assert [x.data_ptr() for x in decoder.tensors()] == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_as_by_the_other(dtype):
    operator = chacal.parse_operator("chacal")
    inputs = [x.to(dtype) for x in draw_qkv(2, 2, n=20)]
    Y = run(operator.fixed_decoder(20), inputs, [8] + [1] * 12)
    assert Y.dtype == dtype
    assert far(Y, run(operator.decoder(), inputs, [8] + [1] * 12)) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    "text", ["chacal", "window@5", "pooled@4", "routed@4,routes=2", "block@4", "pattern"]
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_graph_for_all_tokens(text, backend):
    operator = chacal.parse_operator(text)
    inputs, full = grouped(2, 4, 2, n=20)
    decoder = operator.fixed_decoder(20)
    parts = [decoder.extend(*(x[:, :, :3] for x in inputs))]
    torch._dynamo.reset()
    step = torch.compile(decoder.extend, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        parts += [step(*(x[:, :, t : t + 1] for x in inputs)) for t in range(3, 20)]
    assert far(torch.cat(parts, 2), operator(*full)) < EXACT


def test_a_capacity_is_a_number():
    with pytest.raises(ValueError, match="capacity is 0; expected a whole number"):
        chacal.parse_operator("chacal").fixed_decoder(0)
    with pytest.raises(ValueError, match="cannot decode"):
        chacal.parse_operator("block/3").fixed_decoder(9)
