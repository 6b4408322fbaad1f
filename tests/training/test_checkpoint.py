"""Weights that were damaged on disk are noticed, whoever reads them; others are none of ours."""

import json
import shutil
import struct
from importlib import resources
from pathlib import Path

import pytest
import torch
from called import TINY, chacal, refused
from safetensors import safe_open
from safetensors.torch import save_file

from chacal.training.checkpoint import MARK, load_checkpoint, save_checkpoint


def flip(path: Path, at: float = 0.5) -> None:
    """Turn over one bit of the tensors, so far into them."""
    data = bytearray(path.read_bytes())
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    data[begin + int(at * (len(data) - begin - 1))] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, *, tensors=None, metadata=None, **progress) -> None:
    """The checkpoint as a stranger, or an older version, would have written it."""
    with safe_open(path, "pt") as file:
        known = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        told = file.metadata()
    told.pop("checksum", None)
    if progress:
        told["progress"] = json.dumps({**json.loads(told["progress"]), **progress})
    save_file({**known, **(tensors or {})}, path, {**told, **(metadata or {})})


@pytest.fixture
def stopped(finished, tmp_path):
    """A run with a checkpoint and no result."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "result.json").unlink()
    return out


@pytest.mark.parametrize("at", [0.0, 0.3, 0.7, 1.0])
def test_one_flipped_bit_is_noticed(tmp_path, at):
    path = tmp_path / "last.safetensors"
    tensors = {"model.a": torch.randn(5, 3), "optimizer.a.step": torch.tensor(3.0),
               "random.0": torch.arange(9, dtype=torch.uint8), "model.b": torch.ones(2).bfloat16(),
               "model.none": torch.ones(0)}  # fmt: skip
    save_checkpoint(path, tensors, {"step": 3})
    read, progress = load_checkpoint(path)
    assert progress == {"step": 3}
    assert read.keys() == tensors.keys()
    assert all(read[name].equal(tensors[name]) for name in read)
    flip(path, at)
    for prefix in ("", "model.", "random."):  # damage anywhere is damage
        with pytest.raises(ValueError, match=r"last\.safetensors is damaged: its checksum"):
            load_checkpoint(path, prefix)


def test_what_is_told_of_the_tensors_is_part_of_the_checksum(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, {"model.a": torch.ones(2, 3)}, {"step": 3})
    whole = path.read_bytes()
    for old, new in ((b"model.a", b"model.b"), (b'\\"step\\": 3', b'\\"step\\": 4')):
        assert whole.count(old) == 1
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(ValueError, match="is damaged"):
            load_checkpoint(path)


def test_a_damaged_run_is_not_resumed(stopped):
    flip(stopped / "last.safetensors")
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    done = chacal(*TINY, "--out", str(stopped), "--resume")
    refused(done, str(stopped / "last.safetensors"), "is damaged", "--force", "best.safetensors")
    assert before == {path.name: path.read_bytes() for path in stopped.iterdir()}
    # both ways out that it names are ways out
    done = chacal(*TINY, "--init", str(stopped), "--out", str(stopped.with_name("next")))
    assert done.returncode == 0, done.stderr
    assert chacal(*TINY, "--out", str(stopped), "--force").returncode == 0


def test_damaged_best_weights_are_not_used(stopped):
    flip(stopped / "best.safetensors")
    name = str(stopped / "best.safetensors")
    refused(chacal("eval", str(stopped), "--examples", "8"), name, "is damaged")
    new = str(stopped.with_name("next"))
    refused(chacal(*TINY, "--init", str(stopped), "--out", new), name, "is damaged")
    refused(chacal("inspect", str(stopped), "--examples", "1"), name, "is damaged")
    # what cannot be gone on with is not offered
    flip(stopped / "last.safetensors")
    done = chacal(*TINY, "--out", str(stopped), "--resume")
    refused(done, "last.safetensors is damaged", "--force")
    assert "--init" not in done.stderr


def test_the_bundled_weights_have_a_checksum(tmp_path):
    bundled = Path(str(resources.files("chacal") / "checkpoints" / "boxes"))
    for file in bundled.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with safe_open(tmp_path / "best.safetensors", "pt") as file:
        assert len(file.metadata()["checksum"]) == 64
    story = "The key is in Box A."
    assert chacal("track", story, "--run", str(tmp_path)).returncode == 0
    flip(tmp_path / "best.safetensors")
    refused(chacal("track", story, "--run", str(tmp_path)), "best.safetensors is damaged")


def test_older_checkpoints_are_read_but_never_weights_that_are_not_finite(stopped):
    rewrite(stopped / "last.safetensors")
    assert chacal(*TINY, "--out", str(stopped), "--resume").returncode == 0
    rewrite(stopped / "best.safetensors")
    assert chacal("eval", str(stopped), "--examples", "8").returncode == 0
    with safe_open(stopped / "best.safetensors", "pt") as file:
        name = next(key for key in file.keys() if key.startswith("model."))  # noqa: SIM118 - no dict
        weight = file.get_tensor(name)
    for bad in (float("nan"), float("inf")):
        weight.view(-1)[0] = bad
        rewrite(stopped / "best.safetensors", tensors={name: weight})
        done = chacal("eval", str(stopped), "--examples", "8")
        refused(done, "best.safetensors", name.removeprefix("model."), "not finite")


def test_weights_that_are_not_finite_do_not_replace_a_checkpoint(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, {"model.a": torch.ones(3)}, {"step": 1})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"weights are not finite \(a\).* step 2"):
        save_checkpoint(path, {"model.a": torch.tensor([1.0, torch.inf])}, {"step": 2})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        ({"step": -5}, "progress.step is -5; expected 0 to 6"),
        ({"step": 7}, "progress.step is 7; expected 0 to 6"),
        ({"step": "x"}, "progress.step is 'x'; expected int"),
        ({"step": 10**30}, "progress holds a whole number of 31 digits"),
        ({"run": "/etc"}, "progress.run is not a field"),
        ({"finish": None}, "progress.finish is not a field"),
        ({"tokens": -1}, "progress.tokens is -1"),
        ({"seconds": float("nan")}, "progress.seconds is nan"),
        ({"stopped": "never"}, "progress.stopped is 'never'"),
        ({"best_metrics": [1]}, "progress.best_metrics is [1]; expected an object"),
        ({"best_metrics": {"loss": {}}}, "progress.best_metrics.loss is {}; expected float"),
    ],
)
def test_what_a_checkpoint_says_of_the_loop_is_typed_and_named(stopped, progress, why):
    rewrite(stopped / "last.safetensors", **progress)
    done = chacal(*TINY, "--out", str(stopped), "--resume")
    refused(done, str(stopped / "last.safetensors"), why)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"optimizer.foo.exp_avg": torch.ones(1)}, "optimizer.foo.exp_avg is of no weight"),
        ({"optimizer.embed.weight.exp_avg": torch.ones(1)}, "embed.weight.exp_avg has shape (1,)"),
        ({"optimizer.embed.weight.what": torch.ones(1)}, "embed.weight.what is of no weight"),
        ({"random.0": torch.ones(7)}, "random.0 is not a random state"),
        ({"random.0": torch.zeros(5056, dtype=torch.uint8)}, "random.0 is not a random state"),
    ],
)
def test_tensors_that_do_not_fit_the_loop_are_named(stopped, tensors, why):
    with safe_open(stopped / "last.safetensors", "pt") as file:
        assert file.get_tensor("random.0").shape == (5056,)
        first = next(name for name in file.keys() if name.endswith(".exp_avg"))  # noqa: SIM118 - no dict
    first = first.removeprefix("optimizer.").removesuffix(".exp_avg")
    named = {name.replace("embed.weight", first): x for name, x in tensors.items()}
    rewrite(stopped / "last.safetensors", tensors=named)
    done = chacal(*TINY, "--out", str(stopped), "--resume")
    refused(done, str(stopped), why.replace("embed.weight", first))


@pytest.mark.parametrize("progress", ["", "5", "{", "[" * 10_000 + "]" * 10_000, None])
def test_progress_that_is_none(stopped, progress):
    told = {"format": MARK} if progress is None else {"format": MARK, "progress": progress}
    for name in ("last.safetensors", "best.safetensors"):
        with safe_open(stopped / name, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dict
        save_file(tensors, stopped / name, told)
    refused(chacal(*TINY, "--out", str(stopped), "--resume"), "last.safetensors", "progress")
    refused(chacal("eval", str(stopped), "--examples", "8"), "best.safetensors", "progress")


def test_files_that_are_no_checkpoints(stopped):
    for content in (b"", b"x" * 7, b"\xff" * 100, (stopped / "best.safetensors").read_bytes()[:99]):
        (stopped / "best.safetensors").write_bytes(content)
        refused(chacal("eval", str(stopped)), str(stopped / "best.safetensors"))
    (stopped / "best.safetensors").unlink()
    (stopped / "best.safetensors").mkdir()
    refused(chacal("eval", str(stopped)), str(stopped / "best.safetensors"), "is a folder")
