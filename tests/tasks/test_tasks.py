"""What every task owes to the command line and the training loop."""

import dataclasses
import json
import math

import numpy as np
import pytest

from chacal.tasks import SPLITS, TASKS, Boxes, Chains, Labelled, Noise, Properties, Scrolls, Task
from chacal.tasks.base import part, ratios, split_of, stream, uniforms


@pytest.mark.parametrize("name", TASKS)
def test_options_are_documented_json_scalars(name):
    task = TASKS[name]
    assert task.name == name
    assert task.metric
    for field in dataclasses.fields(task):
        assert field.kw_only
        assert field.metadata["help"]
        assert json.loads(json.dumps(field.default)) == field.default


@pytest.mark.parametrize("task", [Chains(), Properties(), Boxes()])
def test_generated_tasks_never_run_out_and_summarise_their_metric(task):
    assert task.batches("valid", 8) is None
    batch = task.batch("valid", 0, 10**9, 2)
    totals = task.count(batch.targets, np.zeros(batch.targets.shape), batch)
    assert task.summarise(totals)[task.metric] == 1.0
    assert batch.tokens.dtype == batch.targets.dtype == np.int64
    assert 0 <= batch.tokens.min() <= batch.tokens.max() < task.vocab_size
    assert batch.targets.max() < task.num_classes
    assert task.describe().startswith(task.name)


def test_the_stream_is_pinned():
    drawn = stream("boxes", "train", 0, 1).random_sample(2).tolist()
    assert drawn == [0.8668077098621074, 0.8959731087272638]
    uniform = uniforms(stream("boxes", "train", 0, 1))
    assert [uniform(), uniform()] == drawn
    many = [uniform() for _ in range(5000)]
    assert len(set(many)) == 5000
    assert stream("a", "b").random_sample() != stream("ab").random_sample()


def test_half_of_the_hash_buckets_train():
    assert [split_of(bucket) for bucket in range(4)] == ["train", "train", "valid", "test"]


def test_parts_cover_a_pass_once():
    parts = [list(range(10))[part("test", step, 4, 10)] for step in range(3)]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(ValueError, match=r"step=3: expected 0\.\.2"):
        part("test", 3, 4, 10)


def test_ratio_of_nothing_is_nan():
    assert ratios({"a": (1.0, 4.0)}) == {"a": 0.25}
    assert math.isnan(ratios({"a": (0.0, 0.0)})["a"])


def test_what_the_loop_asks_for_has_usual_answers():
    task = Boxes()
    assert (task.symbols, task.period, task.inputs) == (1, None, 0)
    assert (task.special_tokens, task.floor, task.free_running) == ({}, None, False)
    assert task.splits == SPLITS


def test_tasks_that_differ_say_so(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "label": 1}\n')
    own = Labelled(train_file=str(file), valid_file=str(file))
    assert own.splits == ("train", "valid")
    assert (
        Labelled(train_file=str(file), valid_file=str(file), test_file=str(file)).splits == SPLITS
    )
    assert Noise(alphabet=4).floor == math.log(4)
    assert Scrolls(data="help", input_tokens=24).inputs == 24
    assert TASKS["boxes-files"].free_running


def test_a_task_that_lacks_a_part_cannot_be_made():
    class Half(Task):
        name, metric, maximise = "half", "loss", False

    with pytest.raises(TypeError, match=r"abstract methods? .*batch.*vocab_size"):
        Half()
