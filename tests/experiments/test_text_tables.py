"""The tables on text and code: what they declare, what they refuse, and that one runs."""

import dataclasses
import importlib.util
import json

import numpy as np
import pytest

from chacal._plain import from_plain, to_plain
from chacal.experiments.cells import Evaluation
from chacal.experiments.gather import _group_sizes
from chacal.experiments.job import TEST_SEED
from chacal.experiments.reproduce import reproduce
from chacal.experiments.scales import CPU, PAPER, SMOKE, Given
from chacal.experiments.sweep import chosen
from chacal.experiments.tables import TABLES
from chacal.operators import parse_operator
from chacal.tasks import Labelled, Language, Variables

ON_TEXT = [name for name, table in TABLES.items() if table.given]


def sized(scale=CPU, **given):
    return dataclasses.replace(scale, given=Given(**given))


def declare(name, scale=CPU, **given):
    return TABLES[name].cells(sized(scale, **given))


def test_the_papers_sizes():
    scratch = declare("tab:lm_all", PAPER)[0].run
    assert (scratch.model.width, scratch.model.heads, scratch.model.depth) == (768, 12, 12)
    assert (scratch.task.window, scratch.train.batch_size, scratch.train.lr) == (1024, 256, 3e-4)
    assert "wikitext-103" in scratch.task.train
    tuned = next(
        c.run for c in declare("tab:lm_all", PAPER) if c.row.setting == "Fine-tuned, one layer"
    )
    assert tuned.model.pretrained == tuned.task.tokenizer == "openai-community/gpt2"
    assert "openwebtext" in tuned.task.train
    assert tuned.task.train != tuned.task.valid
    code = declare("tab:copilot_results", PAPER)[1].run
    assert (code.model.layers, code.model.operator) == ("paper:code", "chacal")
    for cell in declare("tab:scrolls", PAPER):
        train, model = cell.run.train, cell.run.model
        assert (model.pretrained, model.layers) == ("facebook/bart-base", "paper:scrolls")
        assert (train.batch_size, train.accumulate, train.lr, train.eval_every) == (8, 8, 5e-5, 500)
        assert (cell.run.task.input_tokens, cell.run.task.output_tokens) == (1024, 256)
    steps = {
        c.label: (c.run.train.steps, c.run.train.warmup) for c in declare("tab:scrolls", PAPER)
    }
    assert steps["ContractNLI: FT (standard)"] == (899, 90)
    assert steps["ContractNLI: zero-shot"] == (0, 0)


def test_every_row_that_leaks_says_so_and_no_other():
    for name in ON_TEXT:
        for cell in declare(name):
            assert cell.causal != ("(leaks)" in cell.label), cell.label


def test_only_one_layer_of_the_programs_reader_is_replaced():
    for cell in declare("tab:copilot_results"):
        operators = cell.run.model.operators
        assert [op for i, op in enumerate(operators) if i != 1] == ["dense"] * 3
        assert not cell.paper


def test_only_a_tuned_model_means_all_that_is_measured_of_it():
    """Its weights are thrown away after a job: another evaluation would train it again."""
    whole = ["whole model, dense", "whole model, dense, longer texts"]
    table, sizes = TABLES["tab:hops"], sized(pretrained="some/model")
    for only in whole:
        assert [c.label for c in chosen(table, sizes, only)[0]] == whole
    assert [c.label for c in chosen(table, sized(SMOKE), whole[0])[0]] == whole[:1]


def test_hops_compare_models_that_differ_in_their_layers_alone():
    every = declare("tab:hops", pretrained="some/model")
    cells = [c for c in every if not (c.row.rate or c.row.harder)]
    assert {(c.run.task, c.run.train) for c in cells} == {(cells[0].run.task, cells[0].run.train)}
    for others in ([c for c in every if c.row.harder], [c for c in every if c.row.rate == 1e-4]):
        assert len(others) == 3
        assert len({(c.run.task, c.run.train) for c in others}) == 1
        assert len({c.run.model for c in others}) == 3
    assert cells[0].run.task.tokenizer == "some/model"
    four = next(c for c in cells if c.label == "whole model, γ from 0.5 in four")
    assert four.run.model.layers == "10+14+18+22"
    short = next(c for c in cells if c.label == "first 8 layers, γ from 0.5 in one")
    assert (short.run.model.first_layers, short.run.model.layers) == (8, "4")
    longer = {c.label: c for c in cells if c.row.longer}
    assert longer["whole model, dense, longer texts"].run == cells[0].run
    assert all(c.evaluation.settings == ("statements=96",) for c in longer.values())


def test_hops_of_a_model_on_this_machine_take_layers_that_can_be_patched(tmp_path):
    transformers = pytest.importorskip("transformers")
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    transformers.Gemma3TextConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=12, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, layer_types=2 * kinds,
    ).save_pretrained(tmp_path)  # fmt: skip
    cells = {c.label: c.run.model for c in declare("tab:hops", pretrained=str(tmp_path))}
    assert cells["whole model, γ from 0.5 in one"].layers == "5"
    assert cells["whole model, γ from 0 in four"].layers == "5+11"
    assert "whole model, γ from 0 in all" not in cells, "the same model twice"
    assert "first 4 layers, γ from 0 in one" not in cells, "none of these can be patched"
    assert cells["first 8 layers, γ from 0 in one"].layers == "5"
    assert "first 16 layers, dense" not in cells


def test_lengths_are_trained_twice_and_tested_at_three():
    cells = [c for c in declare("tab:lm_length_sweep") if c.row.mechanism.name == "dense"]
    assert len(cells) == 6
    runs = {c.run for c in cells}
    assert {r.task.window for r in runs} == {256, 64}
    assert {r.train.batch_size * r.task.window for r in runs} == {2048}
    assert all(max(r.model.positions, r.task.window) == 256 for r in runs)
    everything = {c.run for c in declare("tab:lm_length_sweep")}
    shared = {c.run for c in declare("tab:lm_all")}
    assert {r for r in everything if r.task.window == 256} <= shared, "trained at N once, for both"
    tested = [(c.run.task.window, c.evaluation.settings) for c in cells]
    assert tested == [
        (256, ("window=64",)), (256, ("window=128",)), (256, ()),
        (64, ()), (64, ("window=128",)), (64, ("window=256",)),
    ]  # fmt: skip


def test_an_evaluation_without_settings_keeps_its_old_name():
    plain = Evaluation(examples=16)
    assert "settings" not in to_plain(plain)
    assert from_plain(Evaluation, to_plain(plain), "e") == plain
    other = dataclasses.replace(plain, settings=("window=8",))
    assert from_plain(Evaluation, json.loads(json.dumps(to_plain(other))), "e") == other
    assert other.id != plain.id


def test_a_pretrained_models_gamma_is_the_scales_and_is_measured_before_training():
    cells = {c.label: c for c in declare("tab:lm_all", pretrained="some/model")}
    untrained = cells["One layer patched, not trained: ChaCAL, γ=0.1"].run
    assert untrained.train.steps == 0
    assert (untrained.model.operator, untrained.model.layers) == ("chacal,gamma=0.1", "1")
    tuned = cells["Fine-tuned, all layers: Block-ChaCAL n//3"].run
    assert parse_operator(tuned.model.operator).gamma == 0.5
    assert tuned.model.pretrained == tuned.task.tokenizer == "some/model"


def test_files_of_your_own(tmp_path):
    (tmp_path / "text.txt").write_text("some text")
    path = str(tmp_path / "text.txt")
    given = {"train_file": path, "valid_file": path}
    for cell in declare("tab:lm_all", **given):
        assert isinstance(cell.run.task, Language)
        assert (cell.run.task.train, cell.run.task.valid) == (path, path)
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 1}\n')
    rows = str(tmp_path / "rows.jsonl")
    task = declare("tab:copilot_results", train_file=rows, valid_file=rows)[0].run.task
    assert isinstance(task, Labelled)


def test_what_is_given_in_vain_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--data is given, and tab:lm_all has no use for it"):
        reproduce("tab:lm_all", scale="smoke", out=tmp_path / "s", given=Given(data="x"))
    with pytest.raises(ValueError, match="one of --train-file and --valid-file"):
        declare("tab:lm_length_sweep", train_file="x")
    with pytest.raises(ValueError, match="holds none of gov_report"):
        declare("tab:scrolls", data=str(tmp_path))
    with pytest.raises(ValueError, match="--pretrained is given, and tab:boxes has no use"):
        reproduce("tab:boxes", scale="smoke", out=tmp_path / "s",
                  given=Given(pretrained="x"))  # fmt: skip


def test_a_folder_with_one_data_set_makes_its_lines(tmp_path):
    (tmp_path / "contract_nli").mkdir()
    row = json.dumps({"id": "1", "pid": "1", "input": "x", "output": "y"}) + "\n"
    for name in ("train", "validation"):
        (tmp_path / "contract_nli" / f"{name}.jsonl").write_text(row * 20)
    cells = declare("tab:scrolls", data=str(tmp_path))
    assert {c.row.dataset for c in cells} == {"contract_nli"}
    assert {c.run.train.steps for c in cells} == {0, 3}  # one epoch of 20 rows by 8
    note = TABLES["tab:scrolls"].note(sized(data=str(tmp_path)))
    assert "GovReport, NarrativeQA not in the folder" in note
    assert all(c.run.model.pretrained == "facebook/bart-base" for c in cells)
    new = declare("tab:scrolls", data=str(tmp_path), pretrained="none")
    assert all(c.run.model.pretrained is None for c in new)
    assert {c.run.train.steps for c in new} == {0, 200}
    note = TABLES["tab:scrolls"].note(sized(data=str(tmp_path), pretrained="none"))
    assert "NOT pretrained" in note
    assert "200 steps of 8 at 0.001" in note


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
def test_lengths_are_swept(tmp_path):
    result = reproduce("tab:lm_length_sweep", scale="smoke", out=tmp_path / "s", quiet=True)
    assert not result.has_failures
    cells = {cell.label: cell for cell in result.cells}
    at = {k: v.runs["0"] for k, v in cells.items() if k.startswith("ChaCAL, trained at N,")}
    assert len({run.run for run in at.values()}) == 1  # trained once, tested at three lengths
    assert len({run.metrics["perplexity"] for run in at.values()}) == 3
    assert cells["dense, trained at N, tested at N"].causal is True
    assert SMOKE.name == result.scale


def test_questions_are_counted_by_hops_without_a_tokenizer():
    cells = {c.label: c for c in declare("tab:hops", pretrained="not/there")}
    for label, statements in (("whole model, dense", 36), ("whole model, dense, longer texts", 96)):
        cell = cells[label]
        (sizes,) = _group_sizes(cell)
        twin = Variables(statements=statements)  # its own tokens, the same worlds
        batches = (twin.batch("test", TEST_SEED, i, 4).info["hops"] for i in range(24))
        asked = np.concatenate([hops.flatten() for hops in batches])
        assert sizes.by == "hops"
        assert dict(zip(sizes.at, sizes.sizes, strict=True)) == dict(
            zip(*(x.tolist() for x in np.unique(asked, return_counts=True)), strict=True)
        )
