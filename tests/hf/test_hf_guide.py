"""The guide's examples run as they are printed, on a tiny model in the place of the real one."""

import functools
import logging
import re
from pathlib import Path

import pytest
import torch
from tiny import VOCABULARY, tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, TrainingArguments

import chacal.hf

GUIDE = Path(__file__).parents[2] / "docs" / "transformers.md"


LAYERS = 23
"""The examples name the layers of a deeper model."""


def test_the_examples_run_as_printed(tmp_path, monkeypatch, capsys):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    example, training, adapters = blocks
    assert len([line for line in example.splitlines() if line]) == 10

    # the folder that the printed name means from here
    folder = tmp_path / "HuggingFaceTB" / "SmolLM2-135M"
    tiny("llama", dtype=torch.float32, num_hidden_layers=LAYERS).save_pretrained(folder)
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

    # by the Trainer, for a few steps
    row = {"input_ids": ids[0], "labels": ids[0]}
    names["dataset"] = [row] * 8
    quick = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no"}
    arguments = functools.partial(TrainingArguments, **quick)
    training = training.replace("max_steps=240, warmup_steps=20", "max_steps=5")
    training = training.replace("import Trainer, TrainingArguments", "import Trainer")
    names["TrainingArguments"] = arguments
    exec(compile(training, str(GUIDE), "exec"), names)
    told = chacal.hf.gammas(names["model"])
    assert list(told) == [10, 14, 18, 22]
    assert max(told[22]) > 0
    assert str(told) in capsys.readouterr().out
    assert Path("gamma.png").stat().st_size > 1000

    pytest.importorskip("peft")
    exec(compile(adapters, str(GUIDE), "exec"), names)
    assert len(names["optimizer"].param_groups) == 2
    assert Path("adapter/adapter_model.safetensors").is_file()
