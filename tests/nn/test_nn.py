"""The layers do what their formulas say, and decode as they compute in parallel."""

import math

import pytest
import torch

import chacal
from chacal.nn import Attention, Transformer
from chacal.nn.attention import rotate
from chacal.nn.views import view_layers

DECODABLE = [
    "dense",
    "chacal",
    "chacal,diagonal=drop",
    "block@4",
    "window@5",
    "pooled@3",
    "routed@3",
    "pattern",
    "pattern,offsets=1+3",
    "local@4",
    "delta",
    "delta,read=keys,beta=0.5",
]


def test_attention_is_its_formula():
    layer = Attention(12, 3, "chacal,gamma=0.7", qk_norm=1.5).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    q, k, v = (layer.qkv(x).chunk(3, -1)[i].unflatten(-1, (3, 4)).transpose(1, 2) for i in range(3))
    cosine = (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT
    S = cosine * 1.5 * math.sqrt(4) + torch.full((9, 9), -math.inf).double().triu(1)
    Y = chacal.resolvent(torch.softmax(S, -1), v, 0.7)
    expected = layer.out(Y.transpose(1, 2).reshape(2, 9, 12))
    torch.testing.assert_close(layer(x), expected, atol=1e-10, rtol=0)


def test_beta_is_computed_from_each_token_unless_the_text_fixes_it():
    layer = Attention(12, 3, "delta").double()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    q, k, v = layer.project(x)
    beta = torch.sigmoid(x @ layer.beta.weight.T + layer.beta.bias).transpose(1, 2)
    Y = chacal.delta_attention(q, k, v, beta=beta)
    expected = layer.out(Y.transpose(1, 2).reshape(2, 9, 12))
    torch.testing.assert_close(layer(x), expected, atol=1e-10, rtol=0)
    layer(x).square().sum().backward()
    assert layer.beta.weight.grad.abs().min() > 0
    assert Attention(12, 3, "delta,beta=0.5").beta is None
    assert Attention(12, 3, "chacal").beta is None


def test_what_delta_makes_of_its_weights_is_shown_with_the_betas_it_used():
    model = Transformer(vocab_size=11, num_classes=7, operators=["delta"], width=16, heads=2)
    tokens = torch.randint(11, (1, 9))
    (view,) = view_layers(model, tokens)
    layer = model.blocks()[0].attention
    seen = []
    hook = layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(tokens)
    hook.remove()
    x = seen[0]
    q, k, v = layer.project(x)
    Y = layer.operator(q, k, v, beta=layer.betas(x))
    torch.testing.assert_close(view.S @ v[0], Y[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(view.A, chacal.attention_weights(q, k)[0], atol=1e-5, rtol=0)


def test_rotary_scores_depend_on_distance_alone():
    q, k = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)

    def score(t, s):
        at = torch.tensor([t, s])
        turned = rotate(torch.stack([q, k]), at, 100.0)
        return turned[0] @ turned[1]

    torch.testing.assert_close(score(7, 3), score(107, 103), atol=1e-5, rtol=0)
    assert abs(score(7, 3) - score(8, 3)) > 1e-3


@pytest.mark.parametrize("positions", ["rotary", "first"])
def test_the_base_of_rotary_positions_is_used_in_both_forms(positions):
    def model(**more):
        torch.manual_seed(0)
        return Transformer(
            vocab_size=11, num_classes=7, operators=["dense", "chacal"], width=16, heads=2,
            positions=positions, embed_std=1.0, **more,
        ).double()  # fmt: skip

    tokens = torch.randint(11, (2, 40))
    usual, slow = model(), model(rotary_base=1e7)
    torch.testing.assert_close(model(rotary_base=1e4)(tokens), usual(tokens), atol=0, rtol=0)
    assert (slow(tokens) - usual(tokens)).abs().max() > 1e-2
    decoder = slow.decoder()
    parts = [decoder.extend(tokens[:, a:b]) for a, b in ((0, 30), (30, 31), (31, 40))]
    torch.testing.assert_close(torch.cat(parts, 1), slow(tokens), atol=1e-10, rtol=0)


def test_rotary_in_the_first_layer_leaves_the_second_without_order():
    torch.manual_seed(0)
    model = Transformer(
        vocab_size=11, num_classes=7, operators=["local@1", "dense"], width=16, heads=2,
        positions="first", embed_std=1.0,
    ).double()  # fmt: skip
    tokens = torch.randint(11, (1, 12))
    turned = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)
    # a token sees itself alone in the first layer, and the last one a set in the second
    torch.testing.assert_close(model(tokens)[:, -1], model(turned)[:, -1], atol=1e-10, rtol=0)


def test_learned_gamma_starts_at_the_operators_and_learns():
    layer = Attention(8, 2, "chacal,gamma=0.8", learn_gamma=True)
    torch.testing.assert_close(layer.gamma, torch.full((2,), 0.8))
    layer(torch.randn(1, 6, 8)).square().sum().backward()
    assert layer.gamma_logit.grad.abs().min() > 0
    with torch.no_grad():
        layer.gamma_logit.fill_(1e9)
    assert torch.isfinite(layer(torch.randn(1, 6, 8))).all()
    with pytest.raises(ValueError, match="learn_gamma with dense"):
        Attention(8, 2, "dense", learn_gamma=True)


@pytest.mark.parametrize("positions", ["rotary", "learned", "factorised", "none"])
@pytest.mark.parametrize("operator", DECODABLE)
def test_decoding_equals_the_parallel_form(operator, positions):
    model = Transformer(
        vocab_size=11, num_classes=7, operators=["dense", operator], width=16, heads=2,
        positions=positions, max_length=40, period=5,
    ).double()  # fmt: skip
    tokens = torch.randint(11, (3, 23))
    whole = model(tokens)
    decoder = model.decoder()
    parts = [decoder.extend(tokens[:, a:b]) for a, b in ((0, 9), (9, 10), (10, 11), (11, 23))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("operator", DECODABLE)
def test_left_padding_changes_nothing(operator):
    model = Transformer(vocab_size=11, num_classes=7, operators=[operator] * 2, width=16, heads=2)
    model = model.double()
    tokens = torch.randint(11, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :5] = False
    padded = model(tokens, mask)
    torch.testing.assert_close(padded[:1, 5:], model(tokens[:1, 5:]), atol=1e-6, rtol=0)
    torch.testing.assert_close(padded[1:], model(tokens[1:]), atol=1e-10, rtol=0)


def test_embeddings_begin_as_large_as_asked_and_nothing_else_changes():
    models = []
    for std in ({}, {"embed_std": 1.0}):
        torch.manual_seed(0)
        models.append(
            Transformer(vocab_size=99, num_classes=7, operators=["dense"], width=64, heads=2, **std)
        )
    usual, large = (dict(model.named_parameters()) for model in models)
    assert abs(float(usual["embed.weight"].detach().std()) - 0.02) < 1e-3
    assert abs(float(large["embed.weight"].detach().std()) - 1) < 0.05
    assert all(torch.equal(usual[name], large[name]) for name in usual if name != "embed.weight")


def test_stacked_symbols_are_summed_and_answered_apart():
    model = Transformer(
        vocab_size=12, num_classes=5, operators=["chacal"], width=16, heads=2, symbols=3
    ).double()
    tokens = torch.randint(12, (2, 6, 3))
    scores = model(tokens)
    assert scores.shape == (2, 6, 3, 5)
    torch.testing.assert_close(model(tokens.flip(2)), scores, atol=1e-10, rtol=0)


def test_autocast_keeps_the_operator_in_float32():
    model = Transformer(vocab_size=11, num_classes=7, operators=["chacal"], width=16, heads=2)
    tokens = torch.randint(11, (2, 30))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(tokens)
        half.float().sum().backward()
    torch.testing.assert_close(half.float(), model(tokens), atol=0.15, rtol=0.1)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads is 3"),
        ({"positions": "absolute"}, "positions is 'absolute'"),
        ({"positions": "learned"}, "max_length is None"),
        ({"positions": "factorised", "max_length": 8}, "period is None"),
        ({"operators": []}, "operators is empty"),
        ({"qk_norm": 0.0}, "qk_norm is 0.0"),
        ({"embed_std": 0.0}, "embed_std is 0.0"),
        ({"rotary_base": 0.5}, "rotary_base is 0.5"),
        ({"rotary_base": 1e6, "positions": "none"}, "rotary_base is 1e\\+06 with positions 'none'"),
        ({"width": 6, "heads": 2}, "rotary needs an even width"),
    ],
)
def test_bad_sizes_are_named(options, message):
    given = {"vocab_size": 4, "num_classes": 4, "operators": ["chacal"], "width": 16, "heads": 2}
    with pytest.raises(ValueError, match=message):
        Transformer(**{**given, **options})


def test_a_sequence_past_its_positions_is_refused():
    model = Transformer(
        vocab_size=4, num_classes=4, operators=["dense"], positions="learned", max_length=5,
        width=16, heads=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="reach position 6"):
        model(torch.zeros(1, 6, dtype=torch.long))
