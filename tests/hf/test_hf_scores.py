"""Transformers models in the one training loop: the same scores, tied weights, resuming, heads."""

import dataclasses
import json

import pytest
import torch
from tiny import EXACT, draw_tokens, far, tiny

from chacal.hf import operators_of, patch
from chacal.hf.scores import Scores, build_scores
from chacal.tasks import Code, Language, Scrolls
from chacal.training.config import RunConfig, TrainConfig
from chacal.training.evaluate import load_run
from chacal.training.loop import train
from chacal.training.runs import RunFolder
from chacal.training.transformers_model import TransformersConfig

TINY = {"width": 16, "heads": 2, "depth": 2}
FEW = TrainConfig(
    steps=4, batch_size=2, lr=1e-2, eval_every=2, eval_examples=4, test_examples=4,
    checkpoint_every=1, log_every=1,
)  # fmt: skip
TEXT = Language(window=16, eval_tokens=64)


def run(task=TEXT, settings=FEW, **model):
    return RunConfig(task=task, model=TransformersConfig(**{**TINY, **model}), train=settings)


def losses(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines]


def test_a_run_with_a_decoder_is_plain_data():
    config = run(operator="block/3", layers="0+1", dropout=0.1)
    data = config.to_json()
    assert data["model"]["kind"] == "decoder"
    assert RunConfig.from_json(data) == config
    with pytest.raises(ValueError, match=r"model\.depths is not a field"):
        RunConfig.from_json({**data, "model": {**data["model"], "depths": 3}})


def test_scores_are_the_models_own():
    model, tokens = tiny("gpt2"), draw_tokens(2, 9)
    assert far(Scores(model)(tokens), model(tokens).logits) < EXACT
    model = tiny("bart")
    rows = torch.cat([draw_tokens(2, 7, 1), draw_tokens(2, 5, 2)], 1)
    rows[0, 4:7] = model.config.pad_token_id
    expected = model(
        input_ids=rows[:, :7], attention_mask=(rows[:, :7] != 0).long(),
        decoder_input_ids=rows[:, 7:],
    ).logits  # fmt: skip
    assert far(Scores(model, inputs=7)(rows), expected) < EXACT


@pytest.mark.parametrize("text", ["dense", "chacal", "block/3"])
@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram_size": 1}, {"min_length": 5}])
def test_answers_are_greedy_and_padded(text, options):
    model = tiny("bart")
    # what a checkpoint's own generation config asks for is not greedy
    model.generation_config.update(**options)
    if text != "dense":  # block/3 cannot go on from a cache, and has to answer without one
        patch(model, text, layers="paper:scrolls")
    rows = torch.cat([draw_tokens(3, 7, 1), draw_tokens(3, 6, 2)], 1)
    told = Scores(model, inputs=7).answer(rows)
    assert told.shape == (3, 6)
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    for _ in range(6):
        outputs = model(input_ids=rows[:, :7], decoder_input_ids=start, use_cache=False)
        logits = outputs.logits[:, -1]
        start = torch.cat([start, logits.argmax(-1, keepdim=True)], 1)
    for guess, expected in zip(told.tolist(), start[:, 1:].tolist(), strict=True):
        end = expected.index(2) + 1 if 2 in expected else 6
        assert guess == expected[:end] + [0] * (6 - end)


def test_a_new_encoder_decoder_ends_answers_with_the_tasks_own_token():
    sizes = {**TINY, "mlp_ratio": 4.0, "positions": 0, "dropout": 0.0}
    tokens = {"bos_token_id": 5, "pad_token_id": 6, "eos_token_id": 7, "decoder_start_token_id": 7}
    config = built(
        architecture="bart", sizes={**sizes, "tokens": tokens}, inputs=6
    ).model.generation_config
    assert config.eos_token_id == 7


def test_only_the_named_layers_are_patched():
    for layers, expected in (("all", {0, 1}), ("paper:code", {1}), ("0", {0})):
        model = run(operator="chacal", layers=layers).build()
        assert set(operators_of(model.model)) == expected
        assert [str(op) for op in model.operators] == ["chacal"]
    dense = run(operator="dense").build()
    assert not operators_of(dense.model)
    assert [str(op) for op in dense.operators] == ["dense"]


def test_it_learns_and_a_stopped_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    config = run(operator="chacal", settings=dataclasses.replace(FEW, steps=8))
    whole = train(config, tmp_path / "whole", quiet=True)
    assert whole["valid"]["perplexity"] < 256
    assert whole["operators"] == ["chacal"]

    def fails(self, split, seed, step, size, whole=Language.batch):
        if split == "train" and step == 5:
            raise OSError("the power is gone")
        return whole(self, split, seed, step, size)

    with monkeypatch.context() as broken:
        broken.setattr(Language, "batch", fails)
        with pytest.raises(OSError, match="power"):
            train(config, tmp_path / "cut", quiet=True)
    assert RunFolder(tmp_path / "cut").last.exists()
    again = train(config, tmp_path / "cut", resume=True, quiet=True)
    assert again["test"] == whole["test"]
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    model, _ = load_run(tmp_path / "whole")
    # tied weights are saved under both names and loaded as one
    assert model.model.lm_head.weight.data_ptr() == model.model.transformer.wte.weight.data_ptr()
    swapped, _ = load_run(tmp_path / "whole", operators=("dense",))
    tokens = torch.arange(16)[None]
    assert far(swapped(tokens), model(tokens)) > 1e-3


def test_no_steps_measure_the_weights_as_they_are(tmp_path):
    tiny("gpt2", dtype=torch.float32, vocab_size=256).save_pretrained(tmp_path / "given")
    settings = dataclasses.replace(FEW, steps=0)
    config = run(settings=settings, pretrained=str(tmp_path / "given"))
    result = train(config, tmp_path / "run", quiet=True)
    assert (result["steps"], result["best_step"]) == (0, 0)
    tokens = torch.from_numpy(TEXT.batch("test", 0, 0, 4).tokens)
    expected = tiny("gpt2", dtype=torch.float32, vocab_size=256)(tokens).logits
    model, _ = load_run(tmp_path / "run")
    assert far(model(tokens), expected) < 1e-5
    # a small change of γ from 0 is a small change of perplexity, and γ = 0 is none
    same = train(
        run(settings=settings, pretrained=str(tmp_path / "given"), operator="chacal,gamma=0"),
        tmp_path / "zero", quiet=True,
    )  # fmt: skip
    assert same["test"]["perplexity"] == pytest.approx(result["test"]["perplexity"], rel=1e-4)


def test_classes_have_a_head_of_their_own(tmp_path):
    config = run(task=Code(variables=2, updates=1), operator="chacal", layers="paper:code")
    model = config.build()
    batch = config.task.batch("train", 0, 0, 3)
    assert model(torch.from_numpy(batch.tokens)).shape == (*batch.tokens.shape, 10)
    train(config, tmp_path / "run", quiet=True)
    trained, _ = load_run(tmp_path / "run")
    assert far(trained.head.weight, model.head.weight) > 0.01


def test_an_encoder_decoder_is_trained_and_answers(tmp_path):
    pytest.importorskip("rouge_score")
    task = Scrolls(dataset="gov_report", data="help", input_tokens=16, output_tokens=6, limit=3)
    config = run(task=task, architecture="bart", operator="block/3", layers="paper:scrolls")
    result = train(config, tmp_path / "run", quiet=True)
    assert set(result["test"]) == {"loss", "rouge1", "rouge2", "rougeL", "rouge", "score"}
    model, _ = load_run(tmp_path / "run")
    assert set(operators_of(model.model)) == {0}
    settings = dataclasses.replace(FEW, steps=0)
    before = train(dataclasses.replace(config, train=settings), tmp_path / "untrained", quiet=True)
    assert result["test"]["loss"] < before["test"]["loss"] - 0.05


def built(**changes):
    options = {
        "operator": "dense", "layers": "all", "pretrained": None, "architecture": "gpt2",
        "sizes": {**TINY, "mlp_ratio": 4.0, "positions": 0, "dropout": 0.0, "tokens": {}},
        "vocab_size": 61, "num_classes": 61, "length": 16,
    }  # fmt: skip
    return build_scores(**{**options, **changes})


def test_what_cannot_be_built_is_told_in_one_message(tmp_path):
    tiny("gpt2", dtype=torch.float32).save_pretrained(tmp_path / "given")
    given = str(tmp_path / "given")
    (tmp_path / "empty").mkdir()
    patch(tiny("gpt2", dtype=torch.float32), "chacal").save_pretrained(tmp_path / "patched")
    tiny("gpt2", dtype=torch.float32).save_pretrained(tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    for changes, message in (
        ({"pretrained": "./nowhere"}, "which is not there"),
        ({"pretrained": "nowhere.gguf"}, "which is not there; expected a folder or a GGUF file"),
        ({"pretrained": str(tmp_path / "empty")}, "0 GGUF files and no config.json"),
        ({"pretrained": "chacal-tests/none"}, "cannot be loaded .*a hub name and a network"),
        ({"pretrained": str(tmp_path / "patched")}, "whose layers have operators already"),
        ({"pretrained": str(tmp_path / "damaged")}, "cannot be loaded"),
        ({"pretrained": given, "vocab_size": 99}, "expected the model's own tokenizer"),
        ({"pretrained": given, "length": 65}, "65 tokens and .* 64 positions"),
        ({"pretrained": given, "inputs": 4}, "expected an encoder-decoder"),
        ({"architecture": "rnn"}, "architecture is 'rnn'"),
    ):
        with pytest.raises(ValueError, match=message):
            built(**changes)
