"""Model classes that come patched: what a patched model's folder is loaded as.

`ChaCALGPT2LMHeadModel` is `GPT2LMHeadModel` whose config (config.py) says which layers have which
operator, and so on for every architecture of `CONFIGS` and every one of `HEADS`. Its weights are
the stock ones: a plain GPT-2 checkpoint loads into it, given `chacal_operators`.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from chacal.hf.config import CONFIGS
from chacal.hf.patch import install_from_config

PREFIX = "ChaCAL"
"""Before a stock class's name."""


class ChaCALModel:
    """What is added to a stock model: it patches itself as its config says."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        # a stock model stands beside this class
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        install_from_config(self)

    def _get_name(self) -> str:
        """The stock class's name: by it the Trainer knows that labels are to be shifted."""
        return type(self).__name__.removeprefix(PREFIX)


def _patched(auto: Any, stock: type[Any]) -> type[Any]:
    """The stock class that patches itself, known to `auto`."""
    config = CONFIGS[stock.config_class.model_type]
    made = type(
        PREFIX + stock.__name__,
        (ChaCALModel, stock),
        {
            "__module__": __name__,
            "__doc__": f"{stock.__name__} with the operators that its config names.",
            "config_class": config,
        },
    )
    auto.register(config, made)
    return made


HEADS = (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForQuestionAnswering,
)
"""Through which a patched model can be loaded, where its architecture has such a head."""

MODELS: dict[str, type[Any]] = {
    made.__name__: made
    for config in CONFIGS.values()
    for auto in HEADS
    if config.stock in auto._model_mapping
    for made in [_patched(auto, auto._model_mapping[config.stock])]
}
"""Every class by its name; they are names of this module too, as pickling them asks for."""

globals().update(MODELS)

ChaCALGPT2LMHeadModel = MODELS["ChaCALGPT2LMHeadModel"]
ChaCALBartForConditionalGeneration = MODELS["ChaCALBartForConditionalGeneration"]
ChaCALLlamaForCausalLM = MODELS["ChaCALLlamaForCausalLM"]
