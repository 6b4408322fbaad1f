"""A saved folder loads in a program that never heard of chacal, and says what is missing."""

import json
import logging
import os
import subprocess
import sys

import pytest
import torch
from tiny import draw_tokens, tiny
from transformers import AutoModelForCausalLM

from chacal.hf import patch

LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoConfig
assert not [name for name in sys.modules if name.startswith("chacal")]
if len(sys.argv) > 3:
    sys.modules["chacal"] = None  # as where it is not installed
try:
    model = AutoModelForCausalLM.from_pretrained(
        sys.argv[1], trust_remote_code={"yes": True, "no": False}[sys.argv[2]]
    ).eval()
except Exception as error:  # transformers wraps what the folder's code raises
    print(type(error).__name__, error)
    sys.exit(3)
tokens = torch.load(sys.argv[1] + "/tokens.pt")
torch.save(model(tokens).logits, sys.argv[1] + "/logits.pt")
model.save_pretrained(sys.argv[1] + "/again")
print(type(model).__name__)
"""


@pytest.fixture
def folder(tmp_path):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = patch(tiny("olmo2", dtype=torch.float32), "chacal,gamma=learn:0.5", layers=[1])
    model.save_pretrained(tmp_path / "saved")
    torch.save(draw_tokens(2, 12), tmp_path / "saved" / "tokens.pt")
    torch.save(model(draw_tokens(2, 12)).logits, tmp_path / "expected.pt")
    return tmp_path / "saved"


def load(folder, trust, *without):
    # what transformers copies the code to; and no question is asked of a terminal
    environment = {**os.environ, "HF_HOME": str(folder.parent / "home"), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_MODULES_CACHE", None)
    return subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), trust, *without], capture_output=True, text=True,
        env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_the_folder_names_its_classes_and_carries_the_code(folder):
    saved = json.loads((folder / "config.json").read_text())
    assert saved["architectures"] == ["ChaCALOlmo2ForCausalLM"]
    assert saved["auto_map"]["AutoConfig"] == "modeling_chacal.ChaCALOlmo2Config"
    assert saved["auto_map"]["AutoModelForCausalLM"] == "modeling_chacal.ChaCALOlmo2ForCausalLM"
    code = (folder / "modeling_chacal.py").read_text()
    assert "1: chacal,gamma=learn:0.5" in code
    assert len(code.splitlines()) < 25


def test_a_fresh_process_loads_it(folder):
    done = load(folder, "yes")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout == "ChaCALOlmo2ForCausalLM\n"
    expected = torch.load(folder.parent / "expected.pt")
    assert torch.equal(torch.load(folder / "logits.pt"), expected)
    # what it saves again is as good, and holds no copy of our files
    assert sorted(p.name for p in (folder / "again").glob("*.py")) == ["modeling_chacal.py"]
    again = AutoModelForCausalLM.from_pretrained(folder / "again").eval()
    assert torch.equal(again(draw_tokens(2, 12)).logits, expected)


def test_code_is_run_only_if_that_is_asked_for(folder):
    done = load(folder, "no")
    assert done.returncode == 3
    assert "trust_remote_code=True" in done.stdout
    assert not (folder / "logits.pt").exists()


def test_without_chacal_it_says_what_to_install(folder):
    done = load(folder, "yes", "without")
    assert done.returncode == 3
    assert "this model has layers with operators of chacal" in done.stdout
    assert "pip install -e '.[hf]'" in done.stdout
    assert len(done.stdout.splitlines()) == 1
