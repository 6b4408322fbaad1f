"""tab:kim_schuster: the splits of their paper, from their folders or made here."""

import dataclasses
import importlib.util
import json

import pytest
from tables import done, found

from chacal.experiments.reproduce import reproduce
from chacal.experiments.scales import CPU, PAPER, SMOKE, Given
from chacal.experiments.tables.kim_schuster import (
    DENSE,
    FROM_ZERO,
    SOME_FROM_HALF,
    SOME_FROM_ZERO,
    TABLE,
    Row,
)
from chacal.report.drawings import LinePlot

STORY = "Box 0 contains the {0}, Box 1 is empty. Move the {0} from Box 0 to Box 1. Box 1"


def write(folder, things, train="train-t5.jsonl"):
    folder.mkdir(parents=True)
    for name in (train, "dev-t5.jsonl", "test-t5.jsonl"):
        rows = [
            {"sentence_masked": f"{STORY.format(thing)} <extra_id_0> .", "numops": 1 + i % 2,
             "masked_content": f"<extra_id_0> contains the {thing}"}
            for i, thing in enumerate(things)
        ]  # fmt: skip
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def data(tmp_path):
    things = ["key", "lamp", "book", "pot"]
    write(tmp_path / "data" / "boxes_nso_exp2_max3", things)
    alternative = tmp_path / "data" / "boxes_nso_exp2_max3_alt_forms_train"
    write(alternative, things, "train-disjoint-vocab-t5.jsonl")
    return tmp_path / "data"


def declare(scale=CPU, **given):
    return TABLE.cells(dataclasses.replace(scale, given=Given(**given)))


def test_generated_stories_are_divided_as_theirs():
    tasks = {cell.row.split: cell.run.task for cell in declare(pretrained="some/model")}
    assert list(tasks) == ["Base", "NumOps", "AltForms", "MoveContents"]
    assert tasks["Base"].train_form is tasks["Base"].train_operations is None
    assert tasks["NumOps"].train_operations == 2
    assert (tasks["AltForms"].form, tasks["AltForms"].train_form) == ("base", "alternative")
    assert tasks["MoveContents"].form == "contents"
    assert {task.tokenizer for task in tasks.values()} == {"some/model"}
    assert "AmbiRef" in TABLE.note(CPU)
    assert "NOT theirs" in TABLE.note(CPU)


def test_layers_that_cannot_be_patched_are_left_out(tmp_path):
    pytest.importorskip("transformers")
    from transformers import Gemma3TextConfig

    Gemma3TextConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=6, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, architectures=["Gemma3ForCausalLM"],
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    ).save_pretrained(tmp_path)  # fmt: skip
    runs = {c.row.operator: c.run.model for c in declare(pretrained=str(tmp_path))}
    assert runs[FROM_ZERO].layers == "2+5"


def test_rows_differ_in_the_operator_alone():
    for split in ("Base", "NumOps"):
        runs = {c.row.operator: c.run for c in declare() if c.row.split == split}
        assert list(runs) == [DENSE, FROM_ZERO, SOME_FROM_ZERO, SOME_FROM_HALF]
        assert len({(run.task, run.train) for run in runs.values()}) == 1
        assert runs[FROM_ZERO].model.layers == "all"
        assert runs[SOME_FROM_HALF].model.layers == runs[SOME_FROM_ZERO].model.layers == "middle"
        assert [run.model.operator.partition(",")[0] for run in runs.values()] == [
            "dense", "chacal", "chacal", "chacal",
        ]  # fmt: skip


def test_their_training_at_the_papers_scale():
    train = declare(PAPER)[0].run.train
    assert train.steps * train.batch_size >= 90_090 > (train.steps - 1) * train.batch_size
    assert (train.batch_size, train.lr) == (8, 1e-4)


def test_files_are_read_where_they_are_given(data, tmp_path):
    cells = declare(data=str(data))
    assert {cell.row.split for cell in cells} == {"Base", "AltForms"}
    assert {cell.run.task.train_name for cell in cells if cell.row.split == "AltForms"} == {
        "train-disjoint-vocab-t5.jsonl"
    }
    note = TABLE.note(dataclasses.replace(CPU, given=Given(data=str(data))))
    assert "not there, not run: NumOps, MoveContents, AmbiRef" in note
    assert "their files" in note
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds none of boxes_nso_exp2_max3, "):
        declare(data=str(tmp_path / "empty"))


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
def test_it_runs_on_files_and_samples_them(data, tmp_path):
    result = reproduce(
        TABLE.name, scale="smoke", out=tmp_path / "out", only="Base: dense", quiet=True,
        given=Given(data=str(data)),
    )  # fmt: skip
    assert not result.has_failures
    (cell,) = (cell for cell in result.cells if cell.label == "Base: dense")
    assert set(cell.broken_down("exact_match", "numops")) == {1, 2}
    assert "exact_match" in cell.figures()


def test_findings_are_computed():
    cells = {cell.row: cell for cell in declare(SMOKE)}
    base = Row(split="Base", operator=DENSE)
    ours = Row(split="Base", operator=SOME_FROM_HALF)
    half, most = {"exact_match/numops=02": 0.5}, {"exact_match/numops=02": 0.75}
    figures = [
        found(cells[base], done(exact_match=0.5, **half)),
        found(cells[ours], done(exact_match=0.625, **most)),
    ]
    assert TABLE.findings(figures) == [
        "Base: dense 50.0 % exact; in points against it: γ learned from 0.5, some layers +12.5."
    ]
    (plot,) = TABLE.line_plots(figures)
    assert isinstance(plot, LinePlot)
    assert [line.y for line in plot.panels[0].lines] == [(50.0,), (75.0,)]
    assert TABLE.findings([]) == TABLE.line_plots([]) == []
