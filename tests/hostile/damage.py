"""Damaged and hostile files: sound ones are made once, then one of them is changed.

A house is a folder with files, and a command that reads them. What the command says of sound files
is known; with a damaged one it may say an error, but no traceback, and, where the tensors of a
checkpoint are damaged, never another result.
"""

import copy
import json
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child import PATIENCE, Ended, Found, judge, run_line
from hypothesis import strategies as st

import chacal

TINY = [
    "--width", "8", "--heads", "2", "--batch-size", "2", "--eval-examples", "2",
    "--test-examples", "4", "--checkpoint-every", "1", "--log-every", "1", "--eval-every", "1",
]  # fmt: skip
CHAINS = ["train", "chains", "--blocks", "3", "--block-size", "4", *TINY]
STORY = "The camera is in Box A. Move the contents of Box A to Box B."
TABLE = ["reproduce", "fig:sparsity", "--scale", "smoke", "--out", "results", "--seeds", "1",
         "--only", "Window"]  # fmt: skip

DEEP, LONG = "a nest of 20,000", "a word of 3,000"
"""Stand in an edit for what nobody wants to read there."""

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, -5, 3, 0.5, -0.5, 1e308, float("nan"), float("inf"), 2**31, 2**63,
    10**6, 10**30, "", "x", "5", "none", "../../../../etc/passwd", "/etc/passwd", "\udcff", "\0",
    "<script>alert(1)</script>", "[red]", LONG, [], {}, [[]], [1], ["x"], {"x": 1}, DEEP,
    "dense", "chacal", "block@99999999999999999999", "boxes", "chains", "decoder", "F32", "BF16",
]  # fmt: skip

BYTES = ["flip", "cut", "insert", "line gone", "line twice", "line swapped", "zeros"]
FIELDS = ["value", "value", "value", "gone", "renamed", "added"]
WHOLE = ["no file", "folder", "empty", "loop", "not text", "json"]


@dataclass(frozen=True)
class Edit:
    """One change: of which house and file, of what kind, where, and to what."""

    house: str
    file: str
    how: str
    where: int = 0
    value: Any = None


@dataclass(frozen=True)
class House:
    """A folder of the stock and the commands that read it."""

    folder: str
    commands: tuple[tuple[str, ...], ...]
    files: tuple[str, ...]
    patience: float = PATIENCE


HOUSES = {
    "eval": House("run", (("eval", "run", "--examples", "4", "--json"),),
                  ("config.json", "best.safetensors", "result.json")),
    "inspect": House("run", (("inspect", "run", "--examples", "2", "--json"),),
                     ("config.json", "best.safetensors"), patience=10),
    "resume": House("half", ((*CHAINS, "--steps", "4", "--out", "half", "--resume"),),
                    ("config.json", "last.safetensors", "best.safetensors", "metrics.jsonl",
                     "environment.json")),
    "finished": House("run", ((*CHAINS, "--steps", "2", "--out", "run", "--resume"),),
                      ("config.json", "result.json")),
    "track": House("boxes", (("track", "--run", "boxes", STORY, "--json"),),
                   ("config.json", "best.safetensors")),
    "stories": House("stories", (("track", "--file", "stories/stories.txt"),), ("stories.txt",)),
    "init": House("run", ((*CHAINS, "--steps", "1", "--out", "new", "--init", "run"),),
                  ("config.json", "best.safetensors")),
    "table": House("results", ((*TABLE, "--no-run"), ("report", "results")), ()),
    "report": House("results", (("report", "results"),), ()),
    "labelled": House("labelled", (("train", "labelled", *TINY, "--steps", "1", "--train-file",
                      "labelled/train.jsonl", "--valid-file", "labelled/valid.jsonl",
                      "--tokenizer", "labelled/tokenizer.json", "--out", "new"),),
                      ("train.jsonl", "valid.jsonl", "tokenizer.json")),
    "boxes-files": House("data", (("train", "boxes", *TINY, "--steps", "1", "--data", "data",
                         "--out", "new"),),
                         ("train-t5.jsonl", "dev-t5.jsonl", "test-t5.jsonl")),
    "language": House("text", (("train", "language", *TINY, "--window", "16", "--steps", "1",
                      "--train", "text/train.txt", "--valid", "text/valid.txt", "--out", "new"),),
                      ("train.txt", "valid.txt")),
    "hf": House("hf", (("eval", "hf/run", "--examples", "2", "--json"),),
                ("run/config.json", "run/best.safetensors", "model/config.json")),
    "scrolls": House("scrolls", (("eval", "scrolls/run", "--json"),),
                     ("run/config.json", "contract_nli/train.jsonl",
                      "contract_nli/validation.jsonl")),
}  # fmt: skip


class Stock:
    """Sound files, made once, and what the commands say of them."""

    def __init__(self, home: Path) -> None:
        self.home, self.sound = home, home / "sound"
        self.sound.mkdir()
        self.count = 0
        self._make()
        tables = self.sound / "results"
        self.files = {name: house.files for name, house in HOUSES.items()}
        for name in ("table", "report"):
            kinds = ("*.json", "*.jsonl") if name == "table" else ("tables/*.json", "scale.json")
            found = [p for kind in kinds for p in tables.rglob(kind)]
            self.files[name] = tuple(sorted({str(p.relative_to(tables)) for p in found}))
        self.said = {}
        for name, house in HOUSES.items():
            with self.copied(name) as (folder, _):
                ended = [run_line(list(a), str(folder), patience=60) for a in house.commands]
                assert all(e.code in (0, 1) for e in ended), (name, ended)
                self.said[name] = _said(name, folder, ended)

    def edits(self) -> st.SearchStrategy[Edit]:
        """Any edit of any file."""
        return st.sampled_from(sorted(self.files)).flatmap(self._edits)

    def _edits(self, house: str) -> st.SearchStrategy[Edit]:
        def of(file: str) -> st.SearchStrategy[Edit]:
            kinds = [*BYTES, *BYTES, *WHOLE]
            if file.endswith((".json", ".jsonl", ".safetensors")):
                kinds += [*FIELDS, *FIELDS, *FIELDS]
            return st.builds(
                Edit, st.just(house), st.just(file), st.sampled_from(kinds),
                st.integers(0, 1 << 20), st.sampled_from(VALUES),
            )  # fmt: skip

        return st.sampled_from(self.files[house]).flatmap(of)

    def copied(self, name: str) -> "Copied":
        """A copy of a house's folder, in a working folder of its own."""
        self.count += 1
        return Copied(self.sound, self.home / f"copy-{self.count}", HOUSES[name].folder)

    def try_edit(self, edit: Edit) -> str:
        """Apply the edit, run the commands, judge; how it ended, in a word."""
        of = HOUSES[edit.house]
        with self.copied(edit.house) as (folder, house):
            apply(edit, house / edit.file)
            ended = []
            for args in of.commands:
                ended.append(run_line(list(args), str(folder), patience=of.patience))
                judge(ended[-1], f"{edit!r}  # chacal {' '.join(args)}")
            if all(e.code == 0 for e in ended) and edit.file.endswith(".safetensors"):
                said = _said(edit.house, folder, ended)
                if said != self.said[edit.house]:
                    raise Found(
                        f"{edit!r}\nanother result without a word: {said}; sound files give "
                        f"{self.said[edit.house]}",
                        f"silent {edit.house} {edit.how}",
                    )
        return "/".join(str(e.code) for e in ended)

    def _make(self) -> None:
        def make(*args: str) -> None:
            ended = run_line(list(args), str(self.sound), patience=300)
            assert ended.code in (0, 1), ended

        make(*CHAINS, "--steps", "2", "--out", "run")
        shutil.copytree(self.sound / "run", self.sound / "half")
        (self.sound / "half" / "result.json").unlink()
        config = self.sound / "half" / "config.json"
        data = json.loads(config.read_text())
        data["train"]["steps"] = 4
        config.write_text(json.dumps(data, indent=2))
        bundled = Path(chacal.__file__).parent / "checkpoints" / "boxes"
        shutil.copytree(bundled, self.sound / "boxes")
        make(*TABLE)
        for name, files in _written().items():
            for file, text in files.items():
                path = self.sound / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        _make_tokenizer(self.sound / "labelled" / "tokenizer.json")
        _make_hf(self.sound)


class Copied:
    """A working folder while it is needed."""

    def __init__(self, sound: Path, to: Path, name: str) -> None:
        self.sound, self.to, self.name = sound, to, name

    def __enter__(self) -> tuple[Path, Path]:
        shutil.copytree(self.sound / self.name, self.to / self.name)
        return self.to, self.to / self.name

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.to)


def apply(edit: Edit, path: Path) -> None:
    """Change a file."""
    data, at = path.read_bytes(), edit.where
    if edit.how in WHOLE:
        path.unlink()
        if edit.how == "folder":
            path.mkdir()
        elif edit.how == "loop":
            path.symlink_to(path.name)
        elif edit.how != "no file":
            text = {"empty": b"", "not text": b"\xff\xfe\0x", "json": dumps(edit.value)}
            path.write_bytes(text[edit.how])
    elif edit.how in BYTES:
        path.write_bytes(_change_bytes(edit.how, data, at))
    elif path.suffix == ".safetensors":
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        # the progress is JSON within JSON, and half of the edits are of it
        inner = at % 2 and "progress" in header.get("__metadata__", {})
        told = json.loads(header["__metadata__"]["progress"]) if inner else header
        told = change(told, edit.how, at // 2, edit.value)
        if inner:
            header["__metadata__"]["progress"] = dumps(told).decode("utf-8", "surrogatepass")
            told = header
        new = dumps(told)
        path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + size :])
    elif path.suffix == ".jsonl":
        lines = data.splitlines(keepends=True)
        i = at % len(lines)
        told = change(json.loads(lines[i]), edit.how, at // len(lines), edit.value)
        lines[i] = dumps(told) + b"\n"
        path.write_bytes(b"".join(lines))
    else:
        path.write_bytes(dumps(change(json.loads(data), edit.how, at, edit.value)))


def _change_bytes(how: str, data: bytes, at: int) -> bytes:
    i = at % max(len(data), 1)
    if how == "flip":
        return data[:i] + bytes([data[i] ^ 1 << at % 8]) + data[i + 1 :]
    if how == "cut":
        return data[:i]
    if how == "insert":
        return data[:i] + bytes([at % 256, 0xE2]) + data[i:]
    if how == "zeros":
        return data[:i] + bytes(min(64, len(data) - i)) + data[i + 64 :]
    lines = data.splitlines(keepends=True)
    i = at % len(lines)
    if how == "line gone":
        del lines[i]
    elif how == "line twice":
        lines.insert(i, lines[i])
    else:
        lines[0], lines[i] = lines[i], lines[0]
    return b"".join(lines)


def change(data: Any, how: str, at: int, value: Any) -> Any:
    """JSON data with one of its values changed, by its number."""
    data = copy.deepcopy(data)
    places = [(data, key) for key in _keys(data)]
    for box, key in places:  # grows while it is walked
        places += [(box[key], inner) for inner in _keys(box[key])]
    if not places:
        return value
    box, key = places[at % len(places)]
    if how == "value":
        box[key] = value
    elif how == "gone":
        del box[key]
    elif isinstance(box, list):
        box.insert(key, value)
    else:
        old = box[key]
        if how == "renamed":
            del box[key]
        box[f"{key}x"] = old
    return data


def _keys(data: Any) -> Iterator[Any]:
    return iter(
        data if isinstance(data, dict) else range(len(data) if isinstance(data, list) else 0)
    )


def dumps(data: Any) -> bytes:
    """As JSON, with nests and long words in the place of their names."""
    nest = "[" * 20_000 + "]" * 20_000
    return json.dumps(data).replace(json.dumps(DEEP), nest).replace(LONG, "x" * 3000).encode()


def _said(name: str, folder: Path, ended: list[Ended]) -> Any:
    """What a command found, but for times and places."""
    if name in ("eval", "hf"):
        return json.loads(ended[0].stdout)["metrics"]
    if name == "inspect":
        told = json.loads(ended[0].stdout)
        return {key: told[key] for key in told if key not in ("files", "seconds")}
    if name == "track":
        return ended[0].stdout
    if name in ("resume", "init"):
        result = json.loads(
            (folder / {"resume": "half", "init": "new"}[name] / "result.json").read_text()
        )
        return result["valid"], result["test"], result["steps"]
    return None


def _written() -> dict[str, dict[str, str]]:
    state = "Box 0 contains the letter, Box 1 is empty, Box 2 contains the big book."
    row = {
        "sentence": f"{state} Move the big book from Box 2 to Box 1. Box 1 contains the big book.",
        "sentence_masked": f"{state} Move the big book from Box 2 to Box 1. Box 1 <extra_id_0> .",
        "masked_content": "<extra_id_0> contains the big book", "sample_id": "7", "numops": 1,
    }  # fmt: skip
    boxes = "".join(json.dumps(row) + "\n" for _ in range(3))
    labelled = "".join(json.dumps({"text": f"x = {i}", "label": i % 2}) + "\n" for i in range(4))
    nli = {
        "id": "1",
        "pid": "1_0",
        "input": "It is so.\n\nThis is a contract.",
        "output": "Entailment",
    }
    return {
        "data": dict.fromkeys(("train-t5.jsonl", "dev-t5.jsonl", "test-t5.jsonl"), boxes),
        "labelled": {"train.jsonl": labelled, "valid.jsonl": labelled},
        "text": {"train.txt": "to be or not to be\n" * 40, "valid.txt": "to be or not\n" * 20},
        "stories": {"stories.txt": f"{STORY}\n\n{STORY}\n"},
        "scrolls/contract_nli": dict.fromkeys(
            ("train.jsonl", "validation.jsonl"), (json.dumps(nli) + "\n") * 3
        ),
    }


def _make_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>"]
    made.train_from_iterator(["x = 1 is so"], trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    made.save(str(path))


def _make_hf(sound: Path) -> None:
    """A GPT-2 from a saved folder that has classified, and a BART that has read SCROLLS."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from chacal.tasks import Labelled, Scrolls
    from chacal.training.config import RunConfig, TrainConfig
    from chacal.training.loop import train
    from chacal.training.transformers_model import TransformersConfig

    settings = TrainConfig(steps=1, batch_size=2, eval_every=1)
    sizes = {"width": 8, "heads": 2, "depth": 1, "mlp_ratio": 1.0}
    before = os.getcwd()
    os.chdir(sound)  # a run's configuration names its files as they were given
    try:
        config = GPT2Config(vocab_size=300, n_positions=32, n_embd=8, n_head=2, n_layer=1,
                            bos_token_id=None, eos_token_id=None)  # fmt: skip
        GPT2LMHeadModel(config).save_pretrained("hf/model")
        for name in ("train.jsonl", "valid.jsonl"):
            shutil.copy(f"labelled/{name}", f"hf/{name}")
        task = Labelled(train_file="hf/train.jsonl", valid_file="hf/valid.jsonl",
                        test_file="hf/valid.jsonl", max_tokens=16)  # fmt: skip
        model = TransformersConfig(operator="chacal", pretrained="hf/model")
        train(RunConfig(task=task, model=model, train=settings), "hf/run", quiet=True)
        scrolls = Scrolls(data="scrolls", input_tokens=16, output_tokens=8)
        model = TransformersConfig(architecture="bart", **sizes)
        train(RunConfig(task=scrolls, model=model, train=settings), "scrolls/run", quiet=True)
    finally:
        os.chdir(before)
