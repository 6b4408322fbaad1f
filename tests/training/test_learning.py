"""A small resolvent layer learns chains in seconds; ordinary attention in its place does not."""

import dataclasses
import json

import pytest

from chacal._plain import from_plain, to_plain
from chacal.tasks import Chains
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.loop import train
from chacal.training.optimizer import learning_rate


def config(operator, **changes):
    return RunConfig(
        task=Chains(blocks=6, block_size=4),
        model=ModelConfig(operators=(operator,), width=48, heads=2, positions="factorised"),
        train=TrainConfig(
            steps=200, batch_size=32, lr=3e-3, eval_every=50, eval_examples=64, test_examples=256,
            checkpoint_every=200, **changes,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("operator", ["chacal", "window@8", "chacal,diagonal=drop"])
def test_a_resolvent_learns_chains(operator, tmp_path):
    result = train(config(operator, target=0.9999), tmp_path / "run", quiet=True)
    assert result["test"]["accuracy"] >= 0.995
    assert result["stopped"] == "target"


def test_ordinary_attention_stops_after_one_hop(tmp_path):
    test = train(config("dense"), tmp_path / "run", quiet=True)["test"]
    assert test["accuracy/depth=01"] > 0.95
    assert test["accuracy/depth=05"] < 0.5


def test_accumulated_parts_take_the_same_steps(tmp_path):
    losses = []
    for parts in (1, 4):
        run = config("chacal", accumulate=parts, log_every=1)
        run = dataclasses.replace(run, train=dataclasses.replace(run.train, steps=8))
        train(run, tmp_path / str(parts), quiet=True)
        lines = (tmp_path / str(parts) / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(x)["loss"] for x in lines if "split" not in x])
    assert len(losses[0]) == 8
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_bf16_trains(tmp_path):
    result = train(config("chacal", bf16=True, target=0.99), tmp_path / "run", quiet=True)
    assert result["test"]["accuracy"] >= 0.95


def test_schedules():
    settings = TrainConfig(steps=100, lr=1.0, warmup=10, schedule="linear", decay=0.5)
    assert learning_rate(settings, 0) == pytest.approx(0.1)
    assert learning_rate(settings, 9) == 1.0
    assert learning_rate(settings, 49) == 1.0
    assert learning_rate(settings, 75) == pytest.approx(0.5)
    cosine = dataclasses.replace(settings, schedule="cosine", decay=1.0, final_lr=0.1)
    assert learning_rate(cosine, 55) == pytest.approx(0.55)
    assert learning_rate(cosine, 100) == pytest.approx(0.1)
    assert learning_rate(dataclasses.replace(settings, schedule="constant"), 99) == 1.0
    # γ's peak is its own, its rise and fall are those of all
    assert learning_rate(settings, 75, 0.2) == pytest.approx(0.1)


def test_configs_are_strict():
    run = config("chacal")
    assert RunConfig.from_json(run.to_json()) == run
    model = to_plain(ModelConfig())
    for change, message in (
        ({"width": "wide"}, "model.width is 'wide'; expected int"),
        ({"widht": 3}, "model.widht is not a field"),
        ({"learn_gamma": 1}, "model.learn_gamma is 1; expected bool"),
        ({"operators": "chacal"}, "model.operators is 'chacal'; expected a list"),
    ):
        with pytest.raises(ValueError, match=message):
            from_plain(ModelConfig, {**model, **change}, "model")
    del model["width"]
    with pytest.raises(ValueError, match=r"model\.width is missing"):
        from_plain(ModelConfig, model, "model")
