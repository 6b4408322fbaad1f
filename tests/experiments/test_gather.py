"""What a table's file says when the table was made in steps: every seed, and how to make it."""

import dataclasses
import json

import pytest
from tables import NOT_RUN, FakeTable, done, found, named_cell

from chacal.experiments.cells import Evaluation, run_id
from chacal.experiments.evaluation_times import time_cells, timed_as
from chacal.experiments.files import timing_file, write_json
from chacal.experiments.gather import choose, command, save_table
from chacal.experiments.job import record_failure
from chacal.experiments.scales import CPU, SMOKE, Given
from chacal.tasks import Boxes, Chains
from chacal.training.config import ModelConfig, RunConfig, TrainConfig


def cell(row, operator):
    run = RunConfig(
        task=Chains(blocks=3, block_size=4),
        model=ModelConfig(operators=(operator,), width=8, heads=2, positions="none"),
        train=TrainConfig(steps=4),
    )
    return named_cell(row, run)


DENSE, EXACT, WINDOW = (
    cell("dense, L=1", "dense"), cell("ChaCAL, L=1", "chacal"), cell("window, L=1", "window@4"),
)  # fmt: skip
TABLE = FakeTable(DENSE, EXACT, WINDOW)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "smoke"


def put(out, which, seed):
    """A run that is done, as a sweep leaves it."""
    folder = out / "runs" / run_id(which.with_seed(seed))
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"steps": 4, "seconds": 1.0}))
    measured = {"metrics": {"accuracy": seed / 10, "exact_match": seed / 20}}
    (folder / f"{which.evaluation.id}.json").write_text(json.dumps(measured))


def save(out, seeds, **more):
    return save_table(TABLE, SMOKE, out, seeds=range(seeds), **more)


def states(result):
    return {c.row: {s: run.state for s, run in c.runs.items()} for c in result.cells}


def test_a_call_for_fewer_seeds_hides_none(out):
    for seed in range(3):
        put(out, EXACT, seed)
    put(out, DENSE, 0)
    content = save(out, 1)
    assert states(content) == {
        "dense, L=1": {"0": "done"},
        "ChaCAL, L=1": {"0": "done", "1": "done", "2": "done"},
        "window, L=1": {"0": "not run"},
    }
    assert content.seeds == (0, 1, 2)
    assert content.command == (
        "chacal reproduce tab:boxes --scale smoke --seeds 1 && "
        "chacal reproduce tab:boxes --scale smoke --only 'ChaCAL, L=1'"
    )


def test_seeds_are_asked_of_the_rows_that_are_asked_for(out):
    put(out, DENSE, 0)
    put(out, EXACT, 0)
    content = save(out, 3, only="ChaCAL")
    assert states(content) == {
        "dense, L=1": {"0": "done"},
        "ChaCAL, L=1": {"0": "done", "1": "not run", "2": "not run"},
        "window, L=1": {"0": "not run", "1": "not run", "2": "not run"},
    }


def test_a_seed_that_failed_before_is_still_told_and_one_never_run_is_not(out):
    put(out, DENSE, 0)
    record_failure(out / "runs" / run_id(DENSE.with_seed(1)), "no memory")
    assert states(save(out, 3))["dense, L=1"] == {"0": "done", "1": "failed", "2": "not run"}
    assert states(save(out, 1))["dense, L=1"] == {"0": "done", "1": "failed"}


def test_times_are_of_the_run_that_was_timed(out):
    file = timing_file(TABLE.name, out)
    times = {
        "seconds": {DENSE.label: 1.5, EXACT.label: 2.5},
        "of": {DENSE.label: timed_as(DENSE, 0), EXACT.label: timed_as(WINDOW, 0)},
        "seed": 0, "examples": 16, "batch_size": 8, "machine": {"cpu": "a fast one"},
    }  # fmt: skip
    write_json(file, times)
    result = save(out, 1)
    seconds = {c.row: c.seconds for c in result.cells}
    assert seconds == {DENSE.label: 1.5, EXACT.label: None, WINDOW.label: None}
    assert result.timing.processor == "a fast one"


def test_times_that_cannot_be_taken_again_are_kept(out):
    file = timing_file(TABLE.name, out)
    write_json(file, {"seconds": {DENSE.label: 1.5}, "seed": 0, "examples": 16, "batch_size": 8,
                      "machine": {"cpu": "a fast one"}})  # fmt: skip
    before = file.read_text()
    # a clone: one row has weights, the one that was timed has none any more
    weights = out / "runs" / run_id(EXACT.run) / "best.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"")
    time_cells(TABLE.name, TABLE.given_cells, out, seed=0, rounds=1)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a, L=2": 3, "b, L=2": 3, "a, L=5": 0}, ["--scale cpu"]),
        ({}, ["--scale cpu"]),
        ({"a, L=2": 1, "b, L=2": 1}, ["--scale cpu --seeds 1"]),
        (
            {"a, L=2": 3, "b, L=2": 3, "a, L=5": 1},
            ["--scale cpu --seeds 1", "--scale cpu --only L=2"],
        ),
        (
            {"a, L=2": 5, "b, L=2": 1, "c, L=5": 5, "ba, L=5": 1},
            ["--scale cpu --seeds 1", "--scale cpu --seeds 5 --only 'a, L=2'",
             "--scale cpu --seeds 5 --only 'c, L=5'"],
        ),
    ],
)  # fmt: skip
def test_one_call_for_each_number_of_seeds(counts, expected):
    run = DENSE.run
    cells = [
        found(named_cell(row, run), *([done(accuracy=1.0)] * count or [NOT_RUN])).result
        for row, count in counts.items()
    ]
    calls = [f"chacal reproduce tab:boxes {call}" for call in expected]
    assert command("tab:boxes", CPU, 3, cells) == " && ".join(calls)


def test_seeds_that_another_table_made_are_those_of_one_column(out):
    # the same run in a second column has more seeds, from a table that shares it
    both = FakeTable(
        *(
            named_cell("chacal", which.run, which.evaluation, column)
            for column, which in (("noise", EXACT), ("boxes, L=2", WINDOW))
        )
    )
    put(out, EXACT, 0)
    for seed in range(3):
        put(out, WINDOW, seed)
    content = save_table(both, CPU, out, seeds=range(1))
    assert content.command == (
        "chacal reproduce tab:boxes --scale cpu --seeds 1 && "
        "chacal reproduce tab:boxes --scale cpu --only 'chacal, boxes, L=2'"
    )


def test_every_story_of_the_test_set_is_in_a_group(out):
    task = Boxes(boxes=2, objects=10, updates=2)
    model = ModelConfig(operators=("dense",), width=8, heads=2)
    run = RunConfig(task=task, model=model, train=TrainConfig(steps=4))
    test = Evaluation(examples=50, batch_size=8, divisor=4)
    stories = named_cell("stories", run, test)
    put(out, stories, 0)
    told, chains = save_table(FakeTable(stories, DENSE), SMOKE, out, seeds=range(1)).cells
    assert chains.sizes == ()
    for by in ("borders", "crossings", "updates"):
        assert sum(told.group_sizes(by).values()) == 50


def test_data_of_the_users_own_are_part_of_the_command():
    scale = dataclasses.replace(CPU, given=Given(train_file="my text.txt", valid_file="v.txt"))
    assert command("tab:boxes", scale, 3, []) == (
        "chacal reproduce tab:boxes --scale cpu --train-file 'my text.txt' --valid-file v.txt"
    )


def test_a_table_is_told_again_without_running_anything(out):
    put(out, DENSE, 0)
    put(out, EXACT, 1)
    before = sorted((out / "runs").rglob("*"))
    result = save(out, 0)
    assert states(result) == {
        "dense, L=1": {"0": "done"},
        "ChaCAL, L=1": {"1": "done"},
        "window, L=1": {"0": "not run", "1": "not run", "2": "not run"},
    }
    assert sorted((out / "runs").rglob("*")) == before


def test_rows_are_named_by_parts_or_in_whole():
    labels = ["Dense, L=2", "Dense, L=2, longer", "Dense, L=4", "ChaCAL, L=2"]
    assert choose(labels, "") == labels
    assert choose(labels, "L=2") == [labels[0], labels[1], labels[3]]
    assert choose(labels, "Dense, L=2") == [labels[0]]
    assert choose(labels, "ChaCAL|L=4") == labels[2:]
    assert choose(labels, "Window") == []
