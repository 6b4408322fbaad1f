"""A transformers model as the training loop calls it: tokens in, scores of classes out.

A causal language model gives its own scores of the next token. Where a task has other classes, a
linear layer reads them off every position, as transformers' sequence classifiers read them off the
last one. An encoder-decoder is given both its sequences in one row, the input before the output.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    GenerationConfig,
    GPT2Config,
)
from transformers.utils import logging

from chacal._extras import install
from chacal.hf.cache import can_decode
from chacal.hf.config import ChaCALConfig
from chacal.hf.decoders import causal_attentions, open_layers
from chacal.hf.patch import operators_of, patch
from chacal.hf.tuning import add_lora, freeze
from chacal.operators import Dense, Operator

FRESH = ("gpt2", "bart")
"""Architectures that can be made with new weights."""

ALLOW_PICKLE = "CHACAL_ALLOW_PICKLE"
"""Set to 1 in the environment, weights that are a pickle are read too."""

SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
"""All that is kept of a checkpoint's generation config."""


class Scores(nn.Module):
    """A model, and a head where the task's classes are not the model's tokens."""

    def __init__(self, model: Any, *, classes: int | None = None, inputs: int = 0) -> None:
        """Wrap a model.

        Args:
            model: a causal language model, a decoder without a head, or an encoder-decoder.
            classes: of a new head on a decoder; None for the model's own scores.
            inputs: tokens of a row that belong to the encoder, where there is one.
        """
        super().__init__()
        self.model, self.inputs = model, inputs
        if inputs:
            # greedy answers, whatever a checkpoint asks for: no least length, no ban on repeats
            model.generation_config = GenerationConfig(
                **{name: getattr(model.generation_config, name) for name in SPECIAL_TOKENS}
            )
        self.head = None if classes is None else nn.Linear(model.config.hidden_size, classes)
        # of 50,000 tokens' scores at every place, few are asked for
        asked = inspect.signature(model.forward).parameters
        self.selects = self.head is None and not inputs and "logits_to_keep" in asked

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of the patched layers; ordinary attention where there are none."""
        return tuple(dict.fromkeys(operators_of(self.model).values())) or (Dense(),)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """(batch, n) tokens -> (batch, n, classes), or for an encoder-decoder its output part.

        Of a model that `selects`, `places` (m,) asks for those positions only: (batch, m, classes).
        """
        if self.inputs:
            given = tokens[:, : self.inputs]
            outputs = self.model(
                input_ids=given,
                attention_mask=(given != self.model.config.pad_token_id).long(),
                decoder_input_ids=tokens[:, self.inputs :],
                use_cache=False,
            )
        else:
            only = {} if places is None else {"logits_to_keep": places}
            outputs = self.model(input_ids=tokens, use_cache=False, **only)
        if self.head is None:
            return outputs.logits
        return self.head(outputs.last_hidden_state)

    @torch.no_grad()
    def answer(self, tokens: Tensor) -> Tensor:
        """Greedy answers of an encoder-decoder: (batch, n) -> (batch, output part).

        The token of the highest score at every place; without a cache where an operator cannot
        decode, as blocks of n // j tokens cannot.
        """
        given, asked = tokens[:, : self.inputs], tokens.shape[1] - self.inputs
        pad = self.model.config.pad_token_id
        told = self.model.generate(
            input_ids=given, attention_mask=(given != pad).long(), max_new_tokens=asked,
            use_cache=all(map(can_decode, operators_of(self.model).values())),
        )[:, 1:]  # fmt: skip
        return nn.functional.pad(told, (0, asked - told.shape[1]), value=pad)


def build_scores(
    *,
    operator: str,
    layers: str,
    pretrained: str | None,
    architecture: str,
    sizes: dict[str, Any],
    vocab_size: int,
    num_classes: int,
    length: int,
    inputs: int = 0,
    weights: bool = True,
    first_layers: int = 0,
    lora: int = 0,
    frozen: str | None = None,
) -> Scores:
    """A model for a task, patched.

    Args:
        operator: for the patched layers; "dense" leaves the model as it is.
        layers: which; "all", a protocol of the paper, or numbers from 0 joined by "+".
        pretrained: folder, GGUF file or hub name; None for new weights.
        architecture: of new weights, one of `FRESH`.
        sizes: of new weights: width, heads, depth, positions, dropout, mlp_ratio.
        vocab_size: of the task.
        num_classes: of the task; a head of its own where they are not its tokens.
        length: the task's longest sequence.
        inputs: tokens of the encoder, for an encoder-decoder.
        weights: whether pretrained weights are read, or others follow at once.
        first_layers: how many of a pretrained model's layers are kept; 0 for all.
        lora: rank of adapters that learn in place of the model's weights; 0 for none.
        frozen: what of the model does not learn (`tuning.freeze`).
    """
    source = _source(pretrained) if pretrained is not None else None
    config = (
        _ask(pretrained, AutoConfig, source)
        if source is not None
        else _fresh(architecture, sizes, vocab_size, length)
    )
    if first_layers:
        _cut(config, first_layers, pretrained)
    if isinstance(config, ChaCALConfig):
        raise ValueError(
            f"pretrained is {pretrained!r}, whose layers have operators already "
            f"({config.chacal_operators}); expected ordinary attention, as after "
            f"chacal.hf.unpatch(model) and save_pretrained"
        )
    if bool(getattr(config, "is_encoder_decoder", False)) != bool(inputs):
        kind = "an encoder-decoder" if inputs else "a decoder"
        raise ValueError(f"{pretrained or architecture} is no {kind[3:]}; expected {kind}")
    limit = getattr(config, "max_position_embeddings", length)
    longest = max(inputs, length - inputs)
    if longest > limit:
        raise ValueError(
            f"the task has {longest} tokens and {pretrained or architecture} {limit} positions; "
            f"expected shorter windows, or a longer model"
        )
    if vocab_size > config.vocab_size:
        raise ValueError(
            f"the task has {vocab_size} tokens and {pretrained} {config.vocab_size}; expected the "
            f"model's own tokenizer"
        )
    classes = None if inputs or num_classes == vocab_size else num_classes
    auto: Any = AutoModel if classes else AutoModelForSeq2SeqLM if inputs else AutoModelForCausalLM
    on_meta = torch.get_default_device().type == "meta"
    if source is None or not weights or on_meta:
        try:
            model = auto.from_config(config, dtype=torch.float32)
        except Exception as error:  # a damaged config.json raises what its model has
            raise ValueError(
                f"{pretrained or architecture}: no model can be made by its config "
                f"({type(error).__name__}: {error})"
            ) from None
    else:
        model = _ask(
            pretrained, auto, source, config=config, dtype=torch.float32, **_format(source)
        )
    if operator != "dense":
        # whether it leaks is said of every run by its result
        patch(model, operator, chosen_layers(layers), allow_leak=True)
    if lora:
        add_lora(model, lora)
    if frozen is not None:
        freeze(model, frozen)
    return Scores(model, classes=classes, inputs=inputs)


def count_layers(pretrained: str) -> tuple[int, tuple[int, ...]]:
    """How many layers a decoder has, and which can be patched; no weights are read."""
    config = _ask(pretrained, AutoConfig, _source(pretrained))
    with torch.device("meta"):
        attentions = causal_attentions(AutoModelForCausalLM.from_config(config))
    return len(attentions), tuple(open_layers(attentions))


def chosen_layers(text: str) -> str | list[int]:
    """ "0+3" -> [0, 3]; names stay names."""
    parts = text.split("+")
    return [int(part) for part in parts] if all(part.isdigit() for part in parts) else text


def _cut(config: Any, count: int, pretrained: str | None) -> None:
    """Keep a model's first layers; weights of the others are not read."""
    depth = config.num_hidden_layers
    if count > depth:
        raise ValueError(f"first_layers is {count} and {pretrained} has {depth}; expected fewer")
    config.num_hidden_layers = count
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:count]


def _fresh(architecture: str, sizes: dict[str, Any], vocab_size: int, length: int) -> Any:
    width, heads, depth = sizes["width"], sizes["heads"], sizes["depth"]
    positions, drop = max(sizes["positions"], length), sizes["dropout"]
    inner = round(width * sizes["mlp_ratio"])
    if architecture == "gpt2":
        # no token ends a text here
        return GPT2Config(
            vocab_size=vocab_size, n_positions=positions, n_embd=width, n_head=heads,
            n_layer=depth, n_inner=inner, resid_pdrop=drop, embd_pdrop=drop, attn_pdrop=drop,
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
    if architecture == "bart":
        return BartConfig(
            vocab_size=vocab_size, max_position_embeddings=positions, d_model=width,
            encoder_layers=depth, decoder_layers=depth, encoder_attention_heads=heads,
            decoder_attention_heads=heads, encoder_ffn_dim=inner, decoder_ffn_dim=inner,
            dropout=drop, **sizes["tokens"],
        )  # fmt: skip
    raise ValueError(f"architecture is {architecture!r}; expected one of {', '.join(FRESH)}")


def _source(pretrained: str) -> dict[str, Any]:
    """What from_pretrained is called with: a folder, a GGUF file in it, or a hub name."""
    path = Path(pretrained)
    if path.is_file() and path.suffix == ".gguf":
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if path.is_dir() and not (path / "config.json").is_file():
        found = sorted(path.glob("*.gguf"))
        if len(found) != 1:
            raise ValueError(
                f"pretrained is {pretrained!r}, a folder with {len(found)} GGUF files and no "
                f"config.json; expected what save_pretrained wrote, or one GGUF file"
            )
        return {"pretrained_model_name_or_path": str(path), "gguf_file": found[0].name}
    # the hub has no such names
    named = pretrained.startswith((".", "/", "~")) or pretrained.count("/") > 1
    if not path.exists() and (named or path.suffix == ".gguf"):
        raise ValueError(
            f"pretrained is {pretrained!r}, which is not there; expected a folder or a GGUF file"
        )
    return {"pretrained_model_name_or_path": pretrained}


def _format(source: dict[str, Any]) -> dict[str, Any]:
    """How weights may be read: safetensors or GGUF; a pickle can run code, and has to be allowed.

    By the environment, not by a field: what a run's folder holds must not be able to allow it.
    """
    if "gguf_file" in source or os.environ.get(ALLOW_PICKLE) == "1":
        return {}
    folder = Path(source["pretrained_model_name_or_path"])
    pickles = sorted(path.name for path in folder.glob("*.bin")) if folder.is_dir() else []
    if pickles and not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"pretrained is {str(folder)!r}, whose weights are a pickle ({pickles[0]}), a format "
            f"that can run code; expected safetensors: convert it (from_pretrained, then "
            f"save_pretrained, with transformers alone), or, if you trust who made it, "
            f"--allow-pickle, or {ALLOW_PICKLE}=1 in the environment"
        )
    return {"use_safetensors": True}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without bars over bars, and without a report of a head that another task does not need."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _ask(pretrained: str | None, auto: Any, source: dict[str, Any], **more: Any) -> Any:
    """`auto.from_pretrained`, with a failure in one line."""
    if "gguf_file" in source:
        try:
            import gguf  # noqa: F401 - transformers reads the file with it
        except ImportError:
            raise ValueError(
                f"pretrained is {pretrained!r}; reading a GGUF file needs gguf: {install('hf')}"
            ) from None
    try:
        # not to be asked for either: a folder's own code is never run
        with _quiet():
            return auto.from_pretrained(**source, **more, trust_remote_code=False)
    except Exception as error:  # a damaged file raises what its reader has
        why = (str(error).strip().splitlines() or ["no answer"])[0][:200]
        raise ValueError(
            f"pretrained is {pretrained!r} and cannot be loaded ({why}); expected a folder that "
            f"save_pretrained wrote, a GGUF file, or a hub name and a network"
        ) from None
