"""Packed sequences in patched models: as one by one, however the model is told of them."""

import pytest
import torch
from tiny import draw_tokens, far, near, tiny

from chacal.hf import patch
from chacal.hf.attention import attend
from chacal.hf.cache import OperatorLayer
from chacal.hf.decoders import causal_attentions

LENGTHS = (5, 2, 8, 1, 4)


def packed_positions(lengths):
    return torch.cat([torch.arange(n) for n in lengths])[None]


def one_by_one(model, tokens, lengths):
    parts = tokens.split(lengths, 1)
    return torch.cat([model(part, use_cache=False).logits for part in parts], 1)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
@pytest.mark.parametrize("operator", ["chacal,gamma=learn:0.5", "window@3", "block/3"])
def test_positions_that_start_again(kind, operator, implementation):
    model = patch(tiny(kind, attn_implementation=implementation), operator, layers=[1])
    tokens = draw_tokens(1, sum(LENGTHS))
    logits = model(tokens, position_ids=packed_positions(LENGTHS), use_cache=False).logits
    assert far(logits, one_by_one(model, tokens, LENGTHS)) < near(kind)


def test_rows_that_are_packed_differently():
    model = patch(tiny("llama"), "chacal", layers=[0, 2])
    tokens, lengths = draw_tokens(2, 10), ((3, 7), (6, 4))
    positions = torch.cat([packed_positions(own) for own in lengths])
    logits = model(tokens, position_ids=positions, use_cache=False).logits
    for i, own in enumerate(lengths):
        assert far(logits[i : i + 1], one_by_one(model, tokens[i : i + 1], own)) < near("llama")


def test_lengths_as_flash_attention_has_them():
    module = causal_attentions(patch(tiny("gpt2"), "chacal"))[0]
    q, k, v = torch.randn(3, 1, 4, 10, 8, dtype=torch.float64).unbind(0)
    cu = torch.tensor([0, 3, 10], dtype=torch.int32)
    Y, _ = attend(module, q, k, v, None, cu_seq_lens_q=cu, cu_seq_lens_k=cu)
    parts = [attend(module, *(x[:, :, a:b] for x in (q, k, v)), None)[0]
             for a, b in ((0, 3), (3, 10))]  # fmt: skip
    assert far(Y, torch.cat(parts, 1)) < 1e-12
    ones = torch.ones(1, 10)
    assert far(attend(module, q, k, v, ones, cu_seq_lens_q=cu)[0], Y) < 1e-12
    with pytest.raises(ValueError, match="do not go together"):
        attend(module, q, k, v, torch.ones(1, 1, 10, 10).bool().tril(), cu_seq_lens_q=cu)


def test_packed_sequences_and_a_cache_are_refused():
    module = causal_attentions(patch(tiny("gpt2"), "chacal"))[0]
    module.chacal_layer = OperatorLayer(module.chacal_operator)
    q = torch.randn(1, 4, 6, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"together with a cache, .* use_cache=False"):
        attend(module, q, q, q, None, position_ids=packed_positions((4, 2)))


def test_positions_of_padding_do_not_begin_a_sequence():
    model, tokens = patch(tiny("llama"), "chacal", layers=[1]), draw_tokens(1, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    positions = torch.tensor([[1, 1, 0, 1, 2, 3]])  # as generate makes them
    padded = model(tokens, attention_mask=mask, position_ids=positions, use_cache=False).logits
    assert far(padded[:, 2:], model(tokens[:, 2:], use_cache=False).logits) < near("llama")


def test_the_trainers_collator_without_padding(tmp_path):
    from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

    model = patch(tiny("llama", dtype=torch.float32), "chacal,gamma=learn", layers=[1])
    rows = [{"input_ids": draw_tokens(1, n)[0].tolist()} for n in LENGTHS]
    losses = []

    class Watched(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            assert inputs["input_ids"].shape[0] == 1  # all of a batch in one row
            losses.append(super().compute_loss(model, inputs, *args, **kwargs))
            return losses[-1]

    with torch.no_grad():
        expected = sum(
            (len(row["input_ids"]) - 1) * model(ids, labels=ids, use_cache=False).loss
            for row in rows
            if len(row["input_ids"]) > 1
            for ids in [torch.tensor([row["input_ids"]])]
        ) / (sum(LENGTHS) - len(LENGTHS))
    settings = TrainingArguments(
        tmp_path, per_device_train_batch_size=len(rows), max_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    Watched(
        model=model, args=settings, train_dataset=rows, data_collator=DataCollatorWithFlattening()
    ).train()
    assert abs(float(losses[0].detach()) - float(expected)) < 1e-4
