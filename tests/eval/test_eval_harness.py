"""A patched, saved model is measured by the harness's own command, which knows nothing of it."""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from chacal.eval import tasks_path
from chacal.hf import patch

pytestmark = pytest.mark.slow

NEAR = 1e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny patched Llama that reads bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model") / "patched"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token="<end>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        initializer_range=0.3, eos_token_id=256, bos_token_id=None, pad_token_id=256,
    )  # fmt: skip
    patch(LlamaForCausalLM(config), "chacal,gamma=0.5", layers=[1]).save_pretrained(folder)
    return folder


def harness(model, out, tasks, *args):
    """What a user types."""
    environment = {
        **os.environ, "HF_HOME": str(out / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environment.pop("HF_MODULES_CACHE", None)
    return subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--include_path", str(tasks_path()),
         "--model", "hf", "--model_args", f"pretrained={model}", "--trust_remote_code",
         "--device", "cpu", "--batch_size", "4", "--tasks", tasks, *args],
        capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def measured(model, kim_schuster, entity_tracking, tmp_path_factory):
    """All yardsticks by one command: its results, its samples and what it prints."""
    out = tmp_path_factory.mktemp("out")
    ran = harness(
        model, out, "chacal_kim_schuster,chacal_entity_tracking,chacal_variables_1",
        "--metadata", f"kim_schuster={kim_schuster}", f"entity_tracking={entity_tracking}",
        "examples=5", "noise=0", "--output_path", str(out / "results"), "--log_samples",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    (results,) = (out / "results").rglob("results_*.json")
    samples = {
        path.name.removeprefix("samples_").rpartition("_")[0]: [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in (out / "results").rglob("samples_*.jsonl")
    }
    return json.loads(results.read_text())["results"], samples, ran.stdout


def test_the_options_log_probabilities_are_the_patched_models(measured, model):
    _, samples, _ = measured
    ours = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=True).eval()
    dense = LlamaForCausalLM(ours.config.stock(**_plain(ours.config))).eval()
    dense.load_state_dict(ours.state_dict())
    rows = samples["chacal_entity_tracking_move_contents"]
    assert len(rows) == 5
    apart = []
    for row in rows:
        for (prefix, option), answer in zip(_asked(row), row["resps"], strict=True):
            said = float(answer[0][0])
            assert abs(said - _summed(ours, prefix, option)) < NEAR
            apart.append(abs(said - _summed(dense, prefix, option)))
    assert max(apart) > 100 * NEAR


def _plain(config):
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
             "num_attention_heads", "num_key_value_heads", "max_position_embeddings")  # fmt: skip
    return {name: getattr(config, name) for name in names}


def _asked(row):
    arguments = row["arguments"].values()
    return [(argument["arg_0"], argument["arg_1"]) for argument in arguments]


def _summed(model, prefix, option):
    """The sum of an option's log-probabilities, by one forward pass over bytes."""
    alphabet = {letter: i for i, letter in enumerate(_alphabet())}
    ids = [alphabet[letter] for letter in (prefix + option).replace(" ", "Ġ")]
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    return sum(float(logits[at - 1, ids[at]]) for at in range(len(prefix), len(ids)))


def _alphabet():
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def test_scores_are_means_over_operations_and_files(measured):
    results, samples, printed = measured
    means = []
    for split in ("regular", "ambiref", "move_contents"):
        name = f"chacal_entity_tracking_{split}"
        right = {}
        for row in samples[name]:
            sums = [float(answer[0][0]) for answer in row["resps"]]
            right.setdefault(row["doc"]["numops"], []).append(sums[0] == max(sums))
        means.append(sum(sum(r) / len(r) for r in right.values()) / len(right))
        assert results[name]["acc,none"] == pytest.approx(means[-1])
    whole = results["chacal_entity_tracking"]
    assert whole["acc,none"] == pytest.approx(sum(means) / 3)
    assert whole["chance,none"] < whole["start,none"]
    assert "entity tracking (BabyLM)" in printed
    assert "start_2plus" in printed


def test_stories_and_variables_are_asked_as_text(measured):
    results, samples, _ = measured
    stories = results["chacal_kim_schuster"]
    documents = [row["doc"] for row in samples["chacal_kim_schuster"]]
    assert stories["start,none"] == sum(d["start"] for d in documents) / 5
    assert stories["exact_match,none"] == 0  # of random weights
    assert stories["exact_match_ops_2,none"] == 0
    (prompt, options) = samples["chacal_kim_schuster"][0]["arguments"]["gen_args_0"].values()
    assert prompt.startswith("Box 0 contains the letter")
    assert prompt.endswith(" contains")
    assert options["until"] == [".", "\n"]
    tracked = samples["chacal_variables_1"][0]
    prompt = tracked["arguments"]["gen_args_0"]["arg_0"]
    assert prompt.endswith("the text above. Answer: According to the chain(s) of variable "
                           "assignment in the text above, 2 variables are assigned the value "
                           f"{prompt.split()[-3].strip(',')}, they are:")  # fmt: skip
    assert results["chacal_variables_1"]["chance,none"] == pytest.approx(1 / 6)
    assert results["chacal_variables_1"]["all_recall,none"] == 1


def test_a_missing_file_is_said_in_one_sentence(model, tmp_path):
    ran = harness(model, tmp_path, "chacal_kim_schuster")
    assert ran.returncode != 0
    last = ran.stderr.strip().splitlines()[-1]
    assert "no kim_schuster was given; expected --metadata kim_schuster=the folder" in last
