"""What cannot share texts among processes is refused before anything is made, in one line."""

import dataclasses

import pytest

from chacal.tasks import TASKS
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.context import check_batch, check_context
from chacal.training.distributed import Group, start
from chacal.training.restore import own_random_state
from chacal.training.runs import RunFolder


def config(operators=("chacal",), ranks=2, **model):
    return RunConfig(
        task=TASKS["chains"](blocks=4, block_size=4),
        model=ModelConfig(operators=operators, positions="factorised", **model),
        train=TrainConfig(context_parallel=ranks),
    )


@pytest.fixture
def of_four(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")


def test_operators_without_a_sharded_form_are_named(of_four):
    with pytest.raises(ValueError, match=r"^pooled cannot share a sequence among ranks; expected"):
        check_context(config(("chacal", "pooled")))
    check_context(config(("chacal", "window@4", "routed", "dense", "local@4")))


def test_more_ranks_than_tokens(of_four):
    with pytest.raises(ValueError, match="context_parallel is 17; expected at most 16"):
        check_context(config(ranks=17))


def test_without_torchrun():
    with pytest.raises(ValueError, match="start it with torchrun --nproc-per-node 2 -m chacal"):
        check_context(config())
    check_context(config(ranks=1))


def test_ranks_that_do_not_divide(of_four):
    with pytest.raises(ValueError, match="is 3; expected a divisor of the 4 processes"), \
            start("cpu", False, 3):  # fmt: skip
        pass


def test_ranks_in_a_row_share_rows():
    groups = [Group(rank, 6, None, False, 3) for rank in range(6)]
    assert [g.data_rank for g in groups] == [0, 0, 0, 1, 1, 1]
    assert [g.counts for g in groups] == [True, False, False] * 2
    assert {g.data_world for g in groups} == {2}
    # of the final test, which the ranks of the first group take alone
    alone = dataclasses.replace(groups[2], rank=0, world=1)
    assert (alone.data_rank, alone.data_world, alone.counts) == (0, 1, True)
    check_batch(TrainConfig(batch_size=8, accumulate=4), groups[0])
    with pytest.raises(ValueError, match="a multiple of 2 groups of 3 processes times 1 parts"):
        check_batch(TrainConfig(batch_size=7), groups[0])


def test_the_number_of_ranks_is_no_other_run(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.begin(config(ranks=1), force=False, resume=False)
    run.ensure_same(config(ranks=4))
    with pytest.raises(ValueError, match="holds another run"):
        run.ensure_same(config(("dense",), ranks=4))


def test_another_number_goes_on_only_where_nothing_is_drawn(tmp_path):
    tensors = {"random.0": 7, "random.1": 8}
    assert own_random_state(tensors, config(), Group(1, 2, None), tmp_path) == 8
    assert own_random_state(tensors, config(), Group(0, 1, None), tmp_path) is None
    with pytest.raises(ValueError, match=r"was run by 2 processes, .*dropout.* not 1"):
        own_random_state(tensors, config(dropout=0.1), Group(0, 1, None), tmp_path)
