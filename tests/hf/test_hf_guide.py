"""The guide's example runs as it is printed, on a tiny model in the place of the real one."""

import logging
import re
from pathlib import Path

import torch
from tiny import VOCABULARY, tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import chacal.hf

GUIDE = Path(__file__).parents[2] / "docs" / "transformers.md"


def test_the_example_runs_as_printed(tmp_path, monkeypatch, capsys):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = (block for block in blocks if "chacal.hf" in block)
    assert len([line for line in example.splitlines() if line]) == 10

    # the folder that the printed name means from here
    folder = tmp_path / "HuggingFaceTB" / "SmolLM2-135M"
    tiny("llama", dtype=torch.float32).save_pretrained(folder)
    words = ["?", "<s>", "</s>", "The", "camera", "is", "in", "Box", "F", "."]
    words += [f"word{i}" for i in range(len(words), VOCABULARY)]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)

    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(example, str(GUIDE), "exec"), names)
    assert capsys.readouterr().out.startswith("The camera is in Box F .")
    model = names["model"]
    assert {i: str(op) for i, op in chacal.hf.operators_of(model).items()} == {
        1: "chacal,gamma=0.1"
    }
    stock = LlamaForCausalLM.from_pretrained(folder)
    patched = chacal.hf.patch(stock, "chacal,gamma=0.1", layers=[1])
    ids = torch.arange(3, 20)[None]
    assert torch.equal(model(ids).logits, patched(ids).logits)
