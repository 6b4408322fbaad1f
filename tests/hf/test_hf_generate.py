"""`generate` with a cache gives the tokens it gives without one, whichever operator decodes."""

import pytest
import torch
from tiny import CAUSAL_LM, EXACT, KINDS, OPERATORS, PAD, draw_tokens, far, inputs_of, near, tiny
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from chacal.hf import OperatorLayer, new_cache, patch, unpatch

operators = pytest.mark.parametrize("text", OPERATORS)

NEW = 14


def left_padded(n: int = 12) -> dict[str, torch.Tensor]:
    tokens = draw_tokens(3, n)
    mask = torch.ones_like(tokens)
    mask[1, :5] = mask[2, :1] = 0
    return {"input_ids": tokens.masked_fill(mask == 0, PAD), "attention_mask": mask}


def generate(model, inputs, **options):
    torch.manual_seed(0)
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, **options}
    return model.generate(**inputs, pad_token_id=PAD, **options)


MODES = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 0.7},
    "beams": {"num_beams": 4},
    "chunked prefill": {"prefill_chunk_size": 5},
}


@operators
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_changes_nothing(text, mode, padded):
    model = patch(tiny("gpt2"), text, layers=[0, 2])
    inputs = left_padded() if padded else {"input_ids": draw_tokens(2, 12)}
    plain = {k: v for k, v in MODES[mode].items() if k != "prefill_chunk_size"}
    expected = generate(model, inputs, use_cache=False, **plain)
    assert torch.equal(generate(model, inputs, **MODES[mode]), expected)
    assert not torch.equal(generate(unpatch(model), inputs, **plain), expected)


@operators
def test_prompt_lookup(text, monkeypatch):
    taken_back = []
    crop = OperatorLayer.crop
    monkeypatch.setattr(
        OperatorLayer, "crop", lambda self, count: (taken_back.append(count), crop(self, count))[1]
    )
    model = patch(tiny("gpt2"), text, layers=[0, 2])
    prompt = draw_tokens(1, 4).repeat(1, 5)  # something to look up
    expected = generate(model, {"input_ids": prompt}, use_cache=False, max_new_tokens=30)
    got = generate(
        model, {"input_ids": prompt}, max_new_tokens=30, prompt_lookup_num_tokens=6,
        max_matching_ngram_size=1,
    )  # fmt: skip
    assert torch.equal(got, expected)
    assert min(taken_back) < 0  # candidates that the model did not mean


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["greedy", "beams"])
def test_every_architecture_generates(kind, mode):
    model = patch(tiny(kind), "chacal", layers=[1])
    inputs = left_padded() if kind != "bart" else {"input_ids": inputs_of("bart")["input_ids"]}
    expected = generate(model, inputs, use_cache=False, **MODES[mode])
    assert torch.equal(generate(model, inputs, **MODES[mode]), expected)
    assert not torch.equal(generate(unpatch(model), inputs, **MODES[mode]), expected)


@operators
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_any_split_gives_the_logits_of_one_call(text, kind):
    model, tokens = patch(tiny(kind), text), draw_tokens(2, 30)
    expected = model(tokens, use_cache=False).logits
    with torch.no_grad():
        for cuts in ([1] * 30, [9, 1, 1, 19], [30]):
            cache, parts = DynamicCache(config=model.config), []
            for part in tokens.split(cuts, 1):
                parts.append(model(part, past_key_values=cache).logits)
            assert far(torch.cat(parts, 1), expected) < near(kind)
            assert cache.get_seq_length() == 30


@operators
def test_crop_and_go_on(text):
    model, tokens = patch(tiny("gpt2"), text, layers=[1]), draw_tokens(2, 24)
    with torch.no_grad():
        cache = model(tokens[:, :20]).past_key_values
        cache.crop(-7)
        assert cache.get_seq_length() == cache.get_seq_length(1) == 13
        logits = model(tokens[:, 13:], past_key_values=cache).logits
        assert far(logits, model(tokens).logits[:, 13:]) < EXACT


def test_batches_are_selected_and_repeated():
    model, tokens = patch(tiny("gpt2"), "chacal", layers=[1]), draw_tokens(3, 12)
    expected = model(tokens).logits[:, 10:]
    with torch.no_grad():
        cache = model(tokens[:, :10]).past_key_values
        cache.batch_select_indices(torch.tensor([2, 0]))
        cache.batch_repeat_interleave(2)
        index = [2, 2, 0, 0]
        logits = model(tokens[index, 10:], past_key_values=cache).logits
        assert far(logits, expected[index]) < EXACT
        cache.reset()
        assert far(model(tokens, past_key_values=cache).logits[:, 10:], expected) < EXACT


def test_a_cache_made_with_gradients_goes_on_without():
    model, tokens = patch(tiny("llama"), "chacal", layers=[1]), draw_tokens(2, 15)
    outputs = model(tokens[:, :10])
    outputs.logits.sum().backward()
    assert float(model.model.layers[1].self_attn.v_proj.weight.grad.abs().max()) > 0
    with pytest.raises(ValueError, match=r"holds 10 tokens.*gradients do not flow"):
        model(tokens[:, 10:], past_key_values=outputs.past_key_values)
    with torch.no_grad():
        cache = model(tokens[:, :10]).past_key_values
        logits = model(tokens[:, 10:], past_key_values=cache).logits
    assert far(logits, model(tokens).logits[:, 10:]) < near("llama")


def test_what_was_computed_with_gradients_is_cropped_and_continued():
    model, tokens = patch(tiny("gpt2"), "chacal", layers=[1]), draw_tokens(2, 15)
    cache = model(tokens[:, :10]).past_key_values
    cache.crop(-3)
    with torch.no_grad():
        logits = model(tokens[:, 7:], past_key_values=cache).logits
    assert far(logits, model(tokens).logits[:, 7:]) < EXACT


# Which layers hold what


def test_only_patched_layers_hold_a_decoder():
    model = patch(tiny("gpt2"), "window@5", layers=[1])
    with torch.no_grad():
        for cache in (None, DynamicCache(), new_cache(model, rollback=3)):
            cache = model(draw_tokens(2, 40), past_key_values=cache).past_key_values
            assert [isinstance(layer, OperatorLayer) for layer in cache.layers] == [0, 1, 0]
            assert cache.layers[0].keys.shape == (2, 4, 40, 8)
            assert cache.layers[1].get_seq_length() == 40
    # a window's state does not hold the 40 tokens; 3 can be taken back
    cache.crop(-3)
    with pytest.raises(ValueError, match="higher rollback"):
        cache.crop(-36)


STOCK = {
    "dynamic": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=40),
}


@pytest.mark.parametrize("stock", STOCK)
def test_a_cache_of_raw_values_is_refused(stock):
    model, tokens = tiny("gpt2"), draw_tokens(2, 10)
    cache = STOCK[stock](model.config)
    with torch.no_grad():
        model(tokens, past_key_values=cache)
        patch(model, "chacal", layers=[1])
        with pytest.raises(ValueError, match=r"layer 1 has chacal and the cache, a \w+, keeps raw"):
            model(tokens[:, :1], past_key_values=cache)


def test_other_kinds_of_cache_are_refused_even_when_empty():
    model, tokens = patch(tiny("gpt2"), "chacal", layers=[1]), draw_tokens(2, 10)

    class Mine(DynamicCache):
        pass

    with pytest.raises(ValueError, match=r"keeps raw K and V.*chacal\.hf\.new_cache\(model\)"):
        model(tokens, past_key_values=Mine(config=model.config))


def test_a_mask_that_hides_other_past_tokens_is_refused():
    # other layers would follow it, and a state cannot
    model, padded = patch(tiny("gpt2"), "chacal", layers=[1]), left_padded()
    tokens, mask = padded["input_ids"], padded["attention_mask"]
    longer = torch.cat([mask, mask.new_ones(3, 1)], 1)
    with torch.no_grad():
        for first, later in (({}, longer), (padded, None), (padded, longer.flip(0))):
            cache = model(**{"input_ids": tokens, **first}).past_key_values
            with pytest.raises(ValueError, match="attention_mask says otherwise which of the 12"):
                model(tokens[:, :1], attention_mask=later, past_key_values=cache)
        cache = model(**padded).past_key_values
        # what it says is followed through selecting and cropping
        cache.batch_select_indices(torch.tensor([2, 1]))
        cache.crop(-2)
        rest = {"attention_mask": mask[[2, 1]], "past_key_values": cache}
        logits = model(tokens[[2, 1], 10:], **rest).logits
        assert far(logits, model(**padded).logits[[2, 1], 10:]) < EXACT
        # and is nothing once the padded sequences are gone
        cache = model(**padded).past_key_values
        cache.batch_select_indices(torch.tensor([0]))
        model(tokens[:1, :1], past_key_values=cache)


def test_an_offloaded_cache_is_refused():
    model, cache = patch(tiny("gpt2"), "chacal", layers=[0]), DynamicCache()
    cache.offloading = True  # the constructor wants a GPU
    with pytest.raises(ValueError, match="the cache is offloaded"):
        model(draw_tokens(2, 6), past_key_values=cache)


def test_a_cache_follows_its_operator():
    model, tokens = patch(tiny("gpt2"), "chacal", layers=[1]), draw_tokens(2, 10)
    with torch.no_grad():
        cache = model(tokens).past_key_values
        patch(model, "window@5", layers=[1])
        with pytest.raises(ValueError, match="has window@5 and the cache was filled by chacal"):
            model(tokens[:, :1], past_key_values=cache)
        unpatch(model)
        with pytest.raises(ValueError, match="filled by a layer with chacal"):
            model(tokens[:, :1], past_key_values=cache)


@pytest.mark.parametrize("given", [False, True])
def test_an_encoder_decoder_cache_is_fitted_on_its_decoder_side(given):
    model, inputs = patch(tiny("bart"), "chacal", layers=[0]), inputs_of("bart", n=9)
    expected = model(**inputs, use_cache=False).logits
    tokens = inputs.pop("decoder_input_ids")
    with torch.no_grad():
        parts, cache = [], new_cache(model) if given else None
        for part in tokens.split([4, 1, 4], 1):
            outputs = model(**inputs, decoder_input_ids=part, past_key_values=cache)
            cache = outputs.past_key_values
            parts.append(outputs.logits)
    assert isinstance(cache, EncoderDecoderCache)
    assert isinstance(cache.self_attention_cache.layers[0], OperatorLayer)
    assert far(torch.cat(parts, 1), expected) < EXACT


def test_a_decoder_with_cross_attention_of_its_own():
    model = tiny("gpt2", add_cross_attention=True)
    tokens, states = draw_tokens(2, 12), torch.randn(2, 5, 32, dtype=torch.float64)
    dense = model(tokens, encoder_hidden_states=states).logits
    patch(model, "chacal,gamma=0")
    assert far(model(tokens, encoder_hidden_states=states).logits, dense) < EXACT
    patch(model, "chacal")
    expected = model(tokens, encoder_hidden_states=states, use_cache=False).logits
    with torch.no_grad():
        cache = model(tokens[:, :8], encoder_hidden_states=states).past_key_values
        logits = model(tokens[:, 8:], encoder_hidden_states=states, past_key_values=cache).logits
    assert far(logits, expected[:, 8:]) < EXACT
    assert far(expected, dense) > 1e-3


@pytest.mark.parametrize("text", ["block/3", "pooled", "bigbird@3", "chacal,top_k=3"])
def test_operators_that_cannot_decode_say_so_when_asked_to_go_on(text):
    model, inputs = patch(tiny("gpt2"), text), {"input_ids": draw_tokens(2, 12)}
    with torch.no_grad():
        once = model(**inputs).logits  # a whole sequence is fine
    assert far(once, model(**inputs, use_cache=False).logits) < EXACT
    with pytest.raises(ValueError, match=r"cannot decode.*or use_cache=False"):
        generate(model, inputs)
    assert generate(model, inputs, use_cache=False).shape == (2, 12 + NEW)


def test_float32_generates_what_it_generates_without_a_cache():
    for kind in CAUSAL_LM:
        model = patch(tiny(kind, dtype=torch.float32), "chacal")
        expected = generate(model, left_padded(), use_cache=False)
        assert torch.equal(generate(model, left_padded()), expected)
