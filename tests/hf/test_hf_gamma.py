"""A γ per head that is learned from 0: nothing changes at first, and it is trained and kept."""

import copy
import json
import logging
import subprocess
import sys

import pytest
import torch
from tiny import EXACT, KINDS, OPERATORS, draw_tokens, far, inputs_of, near, tiny
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import chacal.hf
from chacal.hf import ChaCALLlamaForCausalLM, gammas, operators_of, parameter_groups, patch, unpatch
from chacal.hf.decoders import causal_attentions

kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("transformers").setLevel(logging.ERROR)


def spread(model, low=0.0, high=0.9):
    """Other γ in every head."""
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "chacal_gamma"):
                weight = module.chacal_gamma.weight
                weight.copy_(torch.linspace(low, high, len(weight)))
    return model


@kinds
def test_the_patched_model_is_the_pretrained_one_until_gamma_moves(kind):
    model, inputs = tiny(kind, dtype=torch.float32), inputs_of(kind)
    dense, keys = model(**inputs).logits, set(model.state_dict())
    patch(model, "chacal,gamma=learn", layers=[0, 2])
    assert far(model(**inputs).logits, dense) < 1e-5
    new = set(model.state_dict()) - keys
    assert len(new) == 2
    assert all(key.endswith("attn.chacal_gamma.weight") for key in new)
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])
    model(**inputs, labels=labels).loss.backward()
    for name, p in model.named_parameters():
        if name in new:
            assert p.shape == (4,)
            assert float(p.grad.abs().min()) > 1e-7
    spread(model)
    assert far(model(**inputs).logits, dense) > 1e-3
    assert torch.equal(unpatch(model)(**inputs).logits, dense)
    assert set(model.state_dict()) == keys


@kinds
def test_heads_have_their_own_gamma(kind):
    # a head with γ = g computes what all heads compute with that γ
    model, inputs = tiny(kind), inputs_of(kind)
    patch(model, "chacal,gamma=learn", layers=[0])
    attention = causal_attentions(model)[0]
    seen = []
    for name in ("c_proj", "o_proj", "out_proj"):
        if hasattr(attention, name):
            getattr(attention, name).register_forward_pre_hook(
                lambda _, args: seen.append(args[0].detach().unflatten(-1, (4, -1)))
            )
    spread(model, 0.0, 0.75)
    model(**inputs)
    for head, gamma in enumerate((0.0, 0.25, 0.5, 0.75)):
        patch(model, f"chacal,gamma={gamma}", layers=[0])
        model(**inputs)
        assert far(seen[0][..., head, :], seen[-1][..., head, :]) < near(kind)


@pytest.mark.parametrize("text", [f"{text},gamma=learn" for text in OPERATORS if text != "delta"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_cache_saving_and_loading(text, kind, tmp_path):
    model = spread(patch(tiny(kind), text, layers=[0, 2]))
    tokens = draw_tokens(2, 20)
    with torch.no_grad():
        expected, cache, parts = model(tokens, use_cache=False).logits, None, []
        for part in tokens.split([9, 1, 1, 9], 1):
            outputs = model(part, past_key_values=cache)
            cache = outputs.past_key_values
            parts.append(outputs.logits)
        assert far(torch.cat(parts, 1), expected) < near(kind)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(tokens, use_cache=False).logits, expected)
    assert gammas(loaded) == gammas(model)
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    cached, plain = (loaded.generate(tokens, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, plain)


def test_a_cache_begun_while_only_gamma_is_trained_goes_on():
    model = spread(patch(tiny("gpt2"), "chacal,gamma=learn", layers=[0])).requires_grad_(False)
    learned = causal_attentions(model)[0].chacal_gamma.weight.requires_grad_(True)
    tokens = draw_tokens(2, 12)
    outputs = model(tokens[:, :8])
    outputs.logits.sum().backward()
    assert float(learned.grad.abs().max()) > 0
    with torch.no_grad():
        logits = model(tokens[:, 8:], past_key_values=outputs.past_key_values).logits
    assert far(logits, model(tokens).logits[:, 8:]) < EXACT


def test_a_plain_checkpoint_loads_with_gamma_where_it_starts(tmp_path):
    model, inputs = tiny("llama", dtype=torch.float32), inputs_of("llama")
    model.save_pretrained(tmp_path)
    text = "chacal,gamma=learn:0.25"
    loaded = ChaCALLlamaForCausalLM.from_pretrained(tmp_path, chacal_operators={"1": text}).eval()
    assert gammas(loaded)[1] == (0.25,) * 4
    assert torch.equal(loaded(**inputs).logits, patch(model, text, layers=[1])(**inputs).logits)


def test_it_stays_in_float32_in_a_model_that_is_loaded_halved(tmp_path):
    model = spread(patch(tiny("llama", dtype=torch.float32), "chacal,gamma=learn", layers=[1]))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert gammas(loaded) == gammas(model)
    loaded(draw_tokens(1, 5)).logits.sum().backward()
    assert causal_attentions(loaded)[1].chacal_gamma.weight.grad.dtype == torch.float32


def test_gradient_checkpointing():
    model, inputs = spread(patch(tiny("llama").train(), "chacal,gamma=learn")), inputs_of("llama")

    def grads():
        model.zero_grad()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for got, want in zip(grads(), expected, strict=True):
        assert far(got, want) < EXACT


def test_patched_again_it_starts_anew_and_copies_are_apart():
    model = spread(patch(tiny("gpt2"), "chacal,gamma=learn", layers=[1]))
    twin = copy.deepcopy(model)
    patch(model, "chacal,gamma=learn:0.5", layers=[1])
    assert gammas(model)[1] == (0.5,) * 4
    assert gammas(twin)[1] == pytest.approx((0.0, 0.3, 0.6, 0.9))
    patch(model, "chacal", layers=[1])
    assert not [key for key in model.state_dict() if "gamma" in key]


def test_the_table_and_the_picture(tmp_path):
    model = patch(tiny("gpt2"), "chacal,gamma=learn", layers=[0, 2])
    told = gammas(patch(spread(model), "window@5,gamma=0.25", layers=[1]))
    assert list(told) == [0, 1, 2]
    assert str(told) == (
        "layer  operator              mean    max  heads\n"
        "    0  chacal,gamma=learn   0.450  0.900  0.00 0.30 0.60 0.90\n"
        "    1  window@5,gamma=0.25  0.250  0.250  0.25 0.25 0.25 0.25\n"
        "    2  chacal,gamma=learn   0.450  0.900  0.00 0.30 0.60 0.90"
    )
    pytest.importorskip("matplotlib")
    picture = told.save_picture(tmp_path / "gamma.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert picture != gammas(spread(model, 0.9, 0.0)).save_picture(tmp_path / "b.png").read_bytes()
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no layer with a γ"):
        gammas(tiny("gpt2"))


def trained(model, folder, **options):
    """By the Trainer, to say one row of tokens by heart."""
    row = {"input_ids": draw_tokens(1, 16)[0], "labels": draw_tokens(1, 16)[0]}
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=12, per_device_train_batch_size=2, report_to="none",
        lr_scheduler_type="linear", save_steps=12, use_cpu=True, seed=0, disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=[row] * 8, **options)
    trainer.train()
    return trainer


def test_the_trainer_gives_gamma_a_rate_of_its_own(tmp_path):
    model = patch(tiny("llama", dtype=torch.float32), "chacal,gamma=learn", layers=[1])
    groups = parameter_groups(model, lr=1e-4, gamma_lr=2e-2, weight_decay=0.1)
    optimizer = torch.optim.AdamW(groups)
    trainer = trained(model, tmp_path, optimizers=(optimizer, None))
    # the schedule scales each group's own rate
    assert trainer.lr_scheduler.base_lrs == [1e-4, 1e-4, 2e-2]
    learned = gammas(model)[1]
    assert 0.02 < max(learned) < 0.3
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-12")
    assert gammas(loaded)[1] == learned


SHARDED = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, "tests/hf")
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from tiny import draw_tokens, tiny
import chacal.hf
from chacal.hf.decoders import causal_attentions

dist.init_process_group("gloo")

def run(shard):
    model = chacal.hf.patch(tiny("llama", dtype=torch.float32), "chacal,gamma=learn", layers=[0, 2])
    if shard:
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert isinstance(causal_attentions(model)[0].chacal_gamma.weight, DTensor)
    steps = torch.optim.AdamW(chacal.hf.parameter_groups(model, lr=1e-3))
    for step in range(6):
        tokens = draw_tokens(2, 12, step)
        steps.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        steps.step()
    return chacal.hf.gammas(model)

whole, pieces = run(False), run(True)
for layer in whole:
    for a, b in zip(whole[layer], pieces[layer], strict=True):
        assert abs(a - b) < 1e-4, (layer, whole, pieces)
assert max(max(heads) for heads in whole.values()) > 0.01
if dist.get_rank() == 0:
    print("equal")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_fsdp2(processes, tmp_path):
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               f"--nproc-per-node={processes}", str(script)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["equal"]


def test_the_operator_in_the_file_says_that_gamma_is_learned(tmp_path):
    patch(tiny("gpt2"), "chacal,gamma=learn:0.5", layers=[1]).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["chacal_operators"] == {"1": "chacal,gamma=learn:0.5"}
    assert saved["architectures"] == ["ChaCALGPT2LMHeadModel"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert str(operators_of(loaded)[1]) == "chacal,gamma=learn:0.5"
    assert chacal.hf.gammas(loaded)[1] == (0.5,) * 4
