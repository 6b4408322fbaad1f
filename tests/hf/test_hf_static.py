"""A cache of fixed size gives what the growing one gives, and a compiled step is one graph."""

import pytest
import torch
from test_hf_generate import MODES, generate, left_padded
from tiny import OPERATORS, draw_tokens, far, inputs_of, near, tiny
from transformers import CompileConfig, StaticCache

from chacal.hf import StaticOperatorLayer, patch

operators = pytest.mark.parametrize("text", OPERATORS)


@operators
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padded", [False, True])
def test_generate_gives_the_tokens_of_no_cache(text, mode, padded):
    model = patch(tiny("gpt2"), text, layers=[0, 2])
    inputs = left_padded() if padded else {"input_ids": draw_tokens(2, 12)}
    plain = {k: v for k, v in MODES[mode].items() if k != "prefill_chunk_size"}
    expected = generate(model, inputs, use_cache=False, **plain)
    static = generate(model, inputs, cache_implementation="static", **MODES[mode])
    assert torch.equal(static, expected)


@operators
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_grouped_heads(text, kind):
    model = patch(tiny(kind), text)
    expected = generate(model, left_padded(), use_cache=False)
    assert torch.equal(generate(model, left_padded(), cache_implementation="static"), expected)
    assert torch.equal(generate(model, left_padded()), expected)


def test_an_encoder_decoder():
    model = patch(tiny("bart"), "chacal", layers=[1])
    inputs = {"input_ids": inputs_of("bart")["input_ids"]}
    expected = generate(model, inputs, use_cache=False)
    assert torch.equal(generate(model, inputs, cache_implementation="static"), expected)


@operators
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_any_split_gives_the_logits_of_one_call(text, kind):
    model, tokens = patch(tiny(kind), text, layers=[1, 2]), draw_tokens(2, 30)
    expected = model(tokens, use_cache=False).logits
    with torch.no_grad():
        for cuts in ([1] * 30, [9, 1, 1, 19]):
            cache, parts = StaticCache(config=model.config, max_cache_len=30), []
            for part in tokens.split(cuts, 1):
                parts.append(model(part, past_key_values=cache).logits)
            assert far(torch.cat(parts, 1), expected) < near(kind)
            assert cache.get_seq_length() == cache.get_seq_length(1) == 30
        kinds = [isinstance(layer, StaticOperatorLayer) for layer in cache.layers]
        assert kinds == [False, True, True]
        cache.reset()
        assert far(model(tokens, past_key_values=cache).logits, expected) < near(kind)


@operators
@pytest.mark.parametrize(("kind", "backend"), [("gpt2", "eager"), ("llama", "aot_eager")])
def test_a_compiled_step_is_one_graph_for_all_tokens(text, kind, backend):
    layers = {"n_layer" if kind == "gpt2" else "num_hidden_layers": 2}
    model = patch(tiny(kind, **layers), text, layers=[1])
    tokens = draw_tokens(2, 20)
    expected = model(tokens, use_cache=False).logits
    cache = StaticCache(config=model.config, max_cache_len=24)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        parts = [model(tokens[:, :7], past_key_values=cache).logits]
        for t in range(7, 20):
            parts.append(step(tokens[:, t : t + 1].clone(), past_key_values=cache).logits)
    assert far(torch.cat(parts, 1), expected) < near(kind)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_generate_compiles_it():
    model = patch(tiny("llama"), "chacal", layers=[1])
    expected = generate(model, left_padded(), use_cache=False)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    config = CompileConfig(backend="eager", fullgraph=True, mode=None)
    config._compile_all_devices = True
    got = generate(model, left_padded(), cache_implementation="static", compile_config=config)
    assert torch.equal(got, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_text_longer_than_the_cache_is_refused_in_one_line():
    model, tokens = patch(tiny("gpt2"), "window@4", layers=[0]), draw_tokens(2, 12)
    said = (
        r"13 tokens were given, but the cache of a layer with window@4 holds 12; expected fewer, "
        r"or a cache with a higher max_cache_len"
    )
    with torch.no_grad():
        cache = StaticCache(config=model.config, max_cache_len=12)
        model(tokens, past_key_values=cache)
        with pytest.raises(ValueError, match=said):
            model(tokens[:, :1], past_key_values=cache)


def test_a_compiled_step_beyond_the_cache_is_refused_too():
    model, tokens = patch(tiny("gpt2", n_layer=1), "window@4"), draw_tokens(2, 12)
    torch._dynamo.reset()
    step = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        cache = StaticCache(config=model.config, max_cache_len=12)
        model(tokens[:, :11], past_key_values=cache)
        step(tokens[:, 11:], past_key_values=cache)
        with pytest.raises(RuntimeError, match="the cache of a layer with window@4 holds 12"):
            step(tokens[:, 11:], past_key_values=cache)


def test_what_a_state_cannot_follow_is_refused():
    model, padded = patch(tiny("gpt2"), "chacal", layers=[0]), left_padded()
    tokens, mask = padded["input_ids"], padded["attention_mask"]
    longer = torch.cat([mask, mask.new_ones(3, 1)], 1)

    def new():
        return StaticCache(config=model.config, max_cache_len=20)

    with torch.no_grad():
        for first, later in (({}, longer), (padded, None), (padded, longer.flip(0))):
            cache = new()
            model(**{"input_ids": tokens, **first}, past_key_values=cache)
            with pytest.raises(ValueError, match="attention_mask says otherwise which of the 12"):
                model(tokens[:, :1], attention_mask=later, past_key_values=cache)
        cache = new()
        model(tokens[:2], past_key_values=cache)
        with pytest.raises(ValueError, match="3 sequences were given to a cache of 2"):
            model(tokens[:, :1], past_key_values=cache)
    with pytest.raises(ValueError, match="gradients do not flow through a cache of fixed size"):
        model(tokens, past_key_values=new())


@pytest.mark.parametrize("text", ["block/3", "pooled"])
def test_operators_that_cannot_decode_say_so(text):
    model = patch(tiny("gpt2"), text)
    with pytest.raises(ValueError, match=r"cannot decode.*or use_cache=False"):
        generate(model, {"input_ids": draw_tokens(2, 12)}, cache_implementation="static")


def test_learned_gammas_and_half_precision():
    model = patch(tiny("llama", dtype=torch.bfloat16), "chacal,gamma=learn:0.5", layers=[1])
    tokens = draw_tokens(2, 12)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        cache = StaticCache(config=model.config, max_cache_len=12)
        parts = [
            model(part, past_key_values=cache).logits for part in tokens.split([8, 1, 1, 2], 1)
        ]
    assert far(torch.cat(parts, 1).float(), expected.float()) < 0.05
