"""A patched layer computes Eq. 1 with the model's own weights; everything else stays as it was."""

import copy
import gc
import io

import pytest
import torch
from tiny import (
    CAUSAL_LM,
    EXACT,
    KINDS,
    LAYERS,
    OPERATORS,
    PAD,
    draw_tokens,
    far,
    inputs_of,
    near,
    tiny,
)
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
)

import chacal.hf
from chacal.hf import operators_of, patch, unpatch
from chacal.hf.decoders import causal_attentions

kinds = pytest.mark.parametrize("kind", KINDS)
operators = pytest.mark.parametrize("text", OPERATORS)


def watch(module, name):
    """What goes into the first child of `module` with one of these names, call by call."""
    seen = []
    child = next(getattr(module, n) for n in name if hasattr(module, n))
    child.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    return seen


# Values


@kinds
def test_the_first_layer_is_equation_1(kind):
    gamma, n = 0.8, 18
    model, inputs = tiny(kind, attn_implementation="eager"), inputs_of(kind, n=n)
    attention = causal_attentions(model)[0]
    values = []
    which = "c_attn" if kind == "gpt2" else "v_proj"
    getattr(attention, which).register_forward_hook(lambda _, __, out: values.append(out.detach()))
    outputs = model(**inputs, output_attentions=True)
    A = (outputs.decoder_attentions if kind == "bart" else outputs.attentions)[0]  # (2, 4, n, n)
    V = values[0].split(32, -1)[2] if kind == "gpt2" else values[0]
    V = V.unflatten(-1, (-1, 8)).transpose(1, 2)
    V = V.repeat_interleave(4 // V.shape[1], 1)  # query heads that share a value head
    Z = torch.linalg.inv(torch.eye(n) - gamma * A) @ V
    Y = (1 - gamma) * A @ Z

    patch(model, f"chacal,gamma={gamma}", layers=[0])
    seen = watch(attention, ("c_proj", "o_proj", "out_proj"))
    model(**inputs)
    assert far(seen[0], Y.transpose(1, 2).flatten(2)) < near(kind)


@kinds
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gamma_0_gives_the_dense_logits(kind, implementation):
    model, inputs = tiny(kind, attn_implementation=implementation), inputs_of(kind)
    dense = model(**inputs).logits
    patch(model, "chacal,gamma=0")
    assert far(model(**inputs).logits, dense) < near(kind)
    patch(model, "chacal,gamma=0.5", layers=[1])
    assert far(model(**inputs).logits, dense) > 1e-3


@kinds
def test_unpatching_restores_the_model_bitwise(kind):
    model, inputs = tiny(kind), inputs_of(kind)
    dense, keys = model(**inputs).logits, list(model.state_dict())
    weights = copy.deepcopy(model.state_dict())
    described = model.config.to_dict()
    patch(model, "chacal", layers=[0, 2])
    assert list(model.state_dict()) == keys
    assert all(torch.equal(model.state_dict()[key], weights[key]) for key in keys)
    assert far(model(**inputs).logits, dense) > 1e-3
    assert unpatch(model) is model
    assert torch.equal(model(**inputs).logits, dense)
    assert (type(model.config), model.config.to_dict()) == (KINDS[kind][1], described)
    assert operators_of(model) == {}
    assert torch.equal(unpatch(model)(**inputs).logits, dense)


def test_the_encoder_and_cross_attention_are_never_touched():
    model, inputs = tiny("bart"), inputs_of("bart")
    encoder = model.get_encoder()
    before = encoder(inputs["input_ids"]).last_hidden_state
    others = [m for name, m in model.named_modules() if name.endswith("encoder_attn")]
    others += [layer.self_attn for layer in encoder.layers]
    patch(model, "chacal")
    assert torch.equal(encoder(inputs["input_ids"]).last_hidden_state, before)
    assert not any(hasattr(module, "chacal_operator") for module in others)
    assert all(module.config is model.config for module in others)


def test_layers_may_have_different_operators_and_be_patched_again():
    model, inputs = tiny("gpt2"), inputs_of("gpt2")
    patch(patch(model, "chacal"), "window@5", layers=[1])
    assert [str(op) for op in operators_of(model).values()] == ["chacal", "window@5", "chacal"]
    assert model.config.chacal_operators == {"0": "chacal", "1": "window@5", "2": "chacal"}
    mixed = model(**inputs).logits
    twin = patch(patch(tiny("gpt2"), "window@5", layers=1), "chacal", layers=range(0, 3, 2))
    assert torch.equal(twin(**inputs).logits, mixed)


def test_protocols_of_the_paper():
    def chosen(kind, layers):
        return list(operators_of(patch(tiny(kind), "chacal", layers=layers)))

    assert chosen("gpt2", "paper:lm") == [0, 1, 2]
    assert chosen("gpt2", "paper:code") == [1]
    assert chosen("bart", "paper:scrolls") == [0]
    assert set(chacal.hf.PROTOCOLS) == {"paper:lm", "paper:code", "paper:scrolls"}


def test_a_model_that_shares_its_config_stays_dense():
    config = tiny("gpt2").config
    one, other = (KINDS["gpt2"][0](config).double().eval() for _ in range(2))
    inputs = inputs_of("gpt2")
    dense = other(**inputs).logits
    patch(one, "chacal")
    assert torch.equal(other(**inputs).logits, dense)
    assert other.config.to_dict()["model_type"] == "gpt2"
    # and what is set on the patched model's config afterwards reaches its layers
    one.config.use_cache = False
    assert one(**inputs).past_key_values is None
    assert one.transformer.h[0].attn.config.use_cache is False


def test_a_change_of_implementation_leaves_patched_layers_patched():
    model, inputs = patch(tiny("llama"), "chacal", layers=[1]), inputs_of("llama")
    before = model(**inputs).logits
    model.set_attn_implementation("eager")
    assert far(model(**inputs).logits, before) < near("llama")


def test_copies_and_pickles_are_patched():
    model, inputs = patch(tiny("llama"), "chacal", layers=[1]), inputs_of("llama")
    expected = model(**inputs).logits
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twin = copy.deepcopy(model)
    for other in (twin, torch.load(file, weights_only=False)):
        assert torch.equal(other(**inputs).logits, expected)
    unpatch(twin)
    assert torch.equal(model(**inputs).logits, expected)
    assert torch.equal(twin(**inputs).logits, tiny("llama")(**inputs).logits)


# Padding


@pytest.mark.parametrize("kind", CAUSAL_LM)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_on_either_side(kind, side, implementation):
    model = patch(tiny(kind, attn_implementation=implementation), "chacal", layers=[0, 1])
    tokens, lengths = draw_tokens(3, 12), (12, 7, 9)
    mask = torch.zeros(3, 12, dtype=torch.long)
    ids = torch.full_like(tokens, PAD)
    for i, length in enumerate(lengths):
        at = slice(12 - length, None) if side == "left" else slice(0, length)
        mask[i, at], ids[i, at] = 1, tokens[i, :length]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for use_cache in (True, False):
        logits = model(ids, attention_mask=mask, position_ids=positions,
                       use_cache=use_cache).logits  # fmt: skip
        for i, length in enumerate(lengths):
            alone = model(tokens[i : i + 1, :length]).logits[0]
            assert far(logits[i][mask[i].bool()], alone) < near(kind)


@operators
def test_padding_with_every_operator(text):
    model = patch(tiny("gpt2"), text)
    tokens = draw_tokens(2, 14)
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[1, 10:] = 0
    for trains in (True, False):  # the parallel form; the decoder's
        with torch.set_grad_enabled(trains):
            logits = model(tokens, attention_mask=mask).logits
        assert far(logits[1, :10], model(tokens[1:, :10]).logits[0]) < EXACT


def test_padding_of_a_decoder_beside_an_encoder():
    model, inputs = patch(tiny("bart"), "chacal", layers="paper:scrolls"), inputs_of("bart", n=12)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    logits = model(**inputs, decoder_attention_mask=mask).logits
    inputs["decoder_input_ids"] = inputs["decoder_input_ids"][:, :8]
    assert far(logits[1, :8], model(**inputs).logits[1]) < EXACT


# What cannot be said with a padding mask is refused


def test_masks_that_are_not_causal_are_refused():
    model, tokens = patch(tiny("gpt2"), "chacal"), draw_tokens(1, 6)
    with pytest.raises(ValueError, match="neither causal with padding nor that of packed"):
        model(tokens, attention_mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))
    causal = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    assert far(model(tokens, attention_mask=causal).logits, model(tokens).logits) < EXACT


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_sliding_window_counts_as_long_as_it_hides_nothing(use_cache):
    model = tiny("mistral", sliding_window=8)
    dense = model(draw_tokens(1, 7)).logits
    patch(model, "chacal,gamma=0", layers=[1])
    assert far(model(draw_tokens(1, 7), use_cache=use_cache).logits, dense) < near("mistral")
    with pytest.raises(ValueError, match="sliding window of 8 hides keys of 9 tokens"):
        model(draw_tokens(1, 9), use_cache=use_cache)


def test_the_attentions_of_other_layers_stay_in_their_places():
    model = patch(tiny("gpt2", attn_implementation="eager"), "chacal", layers=[1])
    told = model(draw_tokens(2, 6), output_attentions=True).attentions
    assert [tuple(A.shape) for A in told] == [(2, 4, 6, 6), (2, 4, 0, 0), (2, 4, 6, 6)]


# Errors


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([3], "layer 3 does not exist; expected layers from 0 to 2"),
        (-1, "layer -1 does not exist"),
        ([True], "layer True does not exist"),
        ([], "layers is empty"),
        ("first", r"layers is 'first'; expected 'all', .*'paper:scrolls'"),
        ("encoder", "decoder self-attention only: an encoder's self-attention is bidirectional"),
        ("model.encoder.layers.0", "decoder self-attention only"),
        ("cross", "decoder self-attention only: cross-attention is not square"),
    ],
)
def test_layers_that_cannot_be_patched_say_why(layers, message):
    model, inputs = tiny("bart"), inputs_of("bart")
    dense = model(**inputs).logits
    with pytest.raises(ValueError, match=message):
        patch(model, "chacal", layers=layers)
    assert torch.equal(model(**inputs).logits, dense)
    assert type(model.config) is KINDS["bart"][1]


def test_models_that_cannot_be_patched_say_why():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 16, "vocab_size": 11}  # fmt: skip
    with pytest.raises(ValueError, match="BertModel has no causal self-attention"):
        patch(BertModel(BertConfig(**sizes)), "chacal")
    with pytest.raises(ValueError, match="BartEncoder has no causal self-attention"):
        patch(tiny("bart").get_encoder(), "chacal")
    bloom = BloomForCausalLM(BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=11))
    with pytest.raises(ValueError, match="BloomForCausalLM computes its attention by itself"):
        patch(bloom, "chacal")
    with pytest.raises(ValueError, match="model is Linear; expected a transformers model"):
        patch(torch.nn.Linear(2, 2), "chacal")
    with pytest.raises(ValueError, match="operator is 3; expected an operator"):
        patch(tiny("gpt2"), 3)
    with pytest.raises(ValueError, match="did you mean 'chacal'"):
        patch(tiny("gpt2"), "chacl")
    with pytest.raises(ValueError, match=r"without an operator; expected chacal\.hf\.patch"):
        tiny("gpt2", attn_implementation="chacal")(draw_tokens(1, 3))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bart"])
def test_a_part_of_a_model_is_not_patched_alone(kind):
    # the whole's config would not know, and save_pretrained would write it as dense
    model, inputs = tiny(kind), inputs_of(kind)
    whole, dense = type(model).__name__, model(**inputs).logits
    for part in {model.base_model, model.get_decoder()}:
        with pytest.raises(ValueError, match=rf"of a {whole}, whose .*expected the {whole} itself"):
            patch(part, "chacal")
    assert torch.equal(model(**inputs).logits, dense)
    # what is no part of another model is a whole
    alone = type(model.base_model)(model.config).eval()
    assert set(operators_of(patch(alone, "chacal"))) == set(range(LAYERS))
    # and so is what has outlived the model that it was a part of
    base = tiny(kind).base_model
    gc.collect()  # a module may be in a cycle with its parts
    assert set(operators_of(patch(base, "chacal"))) == set(range(LAYERS))


def test_no_other_object_is_looked_at(monkeypatch):
    # a process may hold millions, and some wake when they are asked for their class
    monkeypatch.setattr(gc, "get_objects", None)
    monkeypatch.setattr(gc, "get_referrers", None)
    assert len(operators_of(patch(tiny("gpt2"), "chacal"))) == LAYERS


def test_a_leak_has_to_be_asked_for():
    model, inputs = tiny("gpt2"), inputs_of("gpt2", n=12)
    with pytest.raises(ValueError, match=r"block@4,rows=mean sees later tokens.*allow_leak=True"):
        patch(model, "block@4,rows=mean")
    patch(model, "block@4,rows=mean", allow_leak=True)
    other = inputs["input_ids"].clone()
    other[:, -1] = 5
    leaked = model(**inputs).logits[:, -4:-1] - model(other).logits[:, -4:-1]
    assert float(leaked.detach().abs().max()) > 1e-6
    patch(model, "block@4")
    assert far(model(**inputs).logits[:, :-1], model(other).logits[:, :-1]) < EXACT
    assert len(operators_of(model)) == LAYERS
