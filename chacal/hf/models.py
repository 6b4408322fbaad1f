"""Model classes that come patched: what a patched model's folder is loaded as.

`ChaCALGPT2LMHeadModel` is `GPT2LMHeadModel` whose config (config.py) says which layers have which
operator, and so on for every architecture and head below. Its weights are the stock ones: a plain
GPT-2 checkpoint loads into it, given `chacal_operators`.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BartForCausalLM,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    BartModel,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    MistralForCausalLM,
    MistralForSequenceClassification,
    MistralModel,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2Model,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3Model,
)

from chacal.hf.config import CONFIGS
from chacal.hf.patch import install_from_config


class ChaCALModel:
    """What is added to a stock model: it patches itself as its config says."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        # a stock model stands beside this class
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        install_from_config(self)


def _patched(auto: Any, stock: type[Any]) -> type[Any]:
    """The stock class that patches itself, known to `auto`."""
    config = CONFIGS[stock.config_class.model_type]
    made = type(
        f"ChaCAL{stock.__name__}",
        (ChaCALModel, stock),
        {
            "__module__": __name__,
            "__doc__": f"{stock.__name__} with the operators that its config names.",
            "config_class": config,
        },
    )
    auto.register(config, made)
    return made


ChaCALGPT2Model = _patched(AutoModel, GPT2Model)
ChaCALGPT2LMHeadModel = _patched(AutoModelForCausalLM, GPT2LMHeadModel)
ChaCALGPT2ForSequenceClassification = _patched(
    AutoModelForSequenceClassification, GPT2ForSequenceClassification
)
ChaCALBartModel = _patched(AutoModel, BartModel)
ChaCALBartForCausalLM = _patched(AutoModelForCausalLM, BartForCausalLM)
ChaCALBartForConditionalGeneration = _patched(AutoModelForSeq2SeqLM, BartForConditionalGeneration)
ChaCALBartForSequenceClassification = _patched(
    AutoModelForSequenceClassification, BartForSequenceClassification
)
ChaCALLlamaModel = _patched(AutoModel, LlamaModel)
ChaCALLlamaForCausalLM = _patched(AutoModelForCausalLM, LlamaForCausalLM)
ChaCALLlamaForSequenceClassification = _patched(
    AutoModelForSequenceClassification, LlamaForSequenceClassification
)
ChaCALMistralModel = _patched(AutoModel, MistralModel)
ChaCALMistralForCausalLM = _patched(AutoModelForCausalLM, MistralForCausalLM)
ChaCALMistralForSequenceClassification = _patched(
    AutoModelForSequenceClassification, MistralForSequenceClassification
)
ChaCALQwen2Model = _patched(AutoModel, Qwen2Model)
ChaCALQwen2ForCausalLM = _patched(AutoModelForCausalLM, Qwen2ForCausalLM)
ChaCALQwen2ForSequenceClassification = _patched(
    AutoModelForSequenceClassification, Qwen2ForSequenceClassification
)
ChaCALQwen3Model = _patched(AutoModel, Qwen3Model)
ChaCALQwen3ForCausalLM = _patched(AutoModelForCausalLM, Qwen3ForCausalLM)
ChaCALQwen3ForSequenceClassification = _patched(
    AutoModelForSequenceClassification, Qwen3ForSequenceClassification
)
