"""The tokens that a tokenizer begins every text with stand before every text of ours."""

import json

import numpy as np
import pytest

from chacal.tasks import TASKS
from chacal.tasks.tokenizers import load_tokenizer, opening

STORY = "The key is in Box A. Box A contains"
FORMS = {
    "variables": {"names": "letters", "statements": 6},
    "variables-ruler": {"hops": 2},
    "boxes-text": {"updates": 2},
    "boxes-forms": {"operations": 2},
    "code": {},
    "labelled": {"train_file": "rows.jsonl", "valid_file": "rows.jsonl", "max_tokens": 16},
    "boxes-files": {"data": "."},
}


@pytest.fixture
def begun(byte_tokenizer, tmp_path):
    """The byte tokenizer with `<s>` before a text and `</s>` behind it."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_file(byte_tokenizer)
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(s, made.token_to_id(s)) for s in ("<s>", "</s>")]
    )
    made.save(str(tmp_path / "begun.json"))
    return str(tmp_path / "begun.json")


def test_what_a_text_begins_with(begun, byte_tokenizer):
    assert opening(load_tokenizer(byte_tokenizer)) == []
    assert opening(load_tokenizer(begun)) == [load_tokenizer(begun).token_to_id("<s>")]


@pytest.mark.parametrize("name", FORMS)
def test_every_task_of_text(name, begun, byte_tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"text": "short", "label": 0}, {"text": "longer than sixteen", "label": 1}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = {"sentence_masked": f"{STORY} <extra_id_0> .", "masked_content": "<extra_id_0> the key",
            "sentence": f"{STORY} the key.", "sample_id": "0", "numops": 0}  # fmt: skip
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}-t5.jsonl").write_text(json.dumps(told))
    plain, with_opening = (
        TASKS[name](**FORMS[name], tokenizer=source) for source in (byte_tokenizer, begun)
    )
    one, other = (
        task.batch("valid", 0, 0, 1 + (name == "labelled")) for task in (plain, with_opening)
    )
    first = opening(load_tokenizer(begun))[0]
    assert (other.tokens[:, 0] == first).all()
    assert (other.tokens[:, 1:] != first).all()
    assert other.tokens.shape[1] <= with_opening.length
    if name == "labelled":  # its long text was cut to 16 tokens already: one letter less is kept
        assert other.tokens.shape == one.tokens.shape
        assert (other.tokens[1, 1:] == one.tokens[1, 1:]).all()
        return
    assert (other.tokens[:, 1:] == one.tokens).all()
    assert (other.targets[:, 1:] == one.targets).all()
    assert (other.targets[:, 0] == np.full(len(one.tokens), -100)).all()


@pytest.mark.parametrize("asks", [True, False])
def test_of_a_gguf_file(asks, byte_tokenizer, tmp_path):
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("transformers")
    vocabulary = load_tokenizer(byte_tokenizer).get_vocab()
    tokens = ["<s>", *sorted(vocabulary, key=vocabulary.get), "ab"]
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_block_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(asks)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert opening(load_tokenizer(str(tmp_path / "tiny.gguf"))) == [0] * asks
