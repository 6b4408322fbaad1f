"""The command as a person calls it: what it prints, what it refuses, what it leaves behind."""

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from chacal.commands.cli import main
from chacal.commands.console import command
from chacal.tasks import Boxes
from chacal.tasks.base import stream, uniforms
from chacal.training.tracker import Tracker

TINY = [
    "--blocks", "3", "--block-size", "4", "--width", "16", "--heads", "2", "--steps", "3",
    "--eval-examples", "8", "--test-examples", "16", "--batch-size", "8",
]  # fmt: skip


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def chacal(*args, stdin="", cwd="."):
    """The command, in this process: importing torch again for each call would take the time."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    on_interrupt = signal.getsignal(signal.SIGINT)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["chacal", *map(str, args)])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        finally:  # which an interrupted command leaves as its process is about to end
            signal.signal(signal.SIGINT, on_interrupt)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tiny"
    done = chacal("train", "chains", *TINY, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def one_line(done, *words):
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train", "chain"], ["task is 'chain'", "chains", "language"]),
        (["train", "chains", "--steps", "many"], ["--steps", "many"]),
        (["train", "chains", "--heads", "3"], ["heads is 3", "divisor of the width"]),
        (["train", "chains", "--blocks", "0"], ["blocks=0"]),
        (["train", "chains", "--operator", "blok/3"], ["blok", "did you mean 'block'"]),
        (["train", "chains", "--operators", "chacal,dense", "--layers", "3"], ["layers is 3"]),
        (["train", "chains", "--accumulate", "5"], ["accumulate is 5"]),
        (["train", "chains", "--width", "0"], ["width is 0"]),
        (["train", "chains", "--mlp-ratio", "-1"], ["mlp_ratio is -1"]),
        (["train", "chains", "--layers", "0"], ["--layers", "0"]),
        (["train", "chains", "--operator", "dense", "--operators", "chacal"], ["both given"]),
        (["train", "boxes", "--data", ".", "--updates", "3"], ["--updates", "--data"]),
        (["train", "boxes", "--boxes", "1"], ["boxes=1"]),
        (["train", "boxes", "--data", "no-such-folder"], ["no-such-folder"]),
        (["train", "lm"], ["task is 'lm'", "language"]),
        (["train", "language", "--train", "no-such-file"], ["train='no-such-file'"]),
        (["eval", "no-such-run"], ["no-such-run", "config.json"]),
        (["inspect", "no-such-run"], ["no-such-run"]),
        (["bench", "ops", "chacl"], ["chacl"]),
        (["bench", "ops", "--heads", "0"], ["heads is 0"]),
        (["bench", "ops", "--runs", "0"], ["runs is 0"]),
        (["bench", "ops", "--budget", "0"], ["budget is 0.0; expected a positive number"]),
        (["bench", "decode", "--threads", "0"], ["threads is 0"]),
        (["track", "--file", "no-such-file"], ["no-such-file"]),
        (["reproduce", "tab:boxs"], ["tab:boxs", "tab:boxes"]),
        (["reproduce", "tab:boxes", "--scale", "huge"], ["huge", "smoke"]),
        (["reproduce", "tab:boxes", "--seeds", "0"], ["seeds is 0"]),
        (["reproduce", "tab:boxes", "--jobs", "0"], ["jobs is 0"]),
        (["report", "no-such-results"], ["no-such-results"]),
        (["report", "."], ["holds no results", "chacal reproduce"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, words, tmp_path):
    one_line(chacal(*args, cwd=tmp_path), *words)
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"


def test_a_corrupt_or_foreign_checkpoint_is_named(run, tmp_path):
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("config.json", "result.json", "environment.json"):
        (copy / name).write_bytes((run / name).read_bytes())
    one_line(chacal("eval", copy), "best.safetensors", "is not there")
    (copy / "best.safetensors").write_bytes((run / "best.safetensors").read_bytes()[:-50])
    one_line(chacal("eval", copy), "best.safetensors", "cannot be read")
    (copy / "best.safetensors").write_bytes((run / "best.safetensors").read_bytes())
    config = json.loads((copy / "config.json").read_text())
    config["model"]["width"] = 32
    (copy / "config.json").write_text(json.dumps(config))
    one_line(chacal("eval", copy), "of another model", "shape")
    config["model"]["colour"] = "blue"
    (copy / "config.json").write_text(json.dumps(config))
    one_line(chacal("eval", copy), "model.colour is not a field")
    (copy / "config.json").write_text("{")
    one_line(chacal("eval", copy), "not JSON")


def test_a_full_disk_is_told_and_loses_nothing(run, tmp_path):
    # a file-size limit stands in for a full disk: checkpoints no longer fit
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    code = (
        "import resource, signal, sys, runpy\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        f"out = {str(tmp_path / 'full')!r}\n"
        f"sys.argv = ['chacal', 'train', 'chains', *{TINY!r}, '--out', out]\n"
        "runpy.run_module('chacal', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert not [p for p in (tmp_path / "full").iterdir() if p.suffix == ".safetensors"]
    assert before == {p.name: p.read_bytes() for p in run.iterdir()}


def test_eval_swaps_operators_and_prunes(run):
    figures = {}
    for extra in ([], ["--operator", "block/3"], ["--top-k", "1"], ["--operators", "dense"]):
        done = chacal("eval", run, "--examples", "64", "--json", *extra)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        figures[" ".join(extra)] = result["operators"], result["metrics"]["loss"]
    assert [ops for ops, _ in figures.values()] == [
        ["chacal"], ["block/3"], ["chacal,top_k=1"], ["dense"],
    ]  # fmt: skip
    assert len({loss for _, loss in figures.values()}) == 4
    table = chacal("eval", run, "--examples", "64")
    assert "accuracy/depth=02" in table.stdout
    one_line(chacal("eval", run, "--operator", "window@4", "--top-k", "2"), "cannot prune")
    one_line(chacal("eval", run, "--borders", "8"), "chains is not counted by them, Boxes is")
    one_line(chacal("eval", run, "--set", "blocks=9"), "position")
    one_line(chacal("eval", run, "--set", "block_size=5"), "changes what the tokens mean")
    one_line(chacal("eval", run, "--threads", "-1"), "threads is -1")
    one_line(chacal("eval", run, "--set", "colour=red"), "task.colour")


def test_a_learned_gamma_can_be_swapped_out(tmp_path):
    out = tmp_path / "run"
    assert chacal("train", "chains", *TINY, "--learn-gamma", "--out", out).returncode == 0
    done = chacal("eval", out, "--examples", "16", "--operators", "dense", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["operators"] == ["dense"]


def test_bench_prints_a_table_and_writes_json(tmp_path):
    out = tmp_path / "bench.json"
    done = chacal("bench", "ops", "chacal", "formed", "-n", 65, "--heads", 1, "--width", 8,
                  "--rounds", 2, "--json", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(r["operator"], r["backward"]) for r in rows] == [
        (op, backward) for backward in (False, True) for op in ("sdpa", "chacal", "formed")
    ]
    assert all(r["seconds"] > 0 and r["n"] == 65 for r in rows)
    assert "x sdpa" in done.stdout
    assert done.stdout.count("formed") == 2


@pytest.mark.parametrize("what", ["ops", "decode"])
def test_bench_on_a_card_that_is_not_there(what, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    one_line(chacal("bench", what, "--device", "cuda"), "no CUDA device; expected --device cpu")


def test_bench_over_runs_tells_the_median_and_the_range(tmp_path):
    out = tmp_path / "bench.json"
    done = chacal("bench", "ops", "chacal", "-n", 33, "--heads", 1, "--width", 8, "--rounds", 3,
                  "--runs", 2, "--mode", "forward", "--json", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["runs"] == 2
    baseline, row = figures["rows"]
    assert baseline["ratios"] == [1.0, 1.0]
    low, high = sorted(row["ratios"])
    assert row["ratio"] == pytest.approx((low + high) / 2)
    assert f"{row['ratio']:.2f}  {low:.2f} to {high:.2f}" in done.stdout
    assert "medians of 3 interleaved rounds; 2 runs" in done.stdout
    assert f"1 thread(s) of {figures['machine']['cpu']}" in done.stdout


def test_bench_compares_lengths_and_leaves_sdpa_out_of_its_budget(tmp_path):
    out = tmp_path / "bench.json"
    done = chacal("bench", "ops", "window@8", "-n", 64, "-n", 8192, "--heads", 1, "--width", 4,
                  "--rounds", 1, "--mode", "forward", "--growth", "--clock", "cpu",
                  "--budget", "1e-9", "--memory", "--json", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    # so short a text is never too long for it
    assert [(r["operator"], r["n"]) for r in figures["rows"]] == [
        ("sdpa", 64), ("window@8", 64), ("window@8", 8192),
    ]  # fmt: skip
    assert figures["left_out"] == [{"operator": "sdpa", "n": 8192, "backward": False}]
    assert "sdpa at n = 8192, forward: left out" in done.stdout
    assert "longer than the 1e-09 s of --budget" in done.stdout
    short, long = figures["rows"][1:]
    assert short["growth"] == 1
    assert long["ratio"] is None
    assert long["growth"] == pytest.approx(long["per_token"] / short["per_token"])
    assert figures["clock"] == "cpu"
    assert "CPU time" in done.stdout
    memory = figures["memory"][-1]
    assert memory["tensors"] == 4 * 8192 * 4 * 4
    assert not memory["backward"]
    assert f"{memory['tensors'] / 2**20:,.0f} of it are q, k, v and Y" in done.stdout


def test_bench_decode_prints_a_table_and_writes_json(tmp_path):
    out = tmp_path / "bench.json"
    done = chacal("bench", "decode", "chacal", "window@8", "stock", "-n", 256, "-n", 512, "--heads",
                  2, "--width", 8, "--rounds", 2, "--json", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(r["operator"], r["context"]) for r in rows] == [
        (op, n) for n in (256, 512) for op in ("sdpa", "chacal", "window@8", "stock")
    ]
    assert all(r["seconds"] > 0 for r in rows)
    # a key and a value per token and head; a window's state does not grow with the context
    kept = {(r["operator"], r["context"]): r["kept"] for r in rows}
    assert kept["chacal", 256] == kept["sdpa", 256] == kept["stock", 256] == 256 * 2 * 2 * 8 * 4
    assert kept["window@8", 512] == kept["window@8", 256] < kept["chacal", 256] / 2
    assert "x sdpa" in done.stdout
    # ordinary attention does not read: its keys and values are put there
    assert all((r["reading"] is None) == (r["operator"] in ("sdpa", "stock")) for r in rows)
    done = chacal("bench", "decode", "block/3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "block/3 cannot decode" in done.stderr


def test_kim_and_schuster_files_train(tmp_path):
    things = ["book", "key", "letter", "clock"]
    for split in ("train", "dev", "test"):
        rows = []
        for i in range(24):
            a, b = things[i % 4], things[(i + 1) % 4]
            state = f"Box 0 contains the {a}, Box 1 is empty, Box 2 contains the {b}."
            moved = f"{state} Move the {a} from Box 0 to Box 1. Box 1"
            rows.append(
                {
                    "sentence": f"{moved} contains the {a}.",
                    "sentence_masked": f"{moved} <extra_id_0> .",
                    "masked_content": f"<extra_id_0> contains the {a}",
                    "sample_id": f"{split}-{i}",
                    "numops": 1,
                }
            )
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{split}-t5.jsonl").write_text(text)
    done = chacal("train", "boxes", "--data", tmp_path, "--steps", 4, "--batch-size", 8, "--width",
                  16, "--heads", 2, "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "exact_match/numops=1" in result["test"]


def test_ruler_writes_what_a_run_is_tested_on(tmp_path):
    file = tmp_path / "validation.jsonl"
    done = chacal("ruler", file, "--examples", 5, "--hops", 1, "--noise", 0.0, "--chains", 3)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 5
    assert {len(row["outputs"]) for row in rows} == {2}
    assert {row["input"].count(" = ") for row in rows} == {6}
    done = chacal(
        "train", "variables-ruler", "--hops", 1, "--noise", 0.0, "--steps", 1, "--batch-size", 2,
        "--width", 16, "--heads", 2, "--eval-examples", 2, "--test-examples", "all",
        "--test-file", file, "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["examples"] == {"valid": 2, "test": 5}
    assert {"recall", "exact_match", "exact_match/hops=01"} <= set(result["test"])


def test_the_next_command_can_be_pasted(run, monkeypatch, tmp_path):
    # in a shell that does not know the environment's folder
    monkeypatch.setenv("PATH", str(tmp_path))
    done = chacal("train", "chains", *TINY, "--out", tmp_path / "a run")
    line = done.stdout.rstrip().splitlines()[-1].strip()
    program, *arguments = shlex.split(line)
    assert os.access(program, os.X_OK), line
    assert arguments[-2:] == ["eval", str(tmp_path / "a run")]
    # and in one that does
    here = Path(sys.executable).with_name("chacal")
    if here.is_file():
        monkeypatch.setenv("PATH", str(here.parent))
        assert command("demo") == "chacal demo"
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.chdir(here.parent.parent)
        assert command("demo") == "bin/chacal demo"


def test_text_trains(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 200)
    done = chacal("train", "language", "--train", tmp_path / "a.txt", "--valid",
                  tmp_path / "a.txt", "--test", tmp_path / "a.txt", "--window", 32, "--steps",
                  60, "--batch-size", 8, "--width", 16, "--heads", 2, "--operator", "window@8",
                  "--layers", 1, "--warmup", 0, "--lr", 0.01,
                  "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "test" in done.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["operators"] == ["window@8"]
    assert 1 < result["test"]["perplexity"] < 60
    assert result["test"]["perplexity_per_word"] > result["test"]["perplexity"]


def test_text_without_a_test_ends_with_its_valid_figures(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 50)
    done = chacal("train", "language", "--train", tmp_path / "a.txt", "--valid",
                  tmp_path / "a.txt", "--test", "none", "--window", 16, "--steps", 2,
                  "--batch-size", 4, "--width", 8, "--heads", 1,
                  "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["test"] is None
    assert "perplexity_per_word" in done.stdout


def test_help_documents_every_field():
    import dataclasses

    from chacal.training.config import ModelConfig, TrainConfig

    text = chacal("train", "boxes", "--help").stdout
    for cls in (Boxes, ModelConfig, TrainConfig):
        for field in dataclasses.fields(cls):
            if field.name != "sampled":  # a number that is given always holds, and all is "all"
                assert f"--{field.name.replace('_', '-')}" in text
            assert field.metadata["help"]


def test_track_answers_from_the_bundled_checkpoint(tmp_path):
    story = "The camera is in Box F. Move the contents of Box F to Box B."
    done = chacal("track", story, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "A": [], "B": ["camera"], "C": [], "D": [], "E": [], "F": [], "G": [],
    }  # fmt: skip
    assert "Box B  camera" in chacal("track", story).stdout
    file = tmp_path / "stories.txt"
    file.write_text(f"{story}\nThe key is in Box A.\n")
    lines = chacal("track", "--file", file, "--json").stdout.splitlines()
    assert json.loads(lines[1])["A"] == ["key"]
    typed = chacal("track", "--json", stdin="The key is in Box A.\nRemove the key from Box A.\n")
    assert json.loads(typed.stdout)["A"] == []
    file.write_text("The key is in Box A.\n\n\nTurn the key in Box A.\n")
    one_line(chacal("track", "--file", file), "line 4", "Turn")
    one_line(chacal("track", stdin="\n"), "empty")
    known = chacal("track", "--objects").stdout.split()
    assert len(known) == 100
    assert "camera" in known


@pytest.mark.parametrize(
    ("story", "words"),
    [
        ("The camra is in Box F.", ["sentence 1", "camra", "camera"]),
        ("The key is in Box A. Fold the key.", ["sentence 2", "Fold"]),
        ("The key is in Box Z.", ["'Z'", "A to G"]),
        ("The key is in Box A. Move the key from Box A", ["sentence 2", "to Box X"]),
        ("The key is in Box A. Remove the cup from Box A.", ["cup is not in Box A"]),
    ],
)
def test_track_points_at_what_it_does_not_know(story, words):
    one_line(chacal("track", story), *words)


def test_track_reads_what_is_meant_and_says_how_it_was_read():
    done = chacal("track", "box 6 holds my unicorn, then empty box f into box 2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["B"] == ["unicorn"]
    meant = "The unicorn is in Box F. Move the contents of Box F to Box B."
    assert done.stderr == f"chacal: read as: {meant}\n"
    one_line(chacal("track", "Box A is empty."), "of nothing")


def test_the_bundled_model_tracks_fresh_stories():
    tracker = Tracker()
    uniform = uniforms(stream("fresh", 20261115))
    right = 0
    for i in range(150):
        sentences, truth = tracker.task.story(uniform, "test", i % 11)
        right += tracker.answer(" ".join(s.text for s in sentences)) == truth
    assert right >= 147  # 98 %


def test_reproduce_makes_a_table_and_report_shows_it(tmp_path):
    assert "tab:heads-props" in chacal("reproduce").stdout
    first = chacal("reproduce", "tab:ablation_branches", "--scale", "smoke", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "5 of 5 done" in first.stderr
    assert "Residual branch only" in first.stdout
    assert "SMOKE" in first.stdout
    again = chacal("reproduce", "tab:ablation_branches", "--scale", "smoke", cwd=tmp_path)
    assert "5 of 5 cells are there already" in again.stderr
    assert again.stdout == first.stdout
    mixed = chacal("reproduce", "tab:boxes", "--out", "results/smoke", cwd=tmp_path)
    one_line(mixed, "'smoke'", "'cpu'", "--out")
    done = chacal("report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "results/report.html" in done.stdout
    text = (tmp_path / "results" / "report.md").read_text()
    assert "chacal reproduce tab:ablation_branches --scale smoke" in text
    assert "SMOKE" in text


def test_a_failed_cell_ends_in_exit_code_1(tmp_path):
    command = ("reproduce", "tab:ablation_branches", "--scale", "smoke", "--out", "s")
    assert chacal(*command, cwd=tmp_path).returncode == 0
    run = next((tmp_path / "s" / "runs").glob("boxes-dense+block_3-*"))
    for file in (*run.glob("evaluation-*"), run / "result.json", run / "last.safetensors"):
        file.unlink()
    (run / "config.json").write_text("{}")
    done = chacal(*command, cwd=tmp_path)
    assert done.returncode == 1
    assert "1 failed" in done.stderr
    assert "config.json" in done.stdout


def test_a_stopped_demo_advises_what_it_has(tmp_path):
    begun = tmp_path / "demo" / "dense" / "metrics.jsonl"

    def stop():
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    done = chacal("demo", "--out", tmp_path / "demo")
    assert done.returncode == 130
    assert "the same command starts it again" in done.stderr
    assert "--resume" not in done.stderr


def test_an_interrupted_command_says_so():
    def stop():
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    done = chacal("bench", "ops", "chacal", "-n", 256, "--heads", 1, "--rounds", 10**6)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "chacal: interrupted"  # on a line after the terminal's ^C
