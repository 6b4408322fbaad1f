"""What the tables declare: rows, sizes, the paper's figures, and no two runs under one name."""

import pytest

from chacal.experiments.cells import run_id
from chacal.experiments.scales import CPU, PAPER, SCALES
from chacal.experiments.sweep import plan
from chacal.experiments.tables import TABLES
from chacal.operators import OPERATORS, parse_operator
from chacal.report import paper
from chacal.tasks import PaddedBoxes
from chacal.training.config import RunConfig


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_declared_at_every_scale(name, scale):
    table = TABLES[name](SCALES[scale])
    assert table.name == name
    assert table.cells or table.costs
    assert table.note
    labels = [(cell.row, cell.column) for cell in (*table.cells, *table.costs)]
    assert len(labels) == len(set(labels))
    for job in plan(table.cells, range(2)):
        assert RunConfig.from_json(job.run.to_json()) == job.run
    assert set(TABLES) == set(paper.TABLES)


@pytest.mark.parametrize("name", [n for n, t in paper.TABLES.items() if t.rows])
def test_every_figure_of_the_paper_stands_in_its_table(name):
    rows = {}
    for cell in TABLES[name](CPU).cells:
        if cell.paper:
            rows.setdefault(cell.row, dict(cell.paper))
    for row in paper.TABLES[name].rows:
        assert rows[row] == paper.figures(name, row)


def test_names_tell_runs_apart_and_equal_runs_meet():
    names = {}
    for scale in SCALES.values():
        for declare in TABLES.values():
            for job in plan(declare(scale).cells, range(2)):
                assert names.setdefault(job.id, job.run) == job.run
    # the same run in three tables is one run
    chacal = {
        run_id(cell.run)
        for name in ("tab:boxes", "tab:regimes", "fig:sparsity", "tab:boxes-topk")
        for cell in TABLES[name](CPU).cells
        if cell.run.model.operators == ("dense", "chacal")
    }
    assert len(chacal) == 1
    block = next(c.run for c in TABLES["tab:boxes"](CPU).cells if "n//3" in c.row)
    assert block in [cell.run for cell in TABLES["tab:ablation_branches"](CPU).cells]


def test_a_run_is_planned_once_with_all_that_is_measured_of_it():
    table = TABLES["tab:boxes-topk"](CPU)
    jobs = plan(table.cells, range(3))
    assert len(jobs) == 3 * 3  # dense L=2, dense L=5, ChaCAL; three seeds
    assert [job.run.train.seed for job in jobs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(len(job.evaluations) for job in jobs[:3]) == [7, 7, 13]


def test_the_papers_sizes():
    model = TABLES["tab:boxes"](PAPER).cells[0].run.model
    train = TABLES["tab:boxes"](PAPER).cells[0].run.train
    assert (model.width, model.heads, model.width * model.mlp_ratio) == (512, 8, 2048)
    assert (train.batch_size, train.lr, train.steps) == (256, 3e-4, 25_000)
    assert PAPER.stories.updates == 31
    assert (PAPER.chains.length, PAPER.chains.blocks) == (128, 16)
    assert TABLES["tab:ablation_branches"](PAPER).seeds == 5
    assert TABLES["tab:boxes"](PAPER).seeds == 3


def test_every_operator_has_a_row_that_says_whether_it_leaks():
    noise = [c for c in TABLES["fig:leak"](CPU).cells if c.column == "random tokens"]
    assert {parse_operator(c.row).name for c in noise} == set(OPERATORS)


def test_the_two_regimes_tell_the_same_stories():
    cells = TABLES["tab:regimes"](CPU).cells
    tasks = [c.run.task for c in cells if c.row.startswith("Block-ChaCAL n//3")]
    padded = [task for task in tasks if isinstance(task, PaddedBoxes)]
    assert len(tasks) == 2
    assert len(padded) == 1
    assert padded[0].pad // 3 >= CPU.stories.length


def test_only_leaky_poolings_are_declared_not_causal():
    leaky = {c.row for c in TABLES["fig:leak"](CPU).cells if not c.causal}
    assert leaky
    assert all("rows=mean" in row or "rows=last" in row for row in leaky)
