"""PEFT beside a learned γ: LoRA on the weights, γ among `modules_to_save`, adapters kept apart."""

import logging

import pytest
import torch
from tiny import draw_tokens, far, tiny
from transformers import AutoModelForCausalLM

from chacal.hf import gammas, parameter_groups, patch

peft = pytest.importorskip("peft")


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("transformers").setLevel(logging.ERROR)


def base(folder):
    """A patched model, saved and loaded, as an adapter's base is."""
    model = patch(tiny("llama", dtype=torch.float32), "chacal,gamma=learn", layers=[0, 2])
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def with_lora(model):
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["chacal_gamma"],
            task_type="CAUSAL_LM",
        ),
    )  # fmt: skip


def train(model, steps=8):
    groups = parameter_groups(model, lr=1e-2, gamma_lr=3e-2)
    optimizer = torch.optim.AdamW(groups)
    model.train()
    for step in range(steps):
        tokens = draw_tokens(2, 12, step % 2)
        optimizer.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
    return model.eval()


def test_lora_and_gamma_are_all_that_is_trained(tmp_path):
    model = with_lora(base(tmp_path))
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "chacal_gamma.modules_to_save" in name for name in names)
    matrices, learned = parameter_groups(model, lr=1e-2, gamma_lr=3e-2)
    assert len(learned["params"]) == 2
    assert learned["lr"] == 3e-2
    assert len(matrices["params"]) == len(names) - 2


def test_adapters_are_trained_saved_and_loaded(tmp_path):
    folder, tokens = tmp_path / "base", draw_tokens(2, 12)
    model = base(folder)
    dense = model(tokens).logits.detach()
    model = train(with_lora(model))
    expected, learned = model(tokens, use_cache=False).logits, gammas(model)
    assert max(max(heads) for heads in learned.values()) > 0.05
    assert far(expected, dense) > 1e-3
    # without the adapter, γ too is what it was
    with model.disable_adapter():
        assert gammas(model)[0] == (0.0,) * 4
        assert far(model(tokens).logits, dense) < 1e-6

    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(base(tmp_path / "other"), tmp_path / "adapter").eval()
    assert gammas(loaded) == learned
    assert far(loaded(tokens, use_cache=False).logits, expected) < 1e-6
    # by the name of its base, which the adapter's folder holds
    auto = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert gammas(auto) == learned
    assert far(auto(tokens, use_cache=False).logits, expected) < 1e-6


def test_a_trained_adapter_generates_with_its_cache_and_merges_into_its_base(tmp_path):
    model, tokens = train(with_lora(base(tmp_path / "base"))), draw_tokens(2, 12)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(input_ids=tokens, use_cache=False, **options)
    assert torch.equal(model.generate(input_ids=tokens, **options), expected)
    learned, logits = gammas(model), model(tokens, use_cache=False).logits
    merged = model.merge_and_unload()
    assert gammas(merged) == learned
    merged.save_pretrained(tmp_path / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert gammas(loaded) == learned
    assert far(loaded(tokens, use_cache=False).logits, logits) < 1e-4
