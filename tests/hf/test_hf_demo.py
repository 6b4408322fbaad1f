"""`chacal demo --pretrained` on a tiny model: both runs, the table, the picture, and going on."""

import itertools
import json

import pytest
import torch
from called import chacal
from tiny import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from chacal.hf.decoders import MIDDLE, choose_layers
from chacal.tasks.variables import VALUES


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A Llama whose tokenizer has 1,330 names of one token each."""
    folder = tmp_path_factory.mktemp("models") / "small"
    names = [
        "".join(letters)
        for letters in itertools.product("bdfgklmnprt", "aeiouyhswcj", "bdfgklmnprt")
    ]
    words = [f"Ġ{word}" for word in (*names, *VALUES, "is", "=")]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(["?", "Ċ", "ĊĊ", *words]))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tiny("llama", dtype=torch.float32, vocab_size=len(vocabulary),
         max_position_embeddings=512).save_pretrained(folder)  # fmt: skip
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_with_and_without(given, tmp_path):
    call = ("demo", "--pretrained", given, "--steps", 2, "--out", tmp_path / "out")
    done = chacal(*call)
    assert done.returncode == 0, done.stderr
    assert "as it is" in done.stdout
    assert "a learned γ in four layers" in done.stdout
    runs = {path.name: json.loads((path / "config.json").read_text())
            for path in (tmp_path / "out").iterdir() if path.is_dir()}  # fmt: skip
    assert set(runs) == {"dense", "chacal,gamma=learn:0.5"}
    dense, ours = runs["dense"], runs["chacal,gamma=learn:0.5"]
    assert ours["model"].pop("operator") != dense["model"].pop("operator")
    assert ours == dense, "they differ in the operator alone"
    assert (tmp_path / "out" / "demo.png").stat().st_size > 1000
    results = [tmp_path / "out" / name / "result.json" for name in runs]
    written = [path.stat().st_mtime_ns for path in results]
    again = chacal(*call)
    assert (again.returncode, again.stdout.split("All of it")[0]) == (
        0,
        done.stdout.split("All of it")[0],
    )
    assert [path.stat().st_mtime_ns for path in results] == written, "nothing is trained twice"


def test_steps_are_those_of_fine_tuning(tmp_path):
    done = chacal("demo", "--steps", 5, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "without --pretrained" in done.stderr


@pytest.mark.parametrize(
    ("narrow", "depth", "chosen"),
    [
        ((), 30, [10, 14, 18, 22]),
        ((), 3, [0, 1, 2]),
        ([i for i in range(18) if i % 6 != 5], 18, [5, 11, 17]),  # Gemma 3 270M
    ],
)
def test_the_middle_of_a_model(narrow, depth, chosen):
    class Attention:
        def __init__(self, index):
            kinds = ["sliding_attention" if i in narrow else "full_attention" for i in range(depth)]
            self.layer_idx, self.config = index, type("Config", (), {"layer_types": kinds})

    attentions = {i: Attention(i) for i in range(depth)}
    assert choose_layers("middle", attentions) == chosen
    assert len(chosen) <= len(MIDDLE)
