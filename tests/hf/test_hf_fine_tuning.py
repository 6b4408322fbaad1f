"""`chacal train TASK --pretrained`: every text task, what learns, what is kept, how it goes on."""

import json
import os
import subprocess
import sys

import pytest
import torch
from called import chacal
from safetensors import safe_open
from safetensors.torch import load_file
from tiny import far, tiny

from chacal.training.evaluate import load_run

FEW = [
    "--steps", "4", "--batch-size", "2", "--eval-every", "2", "--eval-examples", "4",
    "--test-examples", "4", "--checkpoint-every", "1", "--log-every", "1", "--warmup", "0",
]  # fmt: skip
SHORT = {
    "variables": ["--names", "letters", "--statements", "6", "--min-statements", "4",
                  "--questions", "2"],
    "boxes": ["--boxes", "2", "--objects", "12", "--updates", "2"],
    "code": ["--variables", "2", "--updates", "2"],
    "language": ["--window", "32"],
}  # fmt: skip
OURS = ["--operator", "chacal,gamma=0.5", "--layers", "1"]


def train(task, *args, given):
    name = "boxes" if task == "files" else task
    code, out, err = chacal("train", name, "--pretrained", given, *FEW, *SHORT.get(task, []), *args)
    assert code == 0, err
    return out


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder as save_pretrained writes it: a Llama and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("models") / "small"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    sizes = {"vocab_size": 256, "max_position_embeddings": 1024}
    tiny("llama", dtype=torch.float32, **sizes).save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Examples in the forms of `labelled` and of Kim and Schuster."""
    folder = tmp_path_factory.mktemp("files")
    state = "Box 0 contains the {}, Box 1 is empty."
    for i, split in enumerate(("train", "dev", "test")):
        things = ["book", "key", "letter", "clock", "spoon", "pot", "ring"][i:]
        stories = [f"{state} Move the {{}} from Box 0 to Box 1. Box 1".format(t, t) for t in things]
        (folder / f"{split}-t5.jsonl").write_text("".join(
            json.dumps({"sentence_masked": f"{story} <extra_id_0> .", "numops": 1,
                        "masked_content": f"<extra_id_0> contains the {thing}"}) + "\n"
            for story, thing in zip(stories, things, strict=True)
        ))  # fmt: skip
        (folder / f"{split}.jsonl").write_text("".join(
            json.dumps({"text": story, "label": len(story) % 3}) + "\n" for story in stories
        ))  # fmt: skip
    return folder


@pytest.mark.parametrize("task", ["variables", "boxes", "files", "code", "labelled", "language"])
def test_every_text_task_goes_through_the_models_own_tokenizer(given, files, tmp_path, task):
    own = {
        "files": ["--data", files],
        "labelled": ["--train-file", files / "train.jsonl", "--valid-file", files / "dev.jsonl"],
    }.get(task, [])
    out = train(task, *OURS, *own, "--out", tmp_path / "run", given=given)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["task"]["tokenizer"] == str(given)
    assert config["model"]["layers"] == "1"
    assert config["train"]["lr"] == 2e-4, "what suits pretrained weights, where nothing is said"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["operators"] == ["chacal,gamma=0.5"]
    assert (result["test"] or result["valid"])["loss"] > 0
    assert result["examples"]["valid"] == 4
    assert "4 test examples" in out or result["test"] is None
    code, out, err = chacal("eval", tmp_path / "run", "--examples", "3", "--split", "valid")
    assert code == 0, err
    assert "3 examples of the valid split" in out


def weights(run, name="best"):
    return load_file(run / f"{name}.safetensors")


@pytest.mark.parametrize("how", [(), ("--freeze", "embeddings+0"), ("--lora", "2")], ids=str)
def test_a_stopped_run_goes_on_bit_for_bit(given, tmp_path, how):
    if "--lora" in how:
        pytest.importorskip("peft")
    train("variables", *OURS, *how, "--out", tmp_path / "whole", given=given)
    train("variables", *OURS, *how, "--out", tmp_path / "cut", "--steps", "2", given=given)
    # the first 2 steps of 4, as a stop at step 2 leaves them
    (tmp_path / "cut" / "config.json").write_bytes((tmp_path / "whole/config.json").read_bytes())
    (tmp_path / "cut" / "result.json").unlink()
    train("variables", *OURS, *how, "--out", tmp_path / "cut", "--resume", given=given)
    for name in ("best", "last"):
        ours, theirs = (weights(tmp_path / run, name) for run in ("cut", "whole"))
        assert ours.keys() == theirs.keys()
        assert all(ours[key].equal(theirs[key]) for key in ours)


def learned(run):
    with safe_open(run / "best.safetensors", "pt") as file:
        return {name.removeprefix("model.model.") for name in file.keys()}  # noqa: SIM118 - no dict


def test_frozen_parts_stay_and_are_not_kept(given, tmp_path):
    train("variables", *OURS, "--freeze", "embeddings+0-1", "--out", tmp_path / "run", given=given)
    kept = learned(tmp_path / "run")
    assert "model.layers.2.mlp.up_proj.weight" in kept
    assert "model.norm.weight" in kept
    assert not [name for name in kept if "embed" in name or ".layers.0." in name]
    before, (after, _) = tiny_as_given(given), load_run(tmp_path / "run")
    own = dict(after.model.named_parameters())
    for name, parameter in before.named_parameters():
        assert parameter.equal(own[name]) == (name not in kept), name


def tiny_as_given(given):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(given, dtype=torch.float32)


def test_adapters_learn_and_the_model_stays(given, tmp_path):
    pytest.importorskip("peft")
    train("variables", *OURS, "--lora", "2", "--out", tmp_path / "run", given=given)
    kept = learned(tmp_path / "run")
    assert kept
    assert all(".lora_" in name for name in kept)
    size = (tmp_path / "run" / "best.safetensors").stat().st_size
    assert size < (given / "model.safetensors").stat().st_size
    before, (after, _) = tiny_as_given(given), load_run(tmp_path / "run")
    own = {n.replace(".base_layer", ""): p for n, p in after.model.named_parameters()}
    assert all(p.equal(own[name]) for name, p in before.named_parameters())
    tokens = torch.arange(32)[None]
    plain = tmp_path / "plain"
    train("variables", *OURS, "--steps", "0", "--out", plain, given=given)
    assert far(after(tokens), load_run(plain)[0](tokens)) > 1e-6


def test_gamma_alone_learns_at_its_own_rate(given, tmp_path):
    learn = ["--operator", "chacal,gamma=learn:0.5", "--layers", "0+2"]
    how = ["--freeze", "all", "--weight-decay", "0.5", "--gamma-lr", "0.02", "--steps", "1"]
    train("variables", *learn, *how, "--out", tmp_path / "run", given=given)
    names = {f"model.layers.{i}.self_attn.chacal_gamma.weight" for i in (0, 2)}
    assert learned(tmp_path / "run") == names
    assert (tmp_path / "run" / "last.safetensors").stat().st_size < 10_000
    for gamma in weights(tmp_path / "run").values():
        # a first step of AdamW is the rate itself, and decay would add a hundredth of it
        torch.testing.assert_close((gamma - 0.5).abs(), torch.full((4,), 0.02), atol=1e-5, rtol=0)
    tokens = torch.arange(32)[None]
    model, _ = load_run(tmp_path / "run")
    dense, _ = load_run(tmp_path / "run", operators=("dense",))
    assert far(dense(tokens), tiny_as_given(given)(tokens).logits) < 1e-5
    assert far(model(tokens), dense(tokens)) > 1e-2


def test_the_first_layers_alone(given, tmp_path):
    cut = ["--first-layers", "2", "--steps", "0"]
    train("variables", *cut, "--out", tmp_path / "run", given=given)
    before, (after, _) = tiny_as_given(given), load_run(tmp_path / "run")
    assert len(after.model.model.layers) == 2 < len(before.model.layers)
    del before.model.layers[2:]
    tokens = torch.arange(32)[None]
    assert far(after(tokens), before(tokens, use_cache=False).logits) < 1e-5
    code, _, err = chacal("train", "variables", "--pretrained", given, *SHORT["variables"],
                          "--first-layers", "9", "--out", tmp_path / "x")  # fmt: skip
    assert code == 2
    assert "first_layers is 9" in err


def test_gamma_and_all_else_learn_together(given, tmp_path):
    learn = ["--operator", "chacal,gamma=learn", "--layers", "1", "--lr", "1e-4"]
    train("variables", *learn, "--steps", "1", "--out", tmp_path / "run", given=given)
    before, after = tiny_as_given(given), weights(tmp_path / "run")
    name = "model.layers.1.self_attn.{}.weight"
    gamma = after[f"model.model.{name.format('chacal_gamma')}"]
    # a first step of AdamW is the rate itself; below 0 the γ that is used stays 0
    torch.testing.assert_close(gamma.abs(), torch.full((4,), 0.01), atol=1e-5, rtol=0)
    assert bool((gamma > 0).any())
    was = before.get_parameter(name.format("q_proj")).detach()
    moved = (after[f"model.model.{name.format('q_proj')}"] - was).abs()
    assert 0 < moved.max().item() < 1.1e-4


def test_scores_of_chosen_places_are_those_of_all(given, tmp_path):
    train("variables", *OURS, "--steps", "0", "--out", tmp_path / "run", given=given)
    model, _ = load_run(tmp_path / "run")
    tokens = torch.arange(40).reshape(2, 20)
    places = torch.tensor([3, 11, 19])
    assert model.selects
    assert far(model(tokens, places), model(tokens)[:, places]) < 1e-5


@pytest.mark.parametrize("how", [(), ("--freeze", "embeddings+0"), ("--lora", "2")], ids=str)
def test_an_exported_run_answers_as_the_run_does(given, tmp_path, how):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if "--lora" in how:
        pytest.importorskip("peft")
    learn = ["--operator", "chacal,gamma=learn:0.5", "--layers", "1", "--lr", "0.01"]
    train("variables", *learn, *how, "--out", tmp_path / "run", given=given)
    code, out, err = chacal("export", tmp_path / "run", tmp_path / "tuned")
    assert code == 0, err
    assert "1: chacal,gamma=learn:0.5" in out
    assert f"pretrained={tmp_path / 'tuned'} --trust_remote_code" in out
    ran, _ = load_run(tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned").eval()
    tokens = torch.arange(32)[None]
    assert far(model(tokens).logits, ran(tokens)) < 1e-4
    assert far(model(tokens).logits, tiny_as_given(given)(tokens).logits) > 1e-2
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    made = AutoTokenizer.from_pretrained(tmp_path / "tuned")
    assert made.decode(made("VAR a = b").input_ids) == "VAR a = b"


def test_what_cannot_be_exported_is_one_line(given, files, tmp_path):
    own = ["--train-file", files / "train.jsonl", "--valid-file", files / "dev.jsonl"]
    train("labelled", *OURS, *own, "--out", tmp_path / "labels", given=given)
    train("variables", *OURS, "--steps", "0", "--out", tmp_path / "run", given=given)
    code, _, err = chacal("train", "chains", *FEW, "--steps", "0", "--out", tmp_path / "small")
    assert code == 0, err
    for run, out, words in (
        ("small", "new", "is no run of a pretrained model"),
        ("labels", "new", "by a head of its own"),
        ("run", "small", "is there already; expected a new or an empty folder"),
    ):
        code, _, err = chacal("export", tmp_path / run, tmp_path / out)
        assert code == 2
        assert words in err
        assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_pretrained_run_is_evaluated_by_as_many_as_it_was_tested_on(given, tmp_path):
    train("variables", *OURS, "--steps", "0", "--out", tmp_path / "run", given=given)
    code, out, err = chacal("eval", tmp_path / "run")
    assert code == 0, err
    assert "4 examples of the test split" in out


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), ("--fsdp",)], ids=["ddp", "fsdp"])
def test_two_processes_learn_what_one_learns(given, tmp_path, extra):
    learn = ["--operator", "chacal,gamma=learn:0.3", "--layers", "0+1"]
    how = [*learn, "--freeze", "embeddings+0"]
    train("variables", *how, "--out", tmp_path / "alone", given=given)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "chacal", "train", "variables", "--pretrained", str(given), *FEW,
        *SHORT["variables"], *how, "--out", str(tmp_path / "two"), *extra,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    ours, theirs = (weights(tmp_path / run, "last") for run in ("two", "alone"))
    wanted = [key for key in theirs if key.startswith(("model.", "optimizer."))]
    assert {key for key in ours if key.startswith(("model.", "optimizer."))} == set(wanted)
    for key in wanted:
        torch.testing.assert_close(ours[key], theirs[key], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("chains", "--pretrained", "X"), "no such option"),
        (("variables", "--lora", "4"), "lora is 4, and there are no pretrained weights"),
        (("variables", "--layers", "10+14"), "layers is '10+14'; expected how many"),
        (("variables", "--pretrained", "GIVEN", "--width", "64"), "--width cannot be given"),
        (("variables", "--pretrained", "GIVEN", *SHORT["variables"], "--freeze", "top"),
         "freeze is 'top'; expected all, or embeddings and layers"),
        (("variables", "--pretrained", "GIVEN", *SHORT["variables"], "--freeze", "0-7"),
         "freeze is '0-7'; expected layers from 0 to 2"),
        (("variables", "--pretrained", "GIVEN", *SHORT["variables"], "--freeze", "all"),
         "nothing of the model learns"),
        (("variables", "--pretrained", "./nowhere"),
         "pretrained is './nowhere', which is not there"),
        (("variables", "--eval-examples", "all"), "makes them without end"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(given, tmp_path, args, words):
    args = [given if a == "GIVEN" else a for a in args]
    code, _, err = chacal("train", *args, "--out", tmp_path / "run")
    assert code == 2
    assert words in err.lower() if words == "no such option" else words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()
