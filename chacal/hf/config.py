"""Configs that say which layers are patched, so that nothing is ever loaded as dense by mistake.

A patched model's config is of a class of its own ("chacal_gpt2" for "gpt2") with two more fields,
made from the stock class when it is first asked for. transformers knows that type once `chacal.hf`
is imported. Where it is not, the file names the code that imports it (`auto_map`), which stands in
the same folder (`code_of`), and an AutoModel runs it if it is told `trust_remote_code=True`.
`GPT2LMHeadModel.from_pretrained` would go on with a warning; therefore the file also marks the
patched layers in `layer_types`, where every stock config refuses a type it does not know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from chacal._extras import install
from chacal.operators import spelled_out

PREFIX = "chacal_"
MARK = "chacal|"
"""Before a patched layer's type in the file."""
PLAIN = "full_attention"
CODE = "modeling_chacal"
"""The file that a saved folder carries, without its ending."""


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
        """As for the stock config, with the patched layers marked and our classes named."""
        fields = super().to_dict()  # type: ignore[misc]
        patched = self._patched_layers()
        if patched:
            classes = self.chacal_classes()
            fields["auto_map"] = {auto: f"{CODE}.{name}" for auto, name in classes.items()}
            # a model that was patched in place is saved by its stock class's name
            ours = {name.removeprefix(CLASS_PREFIX): name for name in classes.values()}
            named = fields.get("architectures") or []
            fields["architectures"] = [ours.get(name, name) for name in named] or None
            types = fields.get("layer_types") or [PLAIN] * (1 + max(patched))
            fields["layer_types"] = [
                MARK * (i in patched) + str(kind).removeprefix(MARK) for i, kind in enumerate(types)
            ]
        return fields

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As for the stock config, with the code beside it that `auto_map` names."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        code = code_of(self.chacal_classes(), self.chacal_operators)
        (folder / f"{CODE}.py").write_text(code, encoding="utf-8")
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]

    @classmethod
    def chacal_classes(cls) -> dict[str, str]:
        """Our classes for this architecture by the names of the auto classes that load them."""
        from chacal.hf.models import made_for

        models = {auto.__name__: made.__name__ for auto, made in made_for(cls.stock).items()}
        return {"AutoConfig": cls.__name__, **models}

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: what is saved names its code already, and this file is no copy of it."""

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
        fields.pop("auto_map", None)  # the classes are here
        # saved before their operators had more options, texts mean what they meant then
        if isinstance(texts := fields.get("chacal_operators"), dict):
            fields["chacal_operators"] = {
                layer: spelled_out(text, stored=True) if isinstance(text, str) else text
                for layer, text in texts.items()
            }
        types = fields.pop("layer_types", None)
        if types is not None and "layer_types" in cls.stock().to_dict():
            fields["layer_types"] = [str(kind).removeprefix(MARK) for kind in types]
        return super().from_dict(fields, **kwargs)  # type: ignore[misc]

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """A stock checkpoint's config is as good as our own."""
        fields, rest = super().get_config_dict(*args, **kwargs)  # type: ignore[misc]
        if fields.get("model_type") == cls.stock.model_type:
            fields = {**fields, "model_type": cls.model_type}  # type: ignore[attr-defined]
        return fields, rest


CLASS_PREFIX = "ChaCAL"
"""Before a stock class's name."""

CONFIGS: dict[str, type[Any]] = {}
"""The classes made so far, by the stock model type."""


def extended(stock: type[PreTrainedConfig]) -> type[Any]:
    """The stock config class with our fields, under a type of its own that AutoConfig knows."""
    made = CONFIGS.get(stock.model_type)
    if made is None:
        made = CONFIGS[stock.model_type] = type(
            CLASS_PREFIX + stock.__name__,
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
        CONFIG_MAPPING.register(made.model_type, made, exist_ok=True)
        made.chacal_classes()  # AutoModels know them from now on
    return made


def stock_of(model_type: str) -> type[PreTrainedConfig]:
    """The stock config class of a model type, be it ours."""
    return CONFIG_MAPPING[model_type.removeprefix(PREFIX)]


def __getattr__(name: str) -> Any:
    """`ChaCALLlamaConfig` and so on: a class that was not asked for before is made."""
    wanted = name.removeprefix(CLASS_PREFIX)
    if name != wanted:
        for model_type, stock in CONFIG_MAPPING._mapping.items():
            if stock == wanted:
                return extended(stock_of(model_type))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Later:
    """Stands in AutoConfig for a class of ours until it is asked for.

    There are hundreds of architectures, and to import them all would take seconds.
    """

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type
        self.__name__ = f"{type(self).__name__}:{PREFIX}{model_type}"

    def __call__(self, *args: Any, **fields: Any) -> Any:
        """A config."""
        return extended(stock_of(self.model_type))(*args, **fields)

    def from_dict(self, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """A config from what was saved."""
        return extended(stock_of(self.model_type)).from_dict(config_dict, **kwargs)


for _type in list(CONFIG_MAPPING._mapping):
    CONFIG_MAPPING.register(PREFIX + _type, Later(_type))


def code_of(classes: dict[str, str], operators: Any) -> str:
    """The few lines in a saved folder by which programs that do not know chacal load it."""
    config, *models = dict.fromkeys(classes.values())
    names = "".join(f"        {name},\n" for name in sorted(set(models)))
    texts = operators if isinstance(operators, dict) else {"all": operators}
    told = "; ".join(f"{layer}: {text}" for layer, text in texts.items())
    return f'''"""Layers of this model attend by operators of chacal, which this file imports.

By layer: {told}
"""

try:
    from chacal.hf.config import {config}
    from chacal.hf.models import (
{names}    )
except ImportError as error:
    raise ImportError(
        f"this model has layers with operators of chacal, and chacal.hf cannot be imported "
        f"({{error}}); expected chacal in this environment: {install("hf")}"
    ) from None
'''
