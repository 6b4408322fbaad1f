"""Any decoder that takes its attention from transformers' interface; obstacles are named."""

import json
import logging

import pytest
import torch
from tiny import LLAMA, MORE, VOCABULARY, draw_tokens, far, tiny
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from chacal.hf import gammas, operators_of, patch, unpatch
from chacal.hf.attention import attend
from chacal.hf.decoders import causal_attentions, count_heads

NEAR = 2e-5
"""Float32, and logits of about 10."""

kinds = pytest.mark.parametrize("kind", MORE)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("transformers").setLevel(logging.ERROR)


def full_layers(kind):
    return [1] if kind == "gemma3" else "all"


@kinds
def test_a_decoder_of_any_architecture(kind, tmp_path):
    model, tokens = tiny(kind, dtype=torch.float32), draw_tokens(2, 14)
    with torch.no_grad():
        dense = model(tokens, use_cache=False).logits
        patch(model, "chacal,gamma=learn", layers=full_layers(kind))
        assert far(model(tokens, use_cache=False).logits, dense) < 1e-5
        for attention in causal_attentions(model).values():
            if hasattr(attention, "chacal_gamma"):
                attention.chacal_gamma.weight.copy_(torch.linspace(0, 0.9, count_heads(attention)))
        expected = model(tokens, use_cache=False).logits
        assert far(expected, dense) > 1e-3

        cache, parts = None, []
        for part in tokens.split([8, 1, 1, 4], 1):
            outputs = model(part, past_key_values=cache, use_cache=True)
            cache = outputs.past_key_values
            parts.append(outputs.logits)
        assert far(torch.cat(parts, 1), expected) < NEAR
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None,
                   "pad_token_id": 0}  # fmt: skip
        cached, plain = (model.generate(tokens, use_cache=use, **options) for use in (True, False))
        assert torch.equal(cached, plain)

        model.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        assert type(loaded).__name__ == f"ChaCAL{MORE[kind][0].__name__}"
        assert torch.equal(loaded(tokens, use_cache=False).logits, expected)
        assert gammas(loaded) == gammas(model)
        with pytest.raises(Exception, match=r"layer_types.*chacal"):
            MORE[kind][0].from_pretrained(tmp_path)

        # and it is what it was, as a class and in the file
        unpatch(loaded).save_pretrained(tmp_path / "plain")
        assert type(loaded) is MORE[kind][0]
        saved = json.loads((tmp_path / "plain" / "config.json").read_text())
        assert saved["architectures"] == [MORE[kind][0].__name__]
        assert "auto_map" not in saved
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
        assert far(again(tokens, use_cache=False).logits, dense) == 0


@kinds
def test_padding_and_gradients(kind):
    model = tiny(kind, dtype=torch.float32)
    patch(model, "chacal,gamma=learn:0.5", layers=full_layers(kind))
    tokens = draw_tokens(2, 10)
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    logits = model(tokens, attention_mask=mask, use_cache=False).logits
    assert far(logits[1, :6], model(tokens[1:, :6], use_cache=False).logits[0]) < NEAR
    logits.sum().backward()
    weight = causal_attentions(model)[1].chacal_gamma.weight
    assert float(weight.grad.abs().max()) > 0


def test_a_layer_that_slides_is_refused_and_left_out_by_layers():
    model = tiny("gemma3", dtype=torch.float32)
    for layers in ("all", [0], [1, 2]):
        with pytest.raises(
            ValueError, match=r"layer [02] sees only a sliding window .*expected layers=\[1\]"
        ):
            patch(model, "chacal,gamma=learn", layers=layers)
    assert operators_of(model) == {}
    # beyond the window of the others, too
    tokens = draw_tokens(1, 20)
    dense = model(tokens).logits
    patch(model, "chacal,gamma=learn", layers=[1])
    assert far(model(tokens).logits, dense) < 1e-5


SIZES = {**LLAMA, "vocab_size": VOCABULARY, "head_dim": 8, "pad_token_id": 0}


def test_soft_caps_sinks_and_biases_are_refused_by_name():
    capped = Gemma2ForCausalLM(Gemma2Config(**SIZES))
    with pytest.raises(ValueError, match=r"caps its scores softly \(attn_logit_softcapping=50"):
        patch(capped, "chacal")
    plain = Gemma2Config(**SIZES, attn_logit_softcapping=None, layer_types=["full_attention"] * 3)
    assert len(operators_of(patch(Gemma2ForCausalLM(plain), "chacal"))) == 3
    sinking = GptOssForCausalLM(GptOssConfig(**SIZES, num_local_experts=4))
    with pytest.raises(ValueError, match="layer 0 has attention sinks"):
        patch(sinking, "chacal", layers=[0])
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    )
    with pytest.raises(ValueError, match="layer 0 adds a bias by relative position"):
        patch(t5, "chacal")
    # and should a module ask for them all the same
    q = torch.zeros(1, 4, 6, 8)
    attention = causal_attentions(patch(tiny("llama"), "chacal"))[0]
    for name in ("softcap", "s_aux", "position_bias"):
        with pytest.raises(ValueError, match=f"chacal was called with {name}; expected plain"):
            attend(attention, q, q, q, None, **{name: 1.0})


def test_a_cache_that_cannot_hold_the_state_is_refused(tmp_path):
    tokens = draw_tokens(1, 6)
    twice = DiffLlamaForCausalLM(DiffLlamaConfig(**SIZES)).eval()
    dense = twice(tokens, use_cache=False).logits
    patch(twice, "chacal,gamma=learn")
    assert far(twice(tokens, use_cache=False).logits, dense) < 1e-5
    with torch.no_grad(), pytest.raises(ValueError, match="attends more than once a token"):
        twice(tokens, use_cache=True)
    assert far(twice(tokens, use_cache=False).logits, dense) < 1e-5
    more = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
    hybrid = FalconH1ForCausalLM(FalconH1Config(**SIZES, **more)).eval()
    patch(hybrid, "chacal,gamma=learn")
    with torch.no_grad(), pytest.raises(ValueError, match=r"layer 0 .* keeps more than K and V"):
        hybrid(tokens, use_cache=True)
    # it has buffers that are in no file, which only its own code can fill
    hybrid.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    expected = hybrid(tokens, use_cache=False).logits
    assert torch.equal(loaded(tokens, use_cache=False).logits, expected)
    # keys that come from a cache which no hook has seen
    attention = causal_attentions(patch(tiny("llama"), "chacal"))[0]
    q, k = torch.zeros(1, 4, 1, 8), torch.zeros(1, 2, 6, 8)
    with pytest.raises(ValueError, match="gave 6 keys to 1 queries, from a cache of its own"):
        attend(attention, q, k, k, None)


def test_a_language_model_inside_another_is_refused():
    text = {**LLAMA, "vocab_size": VOCABULARY, "model_type": "llama"}
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 16,
              "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
              "patch_size": 4}  # fmt: skip
    whole = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=vision))
    with pytest.raises(ValueError, match=r"has its language model as a part.*itself"):
        patch(whole, "chacal")


def test_keys_of_a_group_are_kept_once():
    model, tokens = patch(tiny("llama"), "chacal", layers=[1]), draw_tokens(2, 12)
    with torch.no_grad():
        cache = model(tokens).past_key_values
    # 4 query heads of width 8 over 2 of keys, in float64: keys once a group, Z for every head
    assert cache.layers[1].decoder.nbytes == 8 * 2 * 12 * 8 * (2 + 4)
    assert cache.layers[0].keys.numel() + cache.layers[0].values.numel() == 2 * 12 * 8 * (2 + 2)
