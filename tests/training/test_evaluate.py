"""Figures of generated answers: no operator gets to see the true ones."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from chacal.nn import Transformer
from chacal.operators import parse_operator
from chacal.tasks import IGNORE, Boxes, Labelled, PaddedBoxes, Variables
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.distributed import Group
from chacal.training.evaluate import (
    compute_scores,
    decode_freely,
    decode_on,
    evaluate,
    load_run,
)
from chacal.training.evaluate_run import evaluate_run
from chacal.training.loop import train

ALONE = Group(0, 1, torch.device("cpu"))
TASK = Boxes(boxes=3, objects=12, updates=4)
CAUSAL = ["dense", "chacal", "block/3", "block/3,values=mean", "window@5", "pooled@4"]
LEAKY = ["block/3,rows=mean", "block/3,rows=last", "block@4,rows=mean"]


def small(operator):
    torch.manual_seed(1)
    model = Transformer(
        vocab_size=TASK.vocab_size, num_classes=TASK.num_classes, width=32, heads=2,
        operators=["dense", operator],
    )  # fmt: skip
    return model.eval()


def measure(model, task=TASK):
    return evaluate(model, task, split="valid", seed=0, examples=40, batch_size=16, group=ALONE)


def stories(size=24):
    batch = TASK.batch("valid", 0, 0, size)
    return torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)


def generate(model, tokens, targets):
    return decode_freely(model, tokens, targets, TASK.padding, ALONE, False)


def with_answers(tokens, targets, answers):
    """The same stories with other answers for the true ones."""
    asked = targets != IGNORE
    fed = (asked & (torch.roll(asked, -1, 1))).roll(1, 1)
    fed[:, 0] = False
    return torch.where(fed, answers.roll(1, 1), tokens), torch.where(asked, answers, targets)


@torch.no_grad()
def test_answers_are_those_of_decoding_one_token_at_a_time():
    model = small("chacal")
    tokens, targets = stories()
    got = generate(model, tokens, targets)
    for row, asked, guess in zip(tokens, targets != IGNORE, got, strict=True):
        first, count = int(asked.int().argmax()), int(asked.sum())
        text = row[: first + 1].tolist()
        for _ in range(count):
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
        assert guess[asked].tolist() == text[first + 1 :]


@torch.no_grad()
@pytest.mark.parametrize("operator", CAUSAL)
def test_a_causal_model_has_the_same_exact_match_either_way(operator):
    model = small(operator)
    tokens, targets = stories()
    # half of the stories end as the model says, so that some answers are right
    own = generate(model, tokens, targets)
    own[::2] = torch.where(targets == IGNORE, 0, targets)[::2]
    tokens, targets = with_answers(tokens, targets, own)
    exact = {
        name: ((guess == targets) | (targets == IGNORE)).all(1)
        for name, guess in (
            ("free", generate(model, tokens, targets)),
            ("forced", compute_scores(model, tokens, False).argmax(-1)),
        )
    }
    assert exact["free"][1::2].all()
    assert not exact["free"].all()
    assert (exact["free"] == exact["forced"]).all()


@torch.no_grad()
@pytest.mark.parametrize("operator", [*CAUSAL, *LEAKY])
def test_what_is_generated_does_not_depend_on_the_true_answer(operator):
    model = small(operator)
    tokens, targets = stories()
    others = torch.randint(2, TASK.vocab_size, targets.shape)
    changed, asked = with_answers(tokens, targets, others)
    assert (changed != tokens).any()
    told, again = generate(model, tokens, targets), generate(model, changed, asked)
    assert torch.equal(told, again)
    first = (targets != IGNORE).int().argmax(1)
    scores = [
        compute_scores(model, x, False)[torch.arange(len(x)), first] for x in (tokens, changed)
    ]
    # forced, the first answer of a model that leaks does
    assert torch.equal(*scores) == (operator in CAUSAL)


class ReadsOff(nn.Module):
    """Says the token that stands next in its input, and the end where none does."""

    def __init__(self, operator):
        super().__init__()
        self.operators = (parse_operator(operator),)
        self.seen = []

    def forward(self, tokens):
        self.seen.append(tokens.clone())
        ahead = tokens.roll(-1, 1)
        ahead[:, -1] = TASK.padding
        ahead = ahead.masked_fill(ahead == TASK.padding, TASK.tokenizer.ids["."])
        return nn.functional.one_hot(ahead, TASK.vocab_size).float()


@pytest.mark.parametrize("task", [TASK, PaddedBoxes(boxes=3, objects=12, updates=4, pad=60)])
def test_reading_the_answer_off_earns_nothing(task):
    model = ReadsOff("block/3,rows=mean")
    metrics = measure(model, task)
    assert metrics["exact_match"] == 0
    assert metrics["accuracy"] < 0.2
    assert metrics["box_accuracy"] < 0.5
    forced = {name for name in metrics if name.endswith("_teacher_forced")}
    assert forced == {f"{x}_teacher_forced" for x in ("exact_match", "accuracy", "box_accuracy")}
    assert {metrics[name] for name in forced} == {1.0}
    # the loss is teacher-forced: every true token has the highest score
    assert metrics["loss"] < np.log(TASK.vocab_size)
    assert {x.shape[1] for x in model.seen[:8]} == {model.seen[0].shape[1]}, "n is as in training"


def test_a_causal_operator_is_believed():
    metrics = measure(ReadsOff("dense"))
    assert metrics["exact_match"] == 1
    assert not [name for name in metrics if "forced" in name]


def test_breakdowns_are_of_what_is_generated():
    metrics = measure(ReadsOff("block/3,rows=last"))
    parts = {value for name, value in metrics.items() if name.startswith("exact_match/updates")}
    assert parts == {0.0}
    names = list(metrics)
    assert names.index("exact_match_teacher_forced") < names.index("exact_match/updates=00")


class Always(nn.Module):
    """Says one class, everywhere, and notes what it was shown."""

    operators = (parse_operator("dense"),)

    def __init__(self, classes):
        super().__init__()
        self.classes, self.seen = classes, []

    def forward(self, tokens):
        self.seen += [row[row != 0].tolist() for row in tokens]
        return nn.functional.one_hot(torch.zeros_like(tokens), self.classes).float()


@pytest.fixture
def texts(tmp_path):
    """Fifty texts, of which every fifth is of the class that is said."""
    rows = [{"text": f"text {i}", "label": "a" if i % 5 == 0 else "b"} for i in range(50)]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Labelled(train_file=str(file), valid_file=str(file), test_file=str(file))


def seen(task, examples, *, seed=0, split="valid", batch_size=8, sampled=True):
    """What an evaluation shows a model, its accuracy, and what it reports."""
    model, told = Always(2), []
    metrics = evaluate(
        model, task, split=split, seed=seed, examples=examples, batch_size=batch_size, group=ALONE,
        sampled=sampled, report=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    return [bytes(row).decode() for row in model.seen], metrics["accuracy"], told


def test_a_number_of_examples_holds_for_stored_splits(texts):
    shown, accuracy, told = seen(texts, 20)
    assert len(set(shown)) == 20
    assert shown == sorted(shown, key=lambda text: int(text.split()[1])), "in the file's order"
    assert accuracy == sum(int(text.split()[1]) % 5 == 0 for text in shown) / 20
    assert told == [(8, 20), (16, 20), (20, 20)]
    # whatever the seed and the batches are; another split has its own
    assert seen(texts, 20, seed=7, batch_size=3)[0] == shown
    assert seen(texts, 20, split="test")[0] != shown
    # more are those and others
    assert set(shown) < set(seen(texts, 30)[0])


@pytest.mark.parametrize(
    "how", [{"examples": 0}, {"examples": 99}, {"examples": 2, "sampled": False}]
)
def test_all_of_a_stored_split(texts, how):
    shown, accuracy, _ = seen(texts, **how)
    assert shown == [f"text {i}" for i in range(50)]
    assert accuracy == 0.2


def test_all_of_what_has_no_end_is_refused():
    with pytest.raises(ValueError, match="boxes makes them without end; expected a number"):
        seen(TASK, 0)


@torch.no_grad()
def test_several_answers_of_a_text_are_generated_in_turn():
    task = Variables(statements=6, min_statements=3, chains=2, pool=9, questions=4)
    batch = task.batch("valid", 0, 0, 6)
    tokens, targets = torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
    torch.manual_seed(1)
    model = Transformer(
        vocab_size=task.vocab_size, num_classes=task.num_classes, width=32, heads=2,
        operators=["dense"],
    ).eval()  # fmt: skip
    got = decode_freely(model, tokens, targets, task.padding, ALONE, False)
    for row, asked, guess in zip(tokens, targets != IGNORE, got, strict=True):
        row = row.clone()
        for place in asked.nonzero()[:, 0].tolist():
            said = int(model(row[None, : place + 1])[0, -1].argmax())
            assert int(guess[place]) == said
            if place + 1 < len(row):
                row[place + 1] = said
    # what reads the answers off its input has them taught, and told freely it has none
    leaky = ReadsOff("block/3,rows=mean")
    leaky.forward = lambda t: nn.functional.one_hot(t.roll(-1, 1), task.vocab_size).float()
    metrics = measure(leaky, task)
    assert metrics["exact_match_teacher_forced"] > 0.7
    assert metrics["exact_match"] == 0


@torch.no_grad()
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_causal_model_generates_the_same_in_fewer_passes(share):
    """Whatever share of the true tokens it has right, from none to all."""
    model = small("chacal")
    tokens, targets = stories()
    torch.manual_seed(2)
    right = generate(model, tokens, targets)
    # the model's own answers as true ones, some of them changed: there it slips
    other = torch.randint_like(right, TASK.num_classes)
    answers = torch.where(torch.rand(right.shape) < share, right, other)
    tokens, targets = with_answers(tokens, targets, answers)
    asked = targets != IGNORE
    shapes = []
    model.register_forward_hook(lambda module, given, scores: shapes.append(len(given[0])))
    forced = compute_scores(model, tokens, False).argmax(-1)
    got = decode_on(model, tokens, targets, forced, ALONE, False)
    assert torch.equal(got[asked], right[asked])
    most = int(asked.sum(1).max())
    assert len(shapes) <= most + 1
    assert shapes == sorted(shapes, reverse=True), "rows leave, and none comes back"
    if share == 1:
        assert shapes == [len(tokens)], "all was said already"


def test_a_stop_is_heard_after_each_token_of_an_answer():
    """An answer of 400 tokens went on for minutes after Ctrl-C."""
    heard = []

    class Enough(Exception):
        pass

    def report(done, total):
        heard.append((done, total))
        if len(heard) == 3:
            raise Enough

    leaky = small("block/3,rows=mean")
    options = {"split": "valid", "seed": 0, "examples": 40, "batch_size": 16, "group": ALONE}
    with pytest.raises(Enough):
        evaluate(leaky, TASK, **options, report=report)
    assert heard == [(0, 40)] * 3


def test_a_run_is_measured_at_another_temperature(tmp_path):
    task = Boxes(boxes=3, objects=12, updates=2)
    few = TrainConfig(steps=1, batch_size=4, eval_examples=4, test_examples=4)
    for name, qk_norm in (("normed", 2.0), ("plain", None)):
        model = ModelConfig(operators=("chacal",), width=16, heads=2, qk_norm=qk_norm)
        train(RunConfig(task=task, model=model, train=few), tmp_path / name, quiet=True)
    tokens = torch.from_numpy(task.batch("test", 0, 0, 4).tokens)
    as_trained, same, other = (
        load_run(tmp_path / "normed", qk_norm=qk_norm)[0](tokens) for qk_norm in (None, 2.0, 4.0)
    )
    assert torch.equal(as_trained, same)
    assert not torch.allclose(as_trained, other)
    losses = [
        evaluate_run(tmp_path / "normed", examples=8, qk_norm=qk_norm, quiet=True)["metrics"][
            "loss"
        ]
        for qk_norm in (None, 2.0, 4.0)
    ]
    assert losses[0] == losses[1] != losses[2]
    with pytest.raises(ValueError, match=r"qk_norm is 4\.0; expected a run that"):
        load_run(tmp_path / "plain", qk_norm=4.0)


def test_a_swapped_in_resolvent_keeps_the_gamma_that_was_learned(tmp_path):
    task = Boxes(boxes=3, objects=12, updates=2)
    few = TrainConfig(steps=3, batch_size=4, lr=0.1, eval_examples=4, test_examples=4)
    model = ModelConfig(operators=("dense", "chacal,gamma=learn:0.3"), width=16, heads=2)
    train(RunConfig(task=task, model=model, train=few), tmp_path / "run", quiet=True)

    def measured(**swapped):
        result = evaluate_run(tmp_path / "run", examples=8, quiet=True, **swapped)
        return result["operators"], result["metrics"]["loss"]

    told, loss = measured(operators="dense,window@999")
    assert told == ["dense", "window@999,gamma=learn:0.3"]
    assert loss == pytest.approx(measured()[1], abs=1e-5)  # the same sums in another order
    assert measured(operator="window@999") == (told, loss)
    told, other = measured(operators="dense,window@999,gamma=0.9")
    assert told == ["dense", "window@999"]
    assert other != pytest.approx(loss, abs=1e-5)
    with pytest.raises(ValueError, match="expected 2, one for each layer"):
        measured(operators="dense,window@999,chacal")
