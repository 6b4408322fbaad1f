"""Model classes that come patched: what a patched model's folder is loaded as.

`ChaCALGPT2LMHeadModel` is `GPT2LMHeadModel` whose config (config.py) says which layers have which
operator, and so on for every architecture and every one of `HEADS`, made when it is first asked
for. Its weights are the stock ones: a plain GPT-2 checkpoint loads into it, given
`chacal_operators`; a learned γ that it lacks is where it starts.
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
)
from transformers import initialization as init
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

from chacal.hf.config import CLASS_PREFIX, extended
from chacal.hf.patch import install_from_config
from chacal.nn.gamma import LearnedGamma

GAMMA = "chacal_gamma"
"""What a patched module calls its learned γ."""


class ChaCALModel:
    """What is added to a stock model: it patches itself as its config says."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        # a stock model stands beside this class
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        install_from_config(self)

    def initialize_weights(self) -> None:
        """As for the stock model; a γ that a checkpoint does not have is where it starts."""
        for module in self.modules():  # type: ignore[attr-defined]
            if isinstance(module, LearnedGamma):
                init.constant_(module.weight, module.start)  # unless it was loaded
        super().initialize_weights()  # type: ignore[misc]

    @classmethod
    def is_custom_code(cls) -> bool:
        """No: weights and buffers are initialised by the stock code, which may be trusted to.

        Of other people's classes transformers leaves out modules that have no parameters of their
        own, and with them buffers that are in no file (Falcon-H1 has such).
        """
        return False

    def _get_name(self) -> str:
        """The stock class's name: by it the Trainer knows that labels are to be shifted."""
        return type(self).__name__.removeprefix(CLASS_PREFIX)


HEADS = (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForQuestionAnswering,
)
"""Through which a patched model can be loaded, where its architecture has such a head."""

MODELS: dict[str, type[Any]] = {}
"""The classes made so far, by name."""

_MADE: dict[str, dict[Any, type[Any]]] = {}


def made_for(stock: type[PreTrainedConfig]) -> dict[Any, type[Any]]:
    """Our classes for an architecture by the auto classes, which know them from then on."""
    made = _MADE.get(stock.model_type)
    if made is None:
        made = _MADE[stock.model_type] = {}
        for auto in HEADS:
            if stock in auto._model_mapping and isinstance(auto._model_mapping[stock], type):
                made[auto] = _patched(auto._model_mapping[stock])
                auto.register(extended(stock), made[auto])
                _convert_alike(stock.model_type, extended(stock).model_type)
    return made


def _convert_alike(stock: str, ours: str) -> None:
    """Weights are renamed between file and model by the class's name or the model type, if at all.

    As for experts, and for Pythia's head. A folder of ours has the names that a stock one has.
    """
    mapping = get_checkpoint_conversion_mapping(stock)
    if mapping is not None:
        register_checkpoint_conversion_mapping(ours, mapping, overwrite=True)


def _patched(stock: type[Any]) -> type[Any]:
    """The stock class that patches itself."""
    name = CLASS_PREFIX + stock.__name__
    if name not in MODELS:
        MODELS[name] = type(
            name,
            (ChaCALModel, stock),
            {
                "__module__": __name__,
                "__doc__": f"{stock.__name__} with the operators that its config names.",
                "config_class": extended(stock.config_class),
                "chacal_stock": stock,
                "_keep_in_fp32_modules_strict": {
                    *(stock._keep_in_fp32_modules_strict or ()),
                    GAMMA,
                },
            },
        )
        _convert_alike(stock.__name__, name)
    return MODELS[name]


def __getattr__(name: str) -> Any:
    """`ChaCALLlamaForCausalLM` and so on: a class that was not asked for before is made."""
    stock: Any = getattr(transformers, name.removeprefix(CLASS_PREFIX), None)
    if name.startswith(CLASS_PREFIX) and hasattr(stock, "config_class"):
        made_for(stock.config_class)
        if name in MODELS:
            return MODELS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
