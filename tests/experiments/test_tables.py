"""What the tables declare: rows, sizes, the paper's figures, and no two runs under one name."""

import re
from pathlib import Path

import pytest

from chacal.experiments.cells import run_id
from chacal.experiments.scales import CPU, PAPER, SCALES
from chacal.experiments.sweep import plan
from chacal.experiments.tables import TABLES
from chacal.operators import OPERATORS, parse_operator
from chacal.tasks import PaddedBoxes
from chacal.training.config import RunConfig
from chacal.training.evaluate import override, setting


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_declared_at_every_scale(name, scale):
    table = TABLES[name]
    cells, costs = table.cells(SCALES[scale]), table.costs(SCALES[scale])
    assert table.name == name
    assert cells or costs
    assert table.note(SCALES[scale])
    labels = [cell.label for cell in (*cells, *costs)]
    assert len(labels) == len(set(labels))
    for job in plan(cells, range(2)):
        assert RunConfig.from_json(job.run.to_json()) == job.run


def test_the_tables_stand_in_the_order_of_the_report():
    places = [table.place for table in TABLES.values()]
    assert places == sorted(set(places))
    assert next(iter(TABLES)) == "tab:boxes"


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.paper])
def test_every_figure_of_the_paper_stands_in_its_table(name):
    table = TABLES[name]
    rows = {}
    for cell in table.cells(CPU):
        if cell.paper:
            rows.setdefault(cell.row, dict(cell.paper))
    for row in table.paper:
        assert rows[row] == table.figures_of(row)


@pytest.mark.parametrize(
    ("table", "row", "expected"),
    [
        ("tab:boxes", "Dense, L=2", {"accuracy": 97.20, "exact_match": 58.8, "seconds": 1.84}),
        ("tab:boxes", "Local, L=5", {"accuracy": 96.97, "exact_match": 71.67}),
        ("tab:boxes", "ChaCAL, L=2", {"accuracy": 99.99, "exact_match": 100.0, "seconds": 2.5}),
        ("tab:boxes", "Block-ChaCAL n//6, L=2",
         {"accuracy": 99.85, "exact_match": 94.71, "seconds": 1.77}),
        ("tab:boxes", "Block-ChaCAL n//8, L=2",
         {"accuracy": 99.90, "exact_match": 96.60, "seconds": 1.95}),
        # another reading of the same row; its time is not the paper's
        ("tab:boxes", "Block-ChaCAL n//6, mean values, L=2",
         {"accuracy": 99.85, "exact_match": 94.71}),
        ("tab:boxes", "Block-ChaCAL n//3, before the dense layer, L=2", {}),
        ("tab:ablation_branches", "Residual branch only", {"accuracy": 88.0, "exact_match": 6.52}),
        ("tab:op-topk", "T_pre, k=1", {"accuracy": 35.0}),
        ("tab:op-topk", "T_post, k=2, pruned inside the inverse", {"accuracy": 88.0}),
        ("tab:boxes-topk", "k=2", {"accuracy": 99.01, "exact_match": 75.12}),
        ("tab:heads-props", "h=4, p=8", {"accuracy": 61.3}),
        ("tab:boxes", "Window resolvent, L=2", {}),
        ("tab:lm_all", "Pretrained, as it is", {"perplexity": 23.78}),
        ("tab:lm_all", "Fine-tuned, all layers: Block-ChaCAL n//3", {"perplexity": 22.08}),
        ("tab:lm_all", "From scratch: Block-ChaCAL n//4", {"perplexity": 15.18}),
        ("tab:lm_length_sweep", "Block-ChaCAL n//3, trained at N/4, tested at N",
         {"perplexity": 51.42}),
        ("tab:copilot_results", "ChaCAL", {}),
        ("tab:scrolls", "GovReport: FT (modified)",
         {"rouge1": 38.46, "rouge2": 11.52, "rougeL": 20.12, "rouge": 20.43}),
        ("tab:scrolls", "NarrativeQA: zero-shot", {"f1": 2.39}),
        ("tab:scrolls", "ContractNLI: FT (standard)", {"em": 59.38}),
    ],
)  # fmt: skip
def test_figures_as_printed(table, row, expected):
    cells = [cell for cell in TABLES[table].cells(CPU) if cell.row.label == row]
    assert dict(cells[0].paper) == expected


def test_rows_of_the_paper_are_counted():
    counts = {name: len(table.paper) for name, table in TABLES.items() if table.paper}
    assert counts == {
        "tab:boxes": 14,
        "tab:ablation_branches": 3,
        "tab:op-topk": 5,
        "tab:boxes-topk": 3,
        "tab:heads-props": 5,
        "tab:lm_all": 11,
        "tab:lm_length_sweep": 6,
        "tab:scrolls": 9,
    }


def test_every_table_has_a_heading_in_the_findings():
    text = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    # as GitHub makes links of headings
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {table.anchor for table in TABLES.values()} <= anchors


def test_names_tell_runs_apart_and_equal_runs_meet():
    names = {}
    for scale in SCALES.values():
        for table in TABLES.values():
            for job in plan(table.cells(scale), range(2)):
                assert names.setdefault(job.id, job.run) == job.run
    # the same run in three tables is one run
    chacal = {
        run_id(cell.run)
        for name in ("tab:boxes", "tab:regimes", "fig:sparsity", "tab:boxes-topk")
        for cell in TABLES[name].cells(CPU)
        if cell.run.model.operators == ("dense", "chacal")
    }
    assert len(chacal) == 1
    block = next(c.run for c in TABLES["tab:boxes"].cells(CPU) if c.row.divisor == 3)
    assert block in [cell.run for cell in TABLES["tab:ablation_branches"].cells(CPU)]


def test_a_run_is_planned_once_with_all_that_is_measured_of_it():
    jobs = plan(TABLES["tab:boxes-topk"].cells(CPU), range(3))
    assert len(jobs) == 3 * 3  # dense L=2, dense L=5, ChaCAL; three seeds
    assert [job.run.train.seed for job in jobs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(len(job.evaluations) for job in jobs[:3]) == [7, 7, 13]


def test_the_papers_sizes():
    model = TABLES["tab:boxes"].cells(PAPER)[0].run.model
    train = TABLES["tab:boxes"].cells(PAPER)[0].run.train
    assert (model.width, model.heads, model.width * model.mlp_ratio) == (512, 8, 2048)
    assert (train.batch_size, train.lr, train.steps) == (256, 3e-4, 25_000)
    assert PAPER.stories.updates == 31
    assert (PAPER.chains.length, PAPER.chains.blocks) == (128, 16)
    assert TABLES["tab:ablation_branches"].seeds(PAPER) == 5
    assert TABLES["tab:boxes"].seeds(PAPER) == 3


def test_every_operator_has_a_row_that_says_whether_it_leaks():
    noise = [c for c in TABLES["fig:leak"].cells(CPU) if c.column == "random tokens"]
    assert {parse_operator(c.row.operator).name for c in noise} == set(OPERATORS)


def test_length_is_learned_short_and_asked_long_in_the_same_words():
    cells = TABLES["fig:length"].cells(CPU)
    for cell in cells:
        task = override(cell.run.task, dict(map(setting, cell.evaluation.settings)))
        assert (task.n, task.hops) == (cell.row.n, 32)
        assert (task.vocab_size, task.statements) == (cell.run.task.vocab_size, 100)
        assert cell.run.task.n <= 1024
        assert cell.operators[0] == "local@2"
        assert (cell.run.model.positions == "rotary") == bool(cell.row.rotary)
    longest = {cell.row.name for cell in cells if cell.row.n == 65536}
    assert {"ChaCAL", "Routed resolvent", "Window resolvent"} <= longest
    assert "Dense" not in longest
    assert {parse_operator(cell.operators[-1]).name for cell in cells} == {
        "dense", "chacal", "routed", "window", "pooled", "pattern", "delta"
    }  # fmt: skip


def test_updates_are_learned_few_and_asked_many():
    cells = TABLES["fig:updates"].cells(CPU)
    for cell in cells:
        task = override(cell.run.task, dict(map(setting, cell.evaluation.settings)))
        assert (task.min_updates, task.updates) == (cell.row.updates, cell.row.updates)
        assert cell.run.task.updates == 60
        assert cell.operators[0] == "local@8"
    positions = {cell.run.model.positions for cell in cells if cell.row.name == "ChaCAL"}
    assert positions == {"rotary", "first"}
    assert max(cell.row.updates for cell in cells) == 2000
    assert len({cell.label for cell in cells}) == len(cells)


def test_the_two_regimes_tell_the_same_stories():
    cells = TABLES["tab:regimes"].cells(CPU)
    tasks = [c.run.task for c in cells if c.row.divisor == 3]
    padded = [task for task in tasks if isinstance(task, PaddedBoxes)]
    assert len(tasks) == 2
    assert len(padded) == 1
    assert padded[0].pad // 3 >= CPU.stories.length


def test_only_leaky_poolings_are_declared_not_causal():
    leaky = {c.row.operator for c in TABLES["fig:leak"].cells(CPU) if not c.causal}
    assert leaky
    assert all("rows=mean" in row or "rows=last" in row for row in leaky)
