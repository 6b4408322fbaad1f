"""Tasks under former names: read strictly, and their runs named as they were."""

import pytest

from chacal.tasks import Boxes, Language
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.stored_tasks import former_form, read_task, write_task

LM = {"train": "help", "valid": "help", "tokenizer": "bpe:300", "window": 32, "eval_tokens": 9}


def test_former_names_are_read_as_the_task_of_today(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("a text of some length\n" * 9)
    one = str(file)
    text = {"train_file": one, "valid_file": one, "test_file": None, "tokenizer": None}
    assert read_task({"name": "text", **text, "window": 8}) == Language(
        train=one, valid=one, test=None, window=8
    )
    assert read_task({"name": "text", **text, "test_file": one, "window": 8}).test == one
    assert read_task({"name": "manual", "window": 64}) == Language(test="help", window=64)
    assert read_task({"name": "lm", **LM}) == Language(
        tokenizer="bpe:300", window=32, eval_tokens=9, test="valid"
    )


def test_former_names_are_read_as_strictly():
    with pytest.raises(ValueError, match=r"task\.window is missing"):
        read_task({"name": "manual"})
    with pytest.raises(ValueError, match=r"task\.tokenizer is not a field"):
        read_task({"name": "manual", "window": 64, "tokenizer": None})
    with pytest.raises(ValueError, match=r"task\.eval_tokens is 'many'; expected int"):
        read_task({"name": "lm", **LM, "eval_tokens": "many"})
    with pytest.raises(ValueError, match=r"task\.name is 'tex'; expected one of .*language"):
        read_task({"name": "tex"})
    with pytest.raises(ValueError, match="task is 3; expected an object"):
        read_task(3)


@pytest.mark.parametrize("old", [{"name": "manual", "window": 64}, {"name": "lm", **LM}])
def test_a_stored_run_keeps_its_identity_and_is_written_as_it_is_today(old):
    task = read_task(old)
    assert former_form(task) == old
    assert write_task(task)["name"] == "language"
    assert read_task(write_task(task)) == task
    config = RunConfig(task=task, model=ModelConfig(), train=TrainConfig())
    assert config.identity() == {**config.to_json(), "task": old}
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    "task", [Boxes(), Language(test=None), Language(test="help", window=8, eval_tokens=3)]
)
def test_a_task_that_had_no_former_name_is_called_what_it_is(task):
    assert former_form(task) == write_task(task)
