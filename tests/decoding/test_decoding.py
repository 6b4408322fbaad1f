"""However a sequence is split into calls, the outputs are those of the parallel form."""

import random

import pytest
import torch
from cases import DECODABLE, EXACT, draw_qkv, extend, far

import chacal

decodable = pytest.mark.parametrize("text", DECODABLE)


def split(n: int, seed: int) -> list[slice]:
    """A random way to cut n tokens into calls, single tokens and long runs among them."""
    rng = random.Random(seed)
    cuts, at = [], 0
    while at < n:
        step = rng.choice([1, 1, 2, 3, 5, 11, 40])
        cuts.append(slice(at, min(n, at + step)))
        at += step
    return cuts


@decodable
@pytest.mark.parametrize("d_v", [3, 2])
def test_any_split_gives_the_parallel_outputs(text, d_v):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, 2, n=60, d_v=d_v)
    Y = operator(*inputs)
    ones = [slice(t, t + 1) for t in range(60)]
    for calls in (ones, [slice(0, 60)], split(60, 1), split(60, 2), split(60, 3)):
        decoder = operator.decoder()
        assert far(extend(decoder, inputs, calls), Y) < EXACT
        assert decoder.length == 60


@pytest.mark.parametrize(
    "text",
    [
        "dense",
        "chacal",
        "chacal,diagonal=drop",
        "window@70",
        "pooled@70",
        "pooled@140,near=0",
        "routed@20",
        "routed@70,near=0",
        "pattern",
        "pattern,offsets=squares",
        "pattern,offsets=3+70+128",
        "block@100",
        "block@70",
    ],
)
@pytest.mark.parametrize("d_v", [3, 2])
def test_any_split_across_tiles(text, d_v):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, n=230, d_v=d_v)
    Y = operator(*inputs)
    for calls in ([slice(0, 97), slice(97, 98), slice(98, 230)], split(230, 4)):
        assert far(extend(operator.decoder(), inputs, calls), Y) < EXACT


@decodable
@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 2)])
def test_leading_dimensions_and_scale(text, leading):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(*leading, n=20)
    Y = operator(*inputs, scale=0.3)
    assert far(extend(operator.decoder(), inputs, split(20, 1), scale=0.3), Y) < EXACT


@pytest.mark.parametrize(
    "text", [text for text in DECODABLE if chacal.parse_operator(text).has_gamma]
)
@pytest.mark.parametrize("shape", [(), (2,), (2, 1, 1), (3, 1), (3, 2)])
def test_gamma_may_be_given_per_call(text, shape):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(3, 2, n=20)
    gamma = 0.1 + 0.8 * torch.rand(shape, dtype=torch.float64)
    Y = operator(*inputs, gamma=gamma)
    assert far(extend(operator.decoder(), inputs, split(20, 1), gamma=gamma), Y) < EXACT


# Padding

RAGGED = ["111111111111", "000111111111", "111100000000", "101101101101", "000000000000"]


def ragged(repeat: int) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row for _ in range(repeat)] for row in RAGGED])


@decodable
def test_padding_in_any_call(text):
    operator = chacal.parse_operator(text)
    mask = ragged(3)
    inputs = draw_qkv(5, 2, n=36, d_v=2)
    for x in inputs:
        x.transpose(1, 2)[~mask] = torch.nan
    Y = operator(*inputs, mask=mask)
    assert not bool(Y.isnan().any())
    for seed in range(3):
        outputs = extend(operator.decoder(), inputs, split(36, seed), mask)
        assert far(outputs, Y) < EXACT
        assert bool((outputs.transpose(1, 2)[~mask] == 0).all())


@decodable
def test_padding_may_come_late(text):
    # a common prefix without padding, then a mask, then none again
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, 2, n=30)
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, 12:15] = False
    decoder = operator.decoder()
    parts = [
        decoder.extend(*(x[..., :12, :] for x in inputs)),
        decoder.extend(*(x[..., 12:16, :] for x in inputs), mask[:, 12:16]),
        decoder.extend(*(x[..., 16:, :] for x in inputs)),
    ]
    assert far(torch.cat(parts, -2), operator(*inputs, mask=mask)) < EXACT


def test_a_mask_without_a_batch():
    operator = chacal.parse_operator("chacal")
    inputs, mask = draw_qkv(n=12), ragged(1)[3]
    outputs = extend(operator.decoder(), inputs, split(12, 0), mask)
    assert far(outputs, operator(*inputs, mask=mask)) < EXACT


# Reordering, as in beam search


@decodable
@pytest.mark.parametrize("index", [[1, 0, 2], [2, 2, 0], [1], [0, 1, 2, 2, 1]])
@pytest.mark.parametrize("with_mask", [False, True])
def test_reorder(text, index, with_mask):
    operator = chacal.parse_operator(text)
    # other keys after than before: of tiles with equal keys, a routed row may choose either
    before, after = draw_qkv(3, 2, n=21), [1.5 * x for x in draw_qkv(len(index), 2, n=15)]
    mask = torch.ones(3, 21, dtype=torch.bool)
    if with_mask:
        mask[0, :4] = mask[1, 3] = mask[2, 19:] = False
    decoder = operator.decoder()
    extend(decoder, before, split(21, 5), mask)
    decoder.reorder(torch.tensor(index))
    outputs = extend(decoder, after, split(15, 6))
    whole = [torch.cat([a[index], b], -2) for a, b in zip(before, after, strict=True)]
    real = torch.cat([mask[index], torch.ones(len(index), 15, dtype=torch.bool)], 1)
    assert far(outputs, operator(*whole, mask=real)[..., 21:, :]) < EXACT


@decodable
def test_repeated_sequences_do_not_share_what_they_write(text):
    operator = chacal.parse_operator(text)
    start, first, second = (draw_qkv(1, n=n) for n in (9, 4, 3))
    decoder = operator.decoder()
    decoder.extend(*start)
    decoder.reorder(torch.tensor([0, 0]))
    different = [torch.cat([x, -x]) for x in first]
    decoder.extend(*different)
    decoder.reorder(torch.tensor([1, 0]))
    outputs = decoder.extend(*(torch.cat([x, x]) for x in second))
    for i, sign in enumerate((-1, 1)):
        whole = [
            torch.cat([a, sign * b, c], 1) for a, b, c in zip(start, first, second, strict=True)
        ]
        assert far(outputs[i : i + 1], operator(*whole)[:, 13:]) < EXACT


def test_reorder_names_what_is_wrong():
    decoder = chacal.parse_operator("chacal").decoder()
    with pytest.raises(ValueError, match=r"reorder.*\(batch, ..., n, d\)"):
        decoder.reorder(torch.tensor([0]))
    decoder.extend(*draw_qkv(2, n=3))
    for index in ([2], [-1], [[0, 1]]):
        with pytest.raises(ValueError, match=r"index is \[.*from 0 to 1"):
            decoder.reorder(torch.tensor(index))


# Cropping


def crops(operator, inputs, seed, rollback, mask=None, steps=14):
    """Extend and crop at random, never back past `rollback`; yields outputs and their places."""
    rng = random.Random(seed)
    n = inputs[0].shape[-2]
    decoder = operator.decoder(rollback=rollback)
    at = deepest = 0
    for _ in range(steps):
        end = min(n, at + rng.choice([1, 2, 5, 13]))
        if end > at:
            here = slice(at, end)
            yield here, extend(decoder, inputs, [here], mask)
        deepest = max(deepest, end)
        at = rng.randint(max(0, deepest - rollback, end - 6), end)
        decoder.crop(at)
        assert decoder.length == at


@pytest.mark.parametrize("text", DECODABLE)
@pytest.mark.parametrize("rollback", [4, 64])
def test_crop_and_continue(text, rollback):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, 2, n=80, d_v=2)
    Y = operator(*inputs)
    for seed in range(4):
        for here, outputs in crops(operator, inputs, seed, rollback):
            assert far(outputs, Y[..., here, :]) < EXACT


@decodable
def test_crop_and_continue_with_padding(text):
    operator = chacal.parse_operator(text)
    mask = ragged(6)
    inputs = draw_qkv(5, 2, n=72, d_v=2)
    Y = operator(*inputs, mask=mask)
    for seed in range(2):
        for here, outputs in crops(operator, inputs, seed, 72, mask):
            assert far(outputs, Y[..., here, :]) < EXACT


@decodable
def test_crop_to_nothing_and_start_again(text):
    operator = chacal.parse_operator(text)
    first, second = draw_qkv(2, n=9), [x.flip(-2) for x in draw_qkv(2, n=11)]
    decoder = operator.decoder()
    decoder.crop(0)
    decoder.extend(*first)
    decoder.crop(0)
    assert decoder.length == 0
    assert far(extend(decoder, second, split(11, 1)), operator(*second)) < EXACT


@decodable
def test_what_was_cropped_leaves_no_trace(text):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, n=30)
    other = [-3 * x for x in inputs]
    decoder = operator.decoder()
    extend(decoder, inputs, [slice(0, 17)])
    extend(decoder, other, [slice(17, 22)])
    decoder.crop(17)
    assert far(extend(decoder, inputs, [slice(17, 30)]),
               operator(*inputs)[:, 17:]) < EXACT  # fmt: skip


@pytest.mark.parametrize(
    "text", ["local@5", "window@5", "pooled@4", "pattern,offsets=1+5", "block@4"]
)
def test_crop_past_the_rollback_is_refused(text):
    inputs = draw_qkv(2, n=200)
    decoder = chacal.parse_operator(text).decoder(rollback=8)
    extend(decoder, inputs, [slice(t, t + 1) for t in range(200)])
    with pytest.raises(ValueError, match=r"length is 20 of 200: this operator forgets.*rollback"):
        decoder.crop(20)


@pytest.mark.parametrize("text", ["dense", "chacal", "pattern", "pattern,offsets=squares"])
def test_a_state_that_forgets_nothing_crops_anywhere(text):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, n=100)
    decoder = operator.decoder(rollback=0)
    extend(decoder, inputs, [slice(0, 100)])
    decoder.crop(3)
    assert far(extend(decoder, inputs, [slice(3, 100)]), operator(*inputs)[:, 3:]) < EXACT


def test_bad_lengths_are_named():
    operator = chacal.parse_operator("window@5")
    decoder = operator.decoder()
    decoder.extend(*draw_qkv(2, n=7))
    with pytest.raises(ValueError, match=r"length is 8.*at most the current 7"):
        decoder.crop(8)
    with pytest.raises(ValueError, match=r"length is -1.*at least 0"):
        decoder.crop(-1)
    with pytest.raises(ValueError, match=r"rollback is -1.*at least 0"):
        operator.decoder(rollback=-1)


# What a state keeps


def sizes(text: str, lengths: list[int], d: int = 2, d_v: int = 16) -> list[int]:
    """Bytes kept after each of `lengths` tokens, fed in small calls."""
    inputs = draw_qkv(1, n=lengths[-1], d=d, d_v=d_v)
    decoder = chacal.parse_operator(text).decoder(rollback=8)
    kept, at = [], 0
    for length in lengths:
        while at < length:
            decoder.extend(*(x[:, at : at + 5] for x in inputs))
            at += 5
        kept.append(decoder.nbytes)
    return kept


@pytest.mark.parametrize("text", ["local@5", "window@5", "window@50"])
def test_windows_keep_a_window(text):
    at_400, at_800, at_1600 = sizes(text, [400, 800, 1600])
    window = int(text.split("@")[1])
    # a window, what can be cropped, and up to a tile (32 at least) that is dropped in one go
    most = (window + 8 + max(window, 32) + 5) * (2 + 16) * 8
    assert 0 < max(at_400, at_800, at_1600) <= most


def test_pooled_keeps_means():
    m, per_token = 40, (2 + 16) * 8
    at_400, at_1600 = sizes(f"pooled@{m}", [400, 1600])
    # one mean a block, and three blocks of single tokens at most
    assert at_1600 <= (1600 // m + 4 * m) * per_token
    assert at_1600 - at_400 <= (1600 - 400) * per_token / m + 2 * m * per_token


def test_blocks_keep_keys_and_no_raw_values():
    m = 40
    at_400, at_1600 = sizes(f"block@{m}", [400, 1600])
    keys, values = 2 * 8, 16 * 8
    # two reduced rows a block, and the values of the block at hand
    assert at_1600 <= 1600 * keys + (2 * 1600 / m + 2 * m) * values
    assert at_1600 - at_400 <= 1200 * (keys + 2 * values / m) + m * values


@pytest.mark.parametrize(
    ("text", "reach"), [("pattern,offsets=1+5", 5), ("pattern,offsets=150+3", 150)]
)
def test_given_offsets_keep_the_longest(text, reach):
    at_400, at_800, at_1600 = sizes(text, [400, 800, 1600])
    # the longest offset, what can be cropped, and what is dropped in one go
    most = (reach + 8 + max(64, (reach + 8) // 4) + 5) * (2 + 16) * 8
    assert reach * (2 + 16) * 8 <= min(at_400, at_800, at_1600)
    assert max(at_400, at_800, at_1600) <= most


@pytest.mark.parametrize("text", ["chacal", "pattern", "pattern,offsets=squares"])
def test_exact_chacal_and_patterns_keep_a_key_and_a_value_a_token(text):
    assert sizes(text, [400, 1600]) == [n * (2 + 16) * 8 for n in (400, 1600)]


# Precision and errors


@pytest.mark.parametrize(
    "text", ["chacal", "window@5", "pooled@4", "routed@4", "pattern", "block@4"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_is_computed_in_single(text, dtype):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(2, n=40, dtype=dtype)
    outputs = extend(operator.decoder(), inputs, split(40, 1))
    assert outputs.dtype == dtype
    # the state is single precision: only the result is rounded
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-7}[dtype]
    assert far(outputs.double(), operator(*inputs).double()) < tolerance


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bigbird", "bigbird cannot decode"),
        ("block/3", r"block/3 cannot decode: n // 3 changes"),
        ("block@3,rows=mean", "rows='mean' needs tokens yet to come"),
        ("block@3,rows=last,branches=residual", "rows='last' needs tokens yet to come"),
        ("routed", "routed cannot decode.*changes as n grows"),
        ("pooled", "pooled cannot decode.*changes as n grows"),
        ("dense,top_k=3", "dense,top_k=3 cannot decode"),
        ("chacal,top_k=3", "chacal,top_k=3 cannot decode"),
    ],
)
def test_operators_that_cannot_decode_say_why(text, reason):
    with pytest.raises(ValueError, match=reason):
        chacal.parse_operator(text).decoder()


def test_bad_input_is_named():
    q, k, v = draw_qkv(2, 3, n=4)
    decoder = chacal.parse_operator("chacal").decoder()
    decoder.extend(q, k, v)
    with pytest.raises(ValueError, match=r"q is \(1, 3, 4, 3\).*before: \(2, 3\)"):
        decoder.extend(q[:1], k[:1], v[:1])
    with pytest.raises(ValueError, match=r"k has shape \(2, 3, 3, 3\)"):
        decoder.extend(q, k[:, :, :3], v)
    with pytest.raises(ValueError, match=r"mask has shape \(2, 3\).*\(2, 4\)"):
        decoder.extend(q, k, v, torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"gamma is 1\.0.*\[0, 1\)"):
        decoder.extend(q, k, v, gamma=1.0)
    with pytest.raises(ValueError, match="scale is nan"):
        decoder.extend(q, k, v, scale=float("nan"))
    # and none of it has left a trace
    assert decoder.length == 4
    operator = chacal.parse_operator("chacal")
    whole = [torch.cat([x, x], -2) for x in (q, k, v)]
    assert far(decoder.extend(q, k, v), operator(*whole)[..., 4:, :]) < EXACT


# Keys that several heads have in common


@decodable
def test_shared_keys_are_kept_once_and_change_nothing(text):
    operator = chacal.parse_operator(text)
    q, k, v = draw_qkv(2, 6, n=60, d_v=2)
    k = k[:, ::3].repeat_interleave(3, 1)  # two heads of keys, six of queries
    Y = operator(q, k, v)
    apart, shared = operator.decoder(), operator.decoder()
    shared.share_keys(3)
    for calls in (split(60, 1), split(60, 2)):
        for decoder in (apart, shared):
            decoder.crop(0)
            assert far(extend(decoder, (q, k, v), calls), Y) < EXACT
    names = ("k", "mean_k", "summary")
    state, keys = apart._states[0], 0
    for name in names:
        if hasattr(state, name):
            keys += sum(x.numel() * x.element_size() for x in getattr(state, name).tensors())
    assert keys
    assert shared.nbytes == apart.nbytes - keys + keys // 3


@decodable
def test_shared_keys_follow_selecting_cropping_and_padding(text):
    operator = chacal.parse_operator(text)
    q, k, v = draw_qkv(3, 4, n=20)
    k = k[:, ::2].repeat_interleave(2, 1)
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[1, 9:12] = False
    Y = operator(q, k, v, mask=mask)
    decoder = operator.decoder()
    decoder.share_keys(2)
    decoder.extend(q[:, :, :8], k[:, :, :8], v[:, :, :8])
    index = [2, 1, 1]
    decoder.reorder(index)
    x = [y[index] for y in (q, k, v)]
    decoder.extend(*(y[:, :, 8:15] for y in x), mask[index][:, 8:15])
    decoder.crop(12)
    decoder.reorder([1, 0])
    x = [y[[1, 2], :, 12:] for y in (q, k, v)]
    assert far(decoder.extend(*x), Y[[1, 2], :, 12:]) < EXACT


def test_keys_cannot_be_shared_once_some_are_kept():
    decoder = chacal.parse_operator("chacal").decoder()
    decoder.extend(*draw_qkv(1, 2, n=3))
    with pytest.raises(ValueError, match="keys of 3 tokens are kept; expected an empty decoder"):
        decoder.share_keys(2)
