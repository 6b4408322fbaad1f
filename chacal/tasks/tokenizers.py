"""Tokenizers of other people's models, by file, folder or hub name: one loader, clear failures.

A source is a JSON file of the `tokenizers` package; a folder with `tokenizer.json`, with GPT-2's
`vocab.json` and `merges.txt`, or with one GGUF file; a GGUF file; or a name on the Hugging Face hub
(kept in its cache once read).
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from chacal._echo import shown
from chacal._extras import install

HUB = "expected a network, or a local folder in its place"


@lru_cache(maxsize=8)
def load_tokenizer(source: str) -> Any:
    """A `tokenizers.Tokenizer`, without padding or truncation of its own."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError(
            f"tokenizer={shown(source)}: reading it needs the package 'tokenizers' "
            "(pip install tokenizers); without it, leave `tokenizer` out to model bytes"
        ) from None
    path = Path(source)
    try:
        if path.is_dir():
            made = _from_folder(path, Tokenizer)
        elif path.is_file():
            made = _from_gguf(path) if path.suffix == ".gguf" else Tokenizer.from_file(source)
        elif is_path(source):
            raise ValueError(f"tokenizer={shown(source)}: expected the path of an existing file")
        else:
            made = _from_hub(source, Tokenizer)
    except ValueError:
        raise
    except Exception as error:  # the package raises bare Exception
        raise ValueError(f"tokenizer={shown(source)}: not a tokenizer file ({error})") from None
    made.no_padding()
    made.no_truncation()
    return made


def is_path(source: str) -> bool:
    """Whether a source that is not there must have meant a file: the hub has no such names."""
    return (
        source.startswith((".", "/", "~"))
        or source.count("/") > 1
        or os.path.splitext(source)[1] in (".json", ".jsonl", ".gguf", ".txt", ".tokens")
    )


def find_gguf(folder: Path) -> Path | None:
    """The only GGUF file of a folder, if there is one."""
    found = sorted(folder.glob("*.gguf"))
    if len(found) > 1:
        raise ValueError(f"{folder} holds {len(found)} GGUF files; expected the path of one")
    return found[0] if found else None


def _from_folder(folder: Path, kind: Any) -> Any:
    if (folder / "tokenizer.json").is_file():
        return kind.from_file(str(folder / "tokenizer.json"))
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if vocabulary.is_file() and merges.is_file():
        from tokenizers import decoders, models, pre_tokenizers

        made = kind(models.BPE.from_file(str(vocabulary), str(merges)))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        return made
    gguf = find_gguf(folder)
    if gguf is None:
        raise ValueError(
            f"tokenizer={shown(str(folder))}: the folder holds no tokenizer; expected "
            f"tokenizer.json, vocab.json with merges.txt, or one GGUF file"
        )
    return _from_gguf(gguf)


def _from_gguf(path: Path) -> Any:
    return transformers_tokenizer(str(path)).backend_tokenizer


def transformers_tokenizer(source: str) -> Any:
    """The tokenizer of a pretrained model as transformers has it, to be saved beside the model."""
    path = Path(source)
    gguf_file = path if path.suffix == ".gguf" else None
    if gguf_file is None and path.is_dir() and not (path / "config.json").is_file():
        gguf_file = find_gguf(path)
    try:
        from transformers import AutoTokenizer

        if gguf_file is not None:
            import gguf
    except ImportError:
        raise ValueError(
            f"tokenizer={shown(source)}: reading it needs transformers and gguf: {install('hf')}"
        ) from None
    if gguf_file is None:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    made = AutoTokenizer.from_pretrained(
        str(gguf_file.parent), gguf_file=gguf_file.name, trust_remote_code=False
    )
    backend = made.backend_tokenizer
    asked = gguf.GGUFReader(gguf_file).get_field("tokenizer.ggml.add_bos_token")
    if asked is not None and asked.contents() and not opening(backend):
        from tokenizers.processors import TemplateProcessing

        # transformers does not read this field; Gemma without its first token knows no language
        backend.post_processor = TemplateProcessing(
            single=f"{made.bos_token} $A",
            special_tokens=[(made.bos_token, made.bos_token_id)],
        )
    return made


def opening(tokenizer: Any) -> list[int]:
    """The tokens that a text begins with, whatever it says: `<bos>`, for models that want one."""
    if getattr(tokenizer, "post_processor", None) is None:
        return []
    told = tokenizer.encode("a", add_special_tokens=True)
    first: list[int] = told.ids[: told.special_tokens_mask.index(0)]
    return first


def _from_hub(name: str, kind: Any) -> Any:
    try:
        return kind.from_pretrained(name)
    except Exception as error:  # the hub's packages raise a dozen kinds
        why = str(error).strip().splitlines()[0][:160] if str(error).strip() else "no answer"
        raise ValueError(
            f"tokenizer={shown(name)}: no such folder, and the hub did not give it ({why}); {HUB}"
        ) from None
