"""Tiny random models of every architecture, in float64 so that equal means equal."""

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

EXACT = 1e-10

SINGLE = 2e-5
"""Llama-type models take norms, and eager softmaxes, in float32 whatever their weights are."""

OPERATORS = ["chacal", "block@4", "window@5", "pooled@4", "routed@4", "pattern", "delta"]
"""One of each kind that decodes; a new kind is one more text here."""

VOCABULARY, LAYERS, PAD = 61, 3, 0

TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": PAD}

LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip

KINDS = {
    "gpt2": (
        GPT2LMHeadModel, GPT2Config,
        {"n_positions": 64, "n_embd": 32, "n_layer": LAYERS, "n_head": 4,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "llama": (LlamaForCausalLM, LlamaConfig, LLAMA),
    "mistral": (MistralForCausalLM, MistralConfig, LLAMA),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, LLAMA),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {**LLAMA, "head_dim": 8}),
    "bart": (
        BartForConditionalGeneration, BartConfig,
        {"max_position_embeddings": 64, "d_model": 32, "encoder_layers": 2,
         "decoder_layers": LAYERS, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0,
         "decoder_start_token_id": 1, "forced_eos_token_id": None},
    ),
}  # fmt: skip

NEOX = {name: size for name, size in LLAMA.items() if name != "num_key_value_heads"}

MORE = {
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, NEOX),
    "opt": (
        OPTForCausalLM, OPTConfig,
        {**NEOX, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
    ),
    "phi": (PhiForCausalLM, PhiConfig, LLAMA),
    "phi3": (Phi3ForCausalLM, Phi3Config, LLAMA),
    # its own default does not scale q·k at all, which no Granite does
    "granite": (GraniteForCausalLM, GraniteConfig, {**LLAMA, "attention_multiplier": 0.25}),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config, LLAMA),
    "starcoder2": (Starcoder2ForCausalLM, Starcoder2Config, LLAMA),
    "mixtral": (MixtralForCausalLM, MixtralConfig, {**LLAMA, "num_local_experts": 4}),
    "gemma3": (
        Gemma3ForCausalLM, Gemma3TextConfig,
        {**LLAMA, "head_dim": 8, "sliding_window": 6,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
}  # fmt: skip
"""Architectures that have nothing of their own in chacal.hf: a sample of the others."""

CAUSAL_LM = [kind for kind in KINDS if kind != "bart"]


def tiny(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes):
    """A model with weights large enough for its attention to have preferences."""
    cls, config_class, sizes = {**KINDS, **MORE}[kind]
    std = {"init_std" if kind == "bart" else "initializer_range": 0.3}
    torch.manual_seed(seed)
    config = config_class(**{"vocab_size": VOCABULARY, **sizes, **TOKENS, **std, **changes})
    return cls(config).to(dtype).eval()


def draw_tokens(batch: int, n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, n), generator=generator)


def inputs_of(kind: str, batch: int = 2, n: int = 18, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs of a forward pass; for BART, n is the decoder's."""
    if kind == "bart":
        return {
            "input_ids": draw_tokens(batch, 11, seed + 1),
            "decoder_input_ids": draw_tokens(batch, n, seed),
        }
    return {"input_ids": draw_tokens(batch, n, seed)}


def near(kind: str) -> float:
    """How close equal logits are."""
    return EXACT if kind in ("gpt2", "bart") else SINGLE


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; NaN counts as infinitely far."""
    assert a.shape == b.shape
    return float((a - b).detach().abs().nan_to_num(nan=torch.inf).max())
