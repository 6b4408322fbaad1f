"""Patched layers under what people train with: checkpointing, autocast, compile, the Trainer."""

import logging

import pytest
import torch
from tiny import CAUSAL_LM, EXACT, KINDS, OPERATORS, draw_tokens, far, inputs_of, near, tiny
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from chacal.hf import operators_of, patch
from chacal.hf.decoders import causal_attentions

kinds = pytest.mark.parametrize("kind", KINDS)
operators = pytest.mark.parametrize("text", OPERATORS)


def gradients(model, inputs):
    """Of the mean negative log-likelihood of the inputs themselves."""
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])
    model.zero_grad()
    model(**inputs, labels=labels).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(a, b, tolerance):
    assert list(a) == list(b)
    for name in a:
        assert far(a[name], b[name]) < tolerance, name


@kinds
def test_gamma_0_has_the_dense_gradients(kind):
    model, inputs = tiny(kind), inputs_of(kind)
    dense = gradients(model, inputs)
    assert_same(gradients(patch(model, "chacal,gamma=0"), inputs), dense, near(kind))


@kinds
def test_gradient_checkpointing(kind):
    model, inputs = patch(tiny(kind).train(), "chacal", layers=[0, 2]), inputs_of(kind)
    calls = []
    causal_attentions(model)[0].register_forward_hook(lambda *_: calls.append(1))
    expected = gradients(model, inputs)
    assert len(calls) == 1
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same(gradients(model, inputs), expected, EXACT)
    assert len(calls) == 3  # forward, and once more for the backward


def test_gradient_checkpointing_with_padding():
    # two batches in flight: recomputing the first must not meet the mask of the second
    model = patch(tiny("gpt2").train(), "chacal")
    batches = []
    for seed, hidden in ((0, 3), (1, 5)):
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[0, :hidden] = 0
        batches.append({"input_ids": draw_tokens(2, 12, seed), "attention_mask": mask})

    def both():
        model.zero_grad()
        losses = [model(**batch, labels=batch["input_ids"]).loss for batch in batches]
        sum(losses).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    expected = both()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same(both(), expected, EXACT)


@operators
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_bfloat16_autocast(text, kind):
    model, inputs = tiny(kind, dtype=torch.float32), inputs_of(kind)
    dense = model(**inputs).logits
    exact = patch(model, text)(**inputs).logits
    near_enough = min(0.5, far(dense, exact) / 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = gradients(model, inputs)
        logits = model(**inputs).logits
    # bfloat16 keeps 8 bits; these are logits of about 5 after three layers
    assert 0 < far(logits.float(), exact) < near_enough
    assert all(bool(g.isfinite().all()) for g in half.values())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        cache, parts = None, []
        for part in inputs["input_ids"].split([10, 1, 7], 1):
            outputs = model(part, past_key_values=cache)
            cache = outputs.past_key_values
            parts.append(outputs.logits)
    assert far(torch.cat(parts, 1).float(), exact) < near_enough


@pytest.mark.parametrize("kind", CAUSAL_LM)
def test_bfloat16_weights(kind):
    model, inputs = patch(tiny(kind, dtype=torch.bfloat16), "chacal"), inputs_of(kind)
    twin = tiny(kind, dtype=torch.bfloat16).double()
    dense = twin(**inputs).logits
    exact = patch(twin, "chacal")(**inputs).logits
    logits = model(**inputs).logits
    assert logits.dtype == torch.bfloat16
    assert far(logits.double(), exact) < min(0.5, far(dense, exact) / 4)


# the compiler itself reads .grad of what is no leaf
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("operator", ["chacal,gamma=learn:0.5", "window@4"])
def test_compiled_equals_not_compiled(kind, operator):
    one_layer = {"n_layer" if kind == "gpt2" else "num_hidden_layers": 1}
    model, inputs = patch(tiny(kind, **one_layer), operator), inputs_of(kind)
    inputs |= {"use_cache": False}

    def run(model):
        model.zero_grad()
        logits = model(**inputs).logits
        logits.logsumexp(-1).sum().backward()
        grads = {n.removeprefix("_orig_mod."): p.grad.clone() for n, p in model.named_parameters()}
        return logits, grads

    (expected, grads), (logits, compiled) = (
        run(model),
        run(torch.compile(model, backend="aot_eager", fullgraph=True)),
    )
    assert far(logits, expected) < near(kind)
    assert_same(compiled, grads, near(kind))


def test_dropout_falls_on_the_output_and_never_on_A():
    model = patch(tiny("gpt2", attn_pdrop=0.5), "chacal,gamma=0.95", layers=[0])
    attention = causal_attentions(model)[0]
    seen = []
    attention.c_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    tokens = draw_tokens(4, 30)
    model(tokens)
    model.train()
    torch.manual_seed(0)
    model(tokens)
    plain, dropped = seen
    kept = dropped != 0
    assert abs(float(kept.double().mean()) - 0.5) < 0.05
    assert far(dropped[kept], 2 * plain[kept]) < EXACT


def test_the_trainer_trains_and_its_checkpoints_are_patched(tmp_path):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = patch(tiny("gpt2", dtype=torch.float32), "chacal", layers=[1])
    row = {"input_ids": draw_tokens(1, 16)[0], "labels": draw_tokens(1, 16)[0]}
    before = model(**{k: v[None] for k, v in row.items()}).loss.item()
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=12, per_device_train_batch_size=2, learning_rate=1e-2,
        lr_scheduler_type="constant", save_steps=12, report_to="none", use_cpu=True, seed=0,
        disable_tqdm=True, logging_strategy="no", eval_strategy="steps", eval_steps=12,
        gradient_checkpointing=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=[row] * 8, eval_dataset=[row] * 2)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 4
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-12").eval()
    assert {i: str(op) for i, op in operators_of(loaded).items()} == {1: "chacal"}
    assert torch.equal(loaded(row["input_ids"][None]).logits, model(row["input_ids"][None]).logits)


def test_the_trainer_shifts_labels_for_a_model_that_was_loaded(tmp_path):
    # it knows a causal model by its class's name, and ours is another
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = patch(tiny("gpt2", dtype=torch.float32), "chacal", layers=[1])
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), label_smoothing_factor=0.1, use_cpu=True, report_to="none"
    )
    tokens = draw_tokens(2, 16)
    losses = [
        Trainer(model=each.eval(), args=arguments).compute_loss(
            each, {"input_ids": tokens, "labels": tokens.clone()}
        )
        for each in (model, loaded)
    ]
    assert losses[0].item() == losses[1].item()
