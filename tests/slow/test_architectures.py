"""Every causal language model of transformers that can be made tiny is patched right, or refused.

The sizes are guesses at what configs call things, so some models cannot be made from them; how
many can is counted, lest the test pass for want of models.
"""

import logging
from collections import defaultdict

import pytest
import torch

pytest.importorskip("transformers")

from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from chacal.hf import gammas, patch
from chacal.hf.decoders import causal_attentions, objection

NEAR = 5e-5
"""Float32, logits of about 10, weights larger than a model's are."""
LARGEST = 3e7
"""Parameters: more, and the sizes were not understood."""
AT_LEAST = 75
"""Architectures that come through; 83 of 183 with transformers 5.22.2."""

ALIKE = {
    32: ("hidden_size", "d_model", "n_embd", "word_embed_proj_dim"),
    48: ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"),
    3: ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"),
    4: ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads",
        "encoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts",
        "qk_rope_head_dim"),
    2: ("num_key_value_heads", "encoder_layers", "num_experts_per_tok", "eos_token_id"),
    8: ("head_dim", "global_head_dim", "v_head_dim", "qk_nope_head_dim", "kv_lora_rank",
        "q_lora_rank", "query_pre_attn_scalar"),
    16: ("moe_intermediate_size", "shared_expert_intermediate_size"),
    64: ("max_position_embeddings", "n_positions"),
    61: ("vocab_size", "vocab_size_per_layer_input"),
    1: ("bos_token_id", "n_group", "topk_group", "first_k_dense_replace"),
    0: ("pad_token_id", "dropout", "attention_dropout", "hidden_dropout", "resid_pdrop",
        "embd_pdrop", "attn_pdrop"),
    0.3: ("initializer_range",),
}  # fmt: skip
SIZES = {name: size for size, names in ALIKE.items() for name in names}


def tiny(kind):
    """A tiny random model of a type and its logits, or None."""
    config_class = CONFIG_MAPPING[kind]
    default = config_class()
    fields = {name: size for name, size in SIZES.items() if hasattr(default, name)}
    if types := default.to_dict().get("layer_types"):
        fields["layer_types"] = (list(dict.fromkeys(types)) * 3)[:3]
    config, cls = config_class(**fields), AutoModelForCausalLM._model_mapping[config_class]
    with torch.device("meta"):
        if sum(p.numel() for p in cls(config).parameters()) > LARGEST:
            return None
    torch.manual_seed(0)
    model = cls(config).eval()
    return model, model(input_ids=TOKENS, use_cache=False).logits


TOKENS = torch.randint(3, 60, (2, 14), generator=torch.Generator().manual_seed(0))


def by_cache(model):
    """Logits of a prompt and one token at a time."""
    outputs = model(input_ids=TOKENS[:, :9], use_cache=True)
    parts = [outputs.logits]
    for token in TOKENS[:, 9:].split(1, 1):
        outputs = model(input_ids=token, past_key_values=outputs.past_key_values, use_cache=True)
        parts.append(outputs.logits)
    return torch.cat(parts, 1)


def outcome(kind, folder):
    """What became of a type: "right", or why not."""
    try:
        made = tiny(kind)
        stock_caches = made is not None and far(by_cache(made[0]), made[1]) < NEAR
    except Exception:  # sizes that do not fit each other raise anything
        made = None
    if made is None:
        return "not made"
    model, dense = made
    try:
        attentions = causal_attentions(model)
        layers = [i for i, attention in attentions.items() if objection(attention) is None]
        patch(model, "chacal,gamma=learn", layers=layers or "all")
        zero = model(input_ids=TOKENS, use_cache=False).logits
    except ValueError as error:
        return "refused" if "expected" in str(error) else f"wrong: {error}"
    for i in layers:
        attentions[i].chacal_gamma.weight.fill_(0.5)
    half = model(input_ids=TOKENS, use_cache=False).logits
    model.save_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    try:
        cached = far(by_cache(model), half) < NEAR or not stock_caches
    except ValueError as error:
        cached = "expected" in str(error)
    held = {
        "γ = 0 gives its own logits": far(zero, dense) < NEAR,
        "γ = 0.5 gives others": far(half, dense) > 10 * NEAR,
        "cache equals no cache, or is refused": cached,
        "loaded as saved": far(loaded(input_ids=TOKENS, use_cache=False).logits, half) < NEAR,
        "γ is kept": gammas(loaded) == gammas(model),
    }
    broken = [what for what, holds in held.items() if not holds]
    return f"wrong: not so that {', '.join(broken)}" if broken else "right"


def far(a, b):
    return float((a - b).abs().nan_to_num(nan=torch.inf).max())


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_every_architecture_is_right_or_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    found = defaultdict(list)
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        found[outcome(kind, tmp_path / kind)].append(kind)
    print({what: len(kinds) for what, kinds in found.items()})
    assert {what: kinds for what, kinds in found.items() if what.startswith("wrong")} == {}
    assert len(found["right"]) >= AT_LEAST
