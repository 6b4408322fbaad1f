"""Sizes that cannot be held are refused before they are tried; all that can be, are not."""

import dataclasses
import json
import shutil
import sys

import pytest
import torch

from chacal import _memory
from chacal._memory import check_fits, machine_bytes, told_bytes
from chacal.bench.timing import peak_memory
from chacal.commands.cli import main
from chacal.experiments.scales import CPU
from chacal.experiments.tables import TABLES
from chacal.operators import OPERATORS, parse_operator
from chacal.tasks import Boxes, Chains, Code, Noise
from chacal.training import memory
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.loop import train
from chacal.training.transformers_model import TransformersConfig

GIB = 2**30


def refused(capsys, monkeypatch, *args):
    """The one line that the command says."""
    monkeypatch.setattr(sys, "argv", ["chacal", *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith("chacal: ")
    assert said.count("\n") == 1
    return said


HUGE = 99999999999999999999
"""More than 63 bits hold."""


@pytest.mark.parametrize(
    "args",
    [
        ("train", "chains", "--width", 100000),
        ("train", "chains", "--width", 4 * 10**17),
        ("train", "chains", "--block-size", 10**6),
        ("train", "chains", "--block-size", 10**17),
        ("train", "chains", "--blocks", 10**15),
        ("train", "chains", "--batch-size", 10**9),
        ("train", "chains", "--batch-size", 10**12, "--accumulate", 10**12),
        ("train", "chains", "--mlp-ratio", 9999, "--width", 16384),
        ("train", "chains", "--layers", 10000, "--operator", "chacal", "--width", 1024),
        ("train", "chains", "--operator", "t_pre", "--blocks", 10000),
        ("train", "chains", "--operator", "chacal,top_k=2", "--blocks", 10000),
        ("train", "chains", "--operator", f"bigbird,links={10**8}"),
        ("train", "properties", "--properties", 10**9),
        ("train", "noise", "--window", 2147483648),
        ("train", "noise", "--alphabet", 10**10),
        ("train", "boxes", "--updates", 10**8),
        ("train", "boxes-padded", "--pad", 10**8),
        ("train", "code", "--updates", 10**8),
        ("bench", "ops", "chacal", "-n", 64, "-n", 10**10),
        ("bench", "ops", "chacal", "--batch", 10**10),
        ("bench", "ops", "chacal", "--mode", "none", "--memory", "-n", 10**10),
        ("bench", "ops", "t_post", "-n", 10**6),
        ("bench", "decode", "chacal", "-n", 10**10),
        ("bench", "decode", "chacal", "--heads", 10**9),
    ],
    ids=lambda args: " ".join(map(str, args)),
)
def test_what_does_not_fit_is_refused_with_its_bytes(args, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, monkeypatch, *args)
    assert "needs at least" in said
    assert told_bytes(machine_bytes()) in said
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("bench", "decode", f"window@{HUGE}"), "window is"),
        (("bench", "ops", f"routed@64,parts={HUGE}"), "parts is"),
        (("bench", "ops", f"pattern,offsets=1+{HUGE}"), "offsets is"),
        (("bench", "ops", "-n", HUGE), "length is"),
        (("bench", "ops", "--threads", 10**6), "threads is"),
        (("bench", "ops", "--rounds", HUGE), "rounds is"),
        (("train", "chains", "--block-size", HUGE), "block_size="),
        (("train", "chains", "--steps", HUGE), "steps is"),
        (("train", "chains", "--width", HUGE), "width is"),
        (("train", "chains", "--threads", 10**6), "threads is"),
        (("train", "chains", "--layers", 10**9, "--operator", "chacal"), "--layers"),
        (("train", "boxes", "--curriculum-hold", HUGE), "curriculum_hold="),
        (("train", "language", "--tokenizer", f"bpe:{HUGE}"), "bpe:SIZE"),
        (("reproduce", "tab:boxes", "--scale", "smoke", "--seeds", HUGE), "seeds is"),
    ],
    ids=str,
)
def test_numbers_beyond_counting_are_refused(args, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, monkeypatch, *args)
    assert not list(tmp_path.iterdir())


def config(task=None, **changes):
    model = {"width": 8, "heads": 2, **changes.pop("model", {})}
    train = {"steps": 2, "batch_size": 4, "eval_every": 1, "eval_examples": 4, "test_examples": 4}
    return RunConfig(
        task=task or Chains(blocks=3, block_size=4),
        model=ModelConfig(**model),
        train=TrainConfig(**{**train, **changes}),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train(config(), out, quiet=True)
    return out


@pytest.mark.parametrize("command", ["eval", "inspect", "resume"])
def test_a_stored_size_that_does_not_fit_is_refused(run, command, capsys, monkeypatch, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    stored = json.loads(file.read_text())
    stored["task"]["block_size"] = 10**6
    file.write_text(json.dumps(stored))
    args = [command, tmp_path / "run"]
    if command == "resume":
        sizes = ["--blocks", 3, "--block-size", 10**6, "--width", 8, "--heads", 2]
        args = ["train", "chains", *sizes, "--out", tmp_path / "run", "--resume"]
    assert "needs at least" in refused(capsys, monkeypatch, *args)


@pytest.mark.parametrize(
    "args",
    [
        ("eval", "--batch-size", 10**11),
        ("eval", "--set", f"block_size={10**14}"),
        ("eval", "--set", f"blocks={10**14}"),
        ("inspect", "--examples", 10**12),
    ],
    ids=str,
)
def test_evaluations_that_do_not_fit_are_refused(run, args, capsys, monkeypatch):
    assert "needs at least" in refused(capsys, monkeypatch, args[0], run, *args[1:])


def test_a_container_s_limit_counts(tmp_path, monkeypatch):
    whole = machine_bytes()
    for told, there in (("1048576\n", 2**20), ("max\n", whole), (str(2 * whole), whole)):
        (tmp_path / "memory.max").write_text(told)
        monkeypatch.setattr(_memory, "CONTROL_GROUP", tmp_path / "memory.max")
        assert machine_bytes() == there


def test_bytes_are_told_as_people_read_them():
    assert told_bytes(999) == "999 bytes"
    assert told_bytes(25_276_518_400) == "25,276,518,400 bytes (23.5 GiB)"
    assert told_bytes(10**40) == "10^40 bytes"
    assert told_bytes(10**9000) == "10^9000 bytes"
    check_fits("little", 10, "less", there=10)
    with pytest.raises(
        ValueError, match=r"much needs at least 11 bytes .* 10 bytes; expected less"
    ):
        check_fits("much", 11, "less", there=10)


def needed(run, monkeypatch, processes=1):
    """The bytes that a run is taken to need."""
    told = []
    with monkeypatch.context() as patch:
        patch.setattr(memory, "check_fits", lambda what, needed, *rest: told.append(needed))
        memory.check_training(run, torch.device("cpu"), processes)
    return told[0]


LARGE = {
    "wide": config(model={"width": 1024}),
    "many": config(Chains(), batch_size=192, model={"width": 64, "operators": ("dense",) * 2}),
    "classes": config(Noise(alphabet=8000, window=128), batch_size=32),
    "formed": config(Chains(blocks=64), batch_size=8, model={"operators": ("t_pre", "dense")}),
    "learned": config(
        Boxes(updates=30, curriculum_steps=0), batch_size=256, model={"positions": "learned"}
    ),
    "code": config(Code(updates=30, curriculum_steps=0), batch_size=128, model={"width": 64}),
}


@pytest.mark.parametrize("name", LARGE)
def test_the_estimate_stays_below_what_is_held(name, monkeypatch, tmp_path):
    run = LARGE[name]
    code = (
        "import json, sys\n"
        "from chacal.training.config import RunConfig\n"
        "from chacal.training.loop import train\n"
        f"run = RunConfig.from_json(json.loads({json.dumps(run.to_json())!r}))\n"
        f"train(run, {str(tmp_path / 'run')!r}, quiet=True)"
    )
    before, after = peak_memory(code)
    estimate = needed(run, monkeypatch)
    assert 0.05 * (after - before) < estimate < after - before


def test_every_table_fits_a_small_machine(monkeypatch):
    for table in TABLES.values():
        if not table.given:  # others may ask the hub for their tokens
            for cell in table.cells(CPU):
                assert needed(cell.run, monkeypatch) < GIB, cell.label


def test_sharding_and_parts_need_less(monkeypatch):
    wide = config(model={"width": 512})
    sharded = dataclasses.replace(wide, train=dataclasses.replace(wide.train, fsdp=True))
    assert needed(sharded, monkeypatch, 4) < needed(wide, monkeypatch) / 3
    parts = config(Chains(), batch_size=64, accumulate=16)
    assert needed(parts, monkeypatch) < needed(config(Chains(), batch_size=64), monkeypatch) / 2


def test_models_of_transformers_count_too(monkeypatch):
    fresh = dataclasses.replace(config(), model=TransformersConfig(width=4096, depth=100))
    assert needed(fresh, monkeypatch) > 4 * 4 * 100 * 12 * 4096**2
    read = dataclasses.replace(config(), model=TransformersConfig(pretrained="some/name"))
    assert needed(read, monkeypatch) < GIB
    with pytest.raises(ValueError, match="depth is 1000000; expected a whole number at most"):
        TransformersConfig(depth=10**6)
    with pytest.raises(ValueError, match="mlp_ratio is inf"):
        TransformersConfig(mlp_ratio=float("inf"))


def test_operators_take_every_number_that_they_do_not_refuse():
    q = torch.randn(1, 1, 40, 4)
    most = 2**48 - 1
    counted = [f"{name}@{most}" for name, cls in OPERATORS.items() if "@" in cls.sizes]
    counted += [f"block/{most}", f"chacal,top_k={most}", f"pattern,offsets=1+{most}"]
    counted += [f"routed@8,{name}={most}" for name in ("near", "routes", "parts")]
    counted += [f"pooled@8,near={most}", f"bigbird,seed={2**63 - 1}"]
    for text in counted:
        operator = parse_operator(text)
        assert operator(q, q, q).isfinite().all(), text
        if operator.name in ("bigbird",) or "top_k" in text or "/" in text:
            continue
        decoder = operator.decoder()
        for t in range(3):
            y = decoder.extend(*[q[:, :, 10 * t : 10 * t + 10]] * 3)
        assert y.isfinite().all(), text
