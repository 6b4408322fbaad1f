"""Text and files from the Hugging Face hub, streamed once into a local cache.

A source of text is a path; `help`, the text of Python's help(); or `hub:NAME[@CONFIG]:SPLIT[:MB]`,
the `text` of a data set, document after document, up to so many megabytes (or from some to others:
`20-8000`, where a data set has one split only). What was streamed is a
plain text file in the cache folder (CHACAL_CACHE, else ~/.cache/chacal), so a second run needs no
network, and a run that was cut off leaves no half file.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from chacal._echo import shown
from chacal._extras import install
from chacal._files import cache_folder

EXTRA = install("data")


class HubText(NamedTuple):
    """A data set's text on the hub."""

    name: str
    config: str | None
    split: str
    first: int
    last: int | None


def parse_source(source: str) -> HubText | None:
    """ "hub:owner/name@config:train:500" -> its parts; None for a path."""
    if not source.startswith("hub:"):
        return None
    name, _, rest = source.removeprefix("hub:").partition(":")
    split, _, size = rest.partition(":")
    name, _, config = name.partition("@")
    first, dash, last = size.partition("-") if "-" in size else ("0", "", size)
    if not name or not split or not (first.isdigit() and (last.isdigit() or not (last or dash))):
        raise ValueError(
            f"{shown(source)} is no source; expected hub:NAME[@CONFIG]:SPLIT[:MEGABYTES], or "
            f"FROM-TO in the place of MEGABYTES"
        )
    return HubText(name, config or None, split, int(first), int(last) if last else None)


def local_text(source: str) -> Path:
    """The file that holds a source's text; streamed if it is not there yet."""
    asked = parse_source(source)
    if asked is None:
        return Path(source)
    mark = hashlib.sha256(source.encode()).hexdigest()[:12]
    path = cache_folder() / "text" / f"{asked.name.replace('/', '-')}-{asked.split}-{mark}.txt"
    if not path.exists():
        _stream(source, asked, path)
    return path


def _stream(source: str, asked: HubText, path: Path) -> None:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ValueError(
            f"{source} is read with the package 'datasets', which is missing: {EXTRA}; or give "
            f"files of your own (--train-file, --valid-file)"
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    first = asked.first * 1_000_000
    last = None if asked.last is None else asked.last * 1_000_000
    try:
        read = 0
        with open(beside, "wb") as file:
            for row in load_dataset(asked.name, asked.config, split=asked.split, streaming=True):
                text = row["text"].encode()
                if read >= first:
                    # lines of WikiText end themselves, documents of others do not
                    file.write(text if text.endswith(b"\n") else text + b"\n")
                read += len(text)
                if last is not None and read >= last:
                    break
        os.replace(beside, path)
    except Exception as error:  # the packages below raise a dozen kinds
        raise ValueError(failure(source, error)) from None
    finally:
        beside.unlink(missing_ok=True)


def download(repository: str, file: str) -> Path:
    """A file of a data set on the hub, from its own cache if it is there."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ValueError(
            f"{repository} is fetched with huggingface_hub, which is missing: {EXTRA}; or give a "
            f"local folder (--data)"
        ) from None
    try:
        return Path(hf_hub_download(repository, file, repo_type="dataset"))
    except Exception as error:  # as above
        raise ValueError(failure(f"{repository}/{file}", error)) from None


def failure(what: str, error: Exception) -> str:
    """Why the hub did not give something, in one line."""
    why = (str(error).strip().splitlines() or ["no answer"])[0][:160]
    return (
        f"{what} could not be had from the Hugging Face hub ({why}); expected a network, or local "
        f"data in its place (--train-file, --valid-file, --data)"
    )
