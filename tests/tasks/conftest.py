"""A tokenizer that needs no download: bytes, as GPT-2 spells them."""

import os

import pytest

# nothing here may reach for the network
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)
