"""Configs that say which layers are patched, so that nothing is ever loaded as dense by mistake.

A patched model's config is of a class of its own ("chacal_gpt2" for "gpt2") with two more fields.
transformers knows that type only once `chacal.hf` is imported, so an AutoModel without it stops.
`GPT2LMHeadModel.from_pretrained` would go on with a warning; therefore the file also marks the
patched layers in `layer_types`, where every stock config refuses a type it does not know.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoConfig,
    BartConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from chacal.operators import spelled_out

PREFIX = "chacal_"
MARK = "chacal|"
"""Before a patched layer's type in the file."""
PLAIN = "full_attention"


class ChaCALConfig:
    """What is added to a stock config: the methods; the fields are added by `_extended`.

    Attributes:
        chacal_operators: operator texts by layer, as in {"1": "chacal"}; one text means all layers.
        chacal_allow_leak: whether operators that see later tokens were asked for.
    """

    stock: type[PreTrainedConfig]
    chacal_operators: dict[str, str] | str | None
    chacal_allow_leak: bool

    # mypy sees only this class: a stock config, which has the rest, stands beside it

    def to_dict(self) -> dict[str, Any]:
        """As for the stock config, with the patched layers marked."""
        fields = super().to_dict()  # type: ignore[misc]
        patched = self._patched_layers()
        if patched:
            types = fields.get("layer_types") or [PLAIN] * (1 + max(patched))
            fields["layer_types"] = [
                MARK * (i in patched) + str(kind).removeprefix(MARK) for i, kind in enumerate(types)
            ]
        return fields

    def _patched_layers(self) -> set[int]:
        """As the fields say; a model that is made from them checks them."""
        if isinstance(self.chacal_operators, str):
            count = getattr(self, "decoder_layers", None) or self.num_hidden_layers  # type: ignore[attr-defined]
            return set(range(count))
        return {int(i) for i in self.chacal_operators or () if str(i).isdigit()}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """From what `to_dict` gave, or from a stock config's fields."""
        fields = dict(config_dict)
        # saved before their operators had more options, texts mean what they meant then
        if isinstance(texts := fields.get("chacal_operators"), dict):
            fields["chacal_operators"] = {
                layer: spelled_out(text, stored=True) if isinstance(text, str) else text
                for layer, text in texts.items()
            }
        types = fields.pop("layer_types", None)
        if types is not None and hasattr(cls.stock(), "layer_types"):
            fields["layer_types"] = [str(kind).removeprefix(MARK) for kind in types]
        return super().from_dict(fields, **kwargs)  # type: ignore[misc]

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """A stock checkpoint's config is as good as our own."""
        fields, rest = super().get_config_dict(*args, **kwargs)  # type: ignore[misc]
        if fields.get("model_type") == cls.stock.model_type:
            fields = {**fields, "model_type": cls.model_type}  # type: ignore[attr-defined]
        return fields, rest


def _extended(stock: type[PreTrainedConfig]) -> type[Any]:
    """The stock config class with our fields, under a type of its own."""
    return type(
        f"ChaCAL{stock.__name__}",
        (ChaCALConfig, stock),
        {
            "__module__": __name__,
            "__doc__": f"{stock.__name__} of a model with patched layers (`ChaCALConfig`).",
            "__annotations__": {
                "chacal_operators": dict[str, str] | str | None,
                "chacal_allow_leak": bool,
            },
            "model_type": PREFIX + stock.model_type,
            "stock": stock,
            "chacal_operators": None,
            "chacal_allow_leak": False,
        },
    )


ChaCALGPT2Config = _extended(GPT2Config)
ChaCALBartConfig = _extended(BartConfig)
ChaCALLlamaConfig = _extended(LlamaConfig)
ChaCALMistralConfig = _extended(MistralConfig)
ChaCALQwen2Config = _extended(Qwen2Config)
ChaCALQwen3Config = _extended(Qwen3Config)

CONFIGS: dict[str, type[Any]] = {
    cls.stock.model_type: cls
    for cls in (
        ChaCALGPT2Config,
        ChaCALBartConfig,
        ChaCALLlamaConfig,
        ChaCALMistralConfig,
        ChaCALQwen2Config,
        ChaCALQwen3Config,
    )
}
"""By the stock model type: the architectures that can be patched."""

for _config in CONFIGS.values():
    AutoConfig.register(_config.model_type, _config)
