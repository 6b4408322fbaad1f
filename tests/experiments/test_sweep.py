"""A sweep: every cell once, whatever stopped it; failures told; scales never mixed."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from tables import FakeTable, named_cell

from chacal._files import read_json
from chacal.experiments.cells import Cost, Evaluation, run_id
from chacal.experiments.engines import Local
from chacal.experiments.files import table_file
from chacal.experiments.gather import choose
from chacal.experiments.job import failure_file, perform
from chacal.experiments.reproduce import reproduce
from chacal.experiments.scales import SMOKE
from chacal.experiments.sweep import claim, plan, run_table
from chacal.report.files import read_table
from chacal.tasks import Boxes, Chains
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.lock import LOCK, alone

TEST = Evaluation(examples=16, batch_size=8)


def config(operator, task=None, **train):
    return RunConfig(
        task=task or Chains(blocks=3, block_size=4),
        model=ModelConfig(operators=(operator,), width=8, heads=2, positions="none"),
        train=TrainConfig(
            **{"steps": 4, "batch_size": 4, "eval_every": 2, "eval_examples": 8,
               "test_examples": 8, "checkpoint_every": 1, "log_every": 1, **train}
        ),
    )  # fmt: skip


def cell(row, operator, evaluation=TEST, **changes):
    return named_cell(row, config(operator, **changes), evaluation)


def sweep(which, out, rounds=1, jobs=1, **options):
    scale = dataclasses.replace(SMOKE, rounds=rounds)
    options = {"seeds": (0, 1), "quiet": True, "engine": Local(jobs), **options}
    return run_table(which, scale, out, **options)


def metrics(result):
    return {
        (cell.row, seed): run.metrics for cell in result.cells for seed, run in cell.runs.items()
    }


def states(result):
    return {cell.row: cell.runs["0"].state for cell in result.cells}


TWO = FakeTable(cell("a", "chacal"), cell("b", "dense"))


def test_only_some_rows(tmp_path):
    three = FakeTable(cell("dense", "dense"), cell("ChaCAL", "chacal"), timed=True)
    content = sweep(three, tmp_path / "s", seeds=(0,), only="ChaCAL", rounds=1)
    assert states(content) == {"dense": "not run", "ChaCAL": "done"}
    assert content.timing is None, "times wait for the whole table"
    assert not content.has_failures
    timed = sweep(three, tmp_path / "s", seeds=(0,), only="ChaCAL", times=True, rounds=1)
    assert timed.timing is not None, "or for being asked for"
    assert [cell.row for cell in timed.cells if cell.seconds is not None] == ["ChaCAL"]
    with pytest.raises(ValueError, match=r"only is 'chacal'; expected a part of .*: dense; ChaCAL"):
        sweep(three, tmp_path / "s", only="chacal")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "smoke"
    return out, sweep(TWO, out)


def test_a_table_has_every_cell_and_seed(whole):
    out, content = whole
    assert set(metrics(content)) == {("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")}
    assert not content.has_failures
    assert all(m["steps"] == 4 and 0 <= m["accuracy"] <= 1 for m in metrics(content).values())
    assert read_table(table_file("tab:boxes", out)) == content
    a0, a1 = metrics(content)["a", "0"], metrics(content)["a", "1"]
    assert a0 != a1


def test_finished_cells_are_not_run_again(whole):
    out, content = whole
    files = {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*") if p.is_file()}
    assert sweep(TWO, out) == content
    assert files == {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*") if p.is_file()}


def test_side_by_side_gives_the_same_figures(whole, tmp_path):
    content = sweep(TWO, tmp_path / "smoke", seeds=(0,), jobs=2)
    assert metrics(content) == {k: v for k, v in metrics(whole[1]).items() if k[1] == "0"}


def test_a_seed_and_a_row_more_leave_the_others_alone(whole, tmp_path):
    out = tmp_path / "smoke"
    first = sweep(FakeTable(cell("a", "chacal")), out, seeds=(0,))
    run = out / "runs" / run_id(cell("a", "chacal").run)
    before = (run / "result.json").stat().st_mtime_ns
    content = sweep(TWO, out)
    assert (run / "result.json").stat().st_mtime_ns == before
    assert metrics(content)["a", "0"] == metrics(first)["a", "0"]
    assert metrics(content) == metrics(whole[1])


def test_another_evaluation_of_a_run_does_not_train_it_again(whole, tmp_path):
    out = tmp_path / "smoke"
    sweep(FakeTable(cell("a", "chacal")), out, seeds=(0,))
    run = out / "runs" / run_id(cell("a", "chacal").run)
    before = (run / "best.safetensors").stat().st_mtime_ns
    pruned = Evaluation(examples=16, batch_size=8, operators=("chacal,top_k=1",))
    content = sweep(FakeTable(cell("a", "chacal"), cell("b", "chacal", pruned)), out, seeds=(0,))
    assert (run / "best.safetensors").stat().st_mtime_ns == before
    assert content.cells[1].operators == ("chacal,top_k=1",)
    assert metrics(content)["a", "0"]["loss"] != metrics(content)["b", "0"]["loss"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_is_told_and_the_others_go_on(tmp_path, jobs):
    bad = cell("bad", "chacal", device="cuda")
    content = sweep(FakeTable(bad, cell("good", "dense")), tmp_path / "s", seeds=(0,), jobs=jobs)
    assert content.has_failures
    assert states(content) == {"bad": "failed", "good": "done"}
    assert "device is 'cuda' and torch sees none" in content.cells[0].runs["0"].why


def test_a_job_that_is_killed_is_told_and_the_others_go_on(tmp_path):
    # as the kernel kills one for its memory
    endless = {"steps": 10**7, "eval_every": 10**7}
    cells = [cell("a", "chacal", **endless), cell("b", "dense"), cell("c", "local")]
    lock = tmp_path / "s" / "runs" / run_id(cells[0].run) / LOCK

    def kill():
        deadline = time.monotonic() + 60
        while not (lock.exists() and lock.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(read_json(lock)["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    content = sweep(FakeTable(*cells), tmp_path / "s", seeds=(0,), jobs=2)
    killer.join()
    assert states(content) == {"a": "failed", "b": "done", "c": "done"}
    assert content.cells[0].runs["0"].why == "its process ended with killed by signal 9"


def test_a_failed_cell_is_tried_again(tmp_path):
    # weights that are none: the evaluation fails, and once they are gone the run is made again
    out = tmp_path / "s"
    one = FakeTable(cell("a", "chacal"))
    first = sweep(one, out, seeds=(0,))
    run = out / "runs" / run_id(cell("a", "chacal").run)
    (run / f"{TEST.id}.json").unlink()
    (run / "best.safetensors").write_bytes(b"none")
    content = sweep(one, out, seeds=(0,))
    assert "best.safetensors" in content.cells[0].runs["0"].why
    assert failure_file(run).exists()
    (run / "best.safetensors").unlink()
    assert metrics(sweep(one, out, seeds=(0,))) == metrics(first)
    assert not failure_file(run).exists()


def test_a_clone_without_weights_has_its_figures_and_can_make_more(tmp_path):
    out = tmp_path / "s"
    one = FakeTable(cell("a", "chacal"))
    first = sweep(one, out, seeds=(0,))
    assert len(first.machines) == 1
    for file in (out / "runs").rglob("*.safetensors"):
        file.unlink()
    other = next((out / "runs").rglob("environment.json"))
    other.write_text(other.read_text().replace('"cpu": "', '"cpu": "another '))
    again = sweep(one, out, seeds=(0,))
    assert again.machines == ("another " + first.machines[0],)
    assert again.cells == first.cells
    assert not list((out / "runs").rglob("*.safetensors"))
    more = Evaluation(examples=8, batch_size=8)
    content = sweep(FakeTable(cell("a", "chacal"), cell("b", "chacal", more)), out, seeds=(0,))
    assert metrics(content)["a", "0"] == metrics(first)["a", "0"]
    assert not content.has_failures


PROGRAM = """
import sys
sys.path[:0] = [{here!r}, {above!r}]
from pathlib import Path
from test_sweep import LONG, sweep
from chacal.training.runs import Interrupted
try:
    sweep(LONG, Path({out!r}), seeds=(0,), jobs={jobs})
except Interrupted as stopped:
    print(stopped, file=sys.stderr)
    sys.exit(130)
"""

SLOW = {"steps": 120, "checkpoint_every": 10, "eval_every": 40}
LONG = FakeTable(cell("a", "chacal", **SLOW), cell("b", "dense", **SLOW))


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory):
    return sweep(LONG, tmp_path_factory.mktemp("unstopped") / "smoke", seeds=(0,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "jobs"), [(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGKILL, 1)]
)
def test_a_stopped_sweep_goes_on_from_where_it_was(unstopped, tmp_path, stop, jobs):
    out = tmp_path / "smoke"
    here = os.path.dirname(__file__)
    code = PROGRAM.format(here=here, above=os.path.dirname(here), out=str(out), jobs=jobs)
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    first = out / "runs" / run_id(LONG.given_cells[0].run) / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if first.exists() and '"step": 20,' in first.read_text():
            process.send_signal(stop)
            break
        time.sleep(0.002)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == (-9 if stop == signal.SIGKILL else 130), errors
    if stop != signal.SIGKILL:
        assert "the same command goes on from there" in errors
    content = read_table(table_file("tab:boxes", out))
    assert content.cells[0].runs["0"].state == "not run"
    reached = json.loads(first.read_text().splitlines()[-1])["step"]
    assert 20 <= reached < 120
    on = sweep(LONG, out, seeds=(0,))
    assert metrics(on) == metrics(unstopped)
    steps = [json.loads(line)["step"] for line in first.read_text().splitlines()]
    assert steps == sorted(steps)


def test_scales_are_never_mixed(tmp_path):
    claim(tmp_path / "r", "smoke")
    claim(tmp_path / "r", "smoke")
    with pytest.raises(ValueError, match=r"holds results of the scale 'smoke'.*'cpu'.*--out"):
        claim(tmp_path / "r", "cpu")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds other files"):
        sweep(TWO, tmp_path / "thesis")
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["chapter1.tex"]


def test_a_table_is_written_anew_and_nothing_is_run(tmp_path):
    out = tmp_path / "s"

    def anew(**options):
        return reproduce("tab:ablation_branches", scale="smoke", out=out, run=False, **options)

    with pytest.raises(ValueError, match="holds no results; expected a folder of chacal reproduce"):
        anew()
    assert not out.exists()
    claim(out, "smoke")
    result = anew()
    assert not result.was_run
    assert read_table(table_file("tab:ablation_branches", out)) == result
    assert not (out / "runs").exists()
    with pytest.raises(ValueError, match="only is 'telepathy'; expected a part of"):
        anew(only="telepathy")


def test_a_whole_label_means_its_own_row_alone():
    labels = ["Local", "Local + Residual", "Local + Residual, mean values"]
    assert choose(labels, "Local + Residual") == ["Local + Residual"]
    assert choose(labels, "Residual") == labels[1:]
    assert choose(labels, "") == labels
    assert choose(labels, "residual") == []


def test_bad_numbers_of_jobs_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="jobs is 0"):
        sweep(TWO, tmp_path / "s", jobs=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="under torchrun"):
        sweep(TWO, tmp_path / "s", jobs=2)


def test_stories_are_counted_by_borders_and_timed_in_turns(tmp_path, capsys):
    task = Boxes(boxes=2, objects=10, updates=2)
    test = Evaluation(examples=24, batch_size=8, divisor=4)
    cells = [named_cell(operator, config(operator, task), test) for operator in ("dense", "chacal")]
    content = sweep(
        FakeTable(*cells, timed=True), tmp_path / "s", seeds=(0,), rounds=2, quiet=False
    )
    lines = capsys.readouterr().err
    assert "timing 2 evaluations, in turns, 2 times after one to warm up" in lines
    assert "timed 1 of 2 times, about 0:0" in lines
    for told in content.cells:
        for by in ("borders", "crossings", "updates"):
            # the groups that the table counts are those that were measured
            assert set(told.broken_down("exact_match", by)) == set(told.group_sizes(by))
    assert all(c.seconds > 0 for c in content.cells)
    assert content.timing.examples == 24
    timing = tmp_path / "s" / "tables" / "tab-boxes.timing.json"
    before = timing.read_text()
    assert len(read_json(timing)["rounds"]["dense"]) == 2
    sweep(FakeTable(*cells, timed=True), tmp_path / "s", seeds=(0,), rounds=2, quiet=False)
    assert timing.read_text() == before
    assert "timing" not in capsys.readouterr().err, "what is timed is not timed again"
    # a row more is timed together with the others, not alone
    more = named_cell("local", config("local", task), test)
    sweep(FakeTable(*cells, more, timed=True), tmp_path / "s", seeds=(0,), rounds=2)
    assert set(read_json(timing)["seconds"]) == {"dense", "chacal", "local"}


def test_a_cost_curve_is_measured_once(tmp_path):
    curve = Cost(row="window", column="n", operators="window@8", lengths=(16, 32), heads=1,
                 width=4, rounds=1, memory_from=10**9)  # fmt: skip
    bad = dataclasses.replace(curve, row="bad", operators="telepathy")
    which = FakeTable(costs=(curve, bad), name="fig:cost")
    content = sweep(which, tmp_path / "s", seeds=(0,))
    good, failed = content.costs
    assert [p.n for p in good.points] == [16, 32]
    assert failed.state == "failed"
    assert "telepathy" in failed.why
    again = sweep(which, tmp_path / "s", seeds=(0,))
    assert again.costs[0] == good


def test_a_job_waits_for_another_that_works_on_its_run(tmp_path):
    job = plan([cell("a", "dense")], (0,))[0]
    folder = tmp_path / "runs" / job.id
    with alone(folder, wait=False):
        waiting = threading.Thread(target=perform, args=(job, folder))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert not (folder / "config.json").exists()
    waiting.join(60)
    assert (folder / "result.json").exists()
