"""The estimate of a sweep: from what was done, and not from what failed."""

from chacal.experiments.cells import Evaluation
from chacal.experiments.job import Job
from chacal.experiments.progress import Progress
from chacal.tasks import Chains
from chacal.training.config import ModelConfig, RunConfig, TrainConfig


def job(seed):
    model = ModelConfig(operators=("dense",), width=8, heads=2, positions="none")
    run = RunConfig(task=Chains(), model=model, train=TrainConfig(steps=10, seed=seed))
    return Job(run=run, evaluations=(Evaluation(examples=1),))


def test_a_run_that_failed_at_once_says_nothing_of_the_pace(tmp_path):
    first, second, third = jobs = [job(0), job(1), job(2)]
    show = Progress("tab:boxes", 3, 0, tmp_path, jobs, quiet=True)
    show.started(first.id)
    show.ended(first.id, "no memory")
    assert show.left() is None
    show.started(second.id)
    show.ended(second.id, "")
    left = show.left()
    assert left is not None
    assert left > 0
    show.started(third.id)
    show.ended(third.id, "")
    assert show.left() is None, "nothing is left"


def test_curves_take_as_long_as_those_before_them(tmp_path):
    show = Progress("fig:cost", 3, 0, tmp_path, [], ["a", "b", "c"], quiet=True)
    show.started("a")
    assert show.left() is None
    show.ended("a", "")
    two = show.left()
    assert two is not None
    assert two > 0
    show.started("b")
    show.ended("b", "no memory")
    one = show.left()
    assert one is not None
    assert 0 < one < two + 1
