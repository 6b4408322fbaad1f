"""`chacal inspect`: the matrices are those the model used, the shares exact, the pictures there."""

import json
import struct
import sys
import zlib

import numpy as np
import pytest
import torch

import chacal
from chacal.commands.inspect import inspect_run
from chacal.nn import Transformer
from chacal.nn.views import block_mass, matrices, top_mass, view_layers, window_mass
from chacal.report.pictures import pool_max
from chacal.tasks import TASKS
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.loop import train

FLOAT32 = 2e-6
TASK = TASKS["chains"](blocks=4, block_size=5)
OPERATORS = ("dense", "chacal", "block/3")

BY_HAND = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0],
        [0.25, 0.75, 0.0, 0.0],
        [0.5, 0.25, 0.25, 0.0],
        [0.125, 0.125, 0.25, 0.5],
    ]
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps."""
    config = RunConfig(
        task=TASK,
        model=ModelConfig(operators=OPERATORS, width=16, heads=2, positions="factorised"),
        train=TrainConfig(steps=2, batch_size=4, eval_examples=4, test_examples=4),
    )
    folder = tmp_path_factory.mktemp("inspect") / "run"
    train(config, folder, quiet=True)
    return folder


def example_tokens(seed):
    return TASK.show(TASK.batch("test", seed, 0, 1).tokens[0])


def is_png(path):
    """Whether every chunk of a PNG is whole and its pixels unpack."""
    data = path.read_bytes()
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return False
    at, pixels, kind = 8, b"", b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        (crc,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        if zlib.crc32(kind + body) != crc:
            return False
        pixels += body if kind == b"IDAT" else b""
        at += 12 + size
    return kind == b"IEND" and len(zlib.decompress(pixels)) > 0


@pytest.mark.parametrize(
    ("size", "blocks", "window"),
    [
        (1, 2.5 / 4, 2.5 / 4),
        (2, (1 + 1 + 0.25 + 0.75) / 4, (1 + 1 + 0.5 + 0.75) / 4),
        (3, (1 + 1 + 1 + 0.5) / 4, (1 + 1 + 1 + 0.875) / 4),
        (4, 1, 1),
        (9, 1, 1),
    ],
)
def test_mass_in_blocks_and_windows_by_hand(size, blocks, window):
    assert block_mass(BY_HAND, size).item() == blocks
    assert window_mass(BY_HAND, size).item() == window


@pytest.mark.parametrize(
    ("count", "share"), [(1, 2.75 / 4), (2, 3.5 / 4), (3, 3.875 / 4), (4, 1), (16, 1)]
)
def test_mass_of_the_largest_keys_by_hand(count, share):
    assert top_mass(BY_HAND, count).item() == share


def test_shares_are_of_each_head_and_of_its_own_mass():
    # a head that pays out half as much keeps its shares
    A = torch.stack([BY_HAND, torch.eye(4), BY_HAND / 2])
    assert block_mass(A, 2).tolist() == [0.75, 1, 0.75]
    assert window_mass(A, 2).tolist() == [0.8125, 1, 0.8125]
    assert top_mass(A, 1).tolist() == [0.6875, 1, 0.6875]


def qk(n=23, d=6):
    return torch.randn(2, n, d, dtype=torch.float64), torch.randn(2, n, d, dtype=torch.float64)


@pytest.mark.parametrize("text", ["dense", "chacal", "block/3", "chacal,diagonal=drop"])
def test_A_is_the_dense_softmax(text):
    q, k = qk()
    A, _ = matrices(chacal.parse_operator(text), q, k)
    expected = chacal.attention_weights(q, k)
    torch.testing.assert_close(A, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", ["window@5", "local@5"])
def test_A_of_a_window_is_the_banded_softmax(text):
    q, k = qk()
    A, _ = matrices(chacal.parse_operator(text), q, k)
    t = torch.arange(23)
    seen = (t[:, None] >= t) & (t[:, None] - t < 5)
    scores = (q @ k.mT / 6**0.5).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(A, scores.softmax(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "dense",
        "local@5",
        "bigbird@5",
        "chacal",
        "chacal,top_k=3",
        "block@4",
        "window@5",
        "pooled@4",
        "pattern",
        "delta",
    ],
)
def test_rows_of_A_are_causal_and_sum_to_one(text):
    q, k = qk()
    A, S = matrices(chacal.parse_operator(text), q, k)
    torch.testing.assert_close(A.sum(-1), torch.ones(2, 23, dtype=A.dtype), rtol=0, atol=1e-12)
    assert not A.triu(1).any()
    assert (S is None) == (text.split("@")[0] in ("dense", "local", "bigbird"))


@pytest.mark.parametrize(
    "text", ["chacal", "window@5", "pooled@4", "pattern", "chacal,diagonal=drop"]
)
@pytest.mark.parametrize("gamma", [None, 0.3])
def test_S_is_the_resolvent_of_A(text, gamma):
    q, k = qk()
    A, S = matrices(chacal.parse_operator(text), q, k, gamma)
    I = torch.eye(23, dtype=A.dtype).expand_as(A)
    diagonal = "drop" if "drop" in text else "keep"
    expected = chacal.resolvent(A, I, 0.9 if gamma is None else gamma, diagonal)
    torch.testing.assert_close(S, expected, rtol=0, atol=1e-12)


def test_S_of_block_chacal_is_algorithm_1():
    q, k = qk()
    A, S = matrices(chacal.parse_operator("block@4"), q, k)
    expected = chacal.blockwise(A, torch.eye(23, dtype=A.dtype).expand_as(A), 0.9, 4)
    torch.testing.assert_close(S, expected, rtol=0, atol=1e-12)


def test_views_are_what_the_model_computed():
    model = Transformer(
        vocab_size=9, num_classes=3, operators=("dense", "chacal"), width=16, heads=2,
        learn_gamma=True,
    ).eval()  # fmt: skip
    model.blocks()[1].attention.gamma_logit.data = torch.tensor([-1.0, 2.0])
    tokens = torch.randint(9, (1, 17))
    seen = []
    for layer in model.blocks():
        layer.attention.register_forward_hook(lambda module, x, y: seen.append((x[0], y)))
    views = view_layers(model, tokens)
    assert views[0].gamma is None
    assert views[1].gamma == pytest.approx([1 / (1 + np.e), 1 / (1 + np.exp(-2))])
    for layer, view, (x, y) in zip(model.blocks(), views, seen, strict=True):
        v = layer.attention.project(x)[2]
        S = view.A if view.S is None else view.S
        Y = layer.attention.out((S @ v[0]).transpose(0, 1).flatten(1))
        torch.testing.assert_close(Y, y[0], rtol=0, atol=FLOAT32)
    # the hooks are gone
    assert not any(layer.attention._forward_pre_hooks for layer in model.blocks())


def test_inspect_writes_pictures_and_figures(run, tmp_path, capsys):
    out = tmp_path / "new" / "pictures"
    result = inspect_run(run, out=out, examples=3, as_json=True)
    assert json.loads(capsys.readouterr().out) == result
    names = ["attention-layer1.png", "attention-layer2.png", "attention-layer3.png", "mass.png"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert result["files"] == [str(out / name) for name in names]
    assert all(is_png(out / name) for name in names)
    assert result["operators"] == list(OPERATORS)
    assert result["gamma"] == [None, [0.9] * 2, [0.9] * 2]
    assert result["example"] == {"length": 20, "tokens": example_tokens(seed=0)}
    assert [mass["name"] for mass in result["mass"]] == [
        "layer 1: dense", "layer 2: chacal", "layer 3: block/3", "uniform attention",
    ]  # fmt: skip
    for mass, heads in zip(result["mass"], result["mass_by_head"], strict=False):
        for kind in ("blocks", "windows", "top"):
            for name, share in mass[kind].items():
                mean = sum(head[kind][name] for head in heads) / len(heads)
                assert share == pytest.approx(mean, abs=1e-12)
    # n = 20: of uniform attention a row's first key holds 1/(t+1)
    uniform = result["mass"][-1]
    harmonic = sum(1 / t for t in range(1, 21)) / 20
    assert uniform["top"]["1"] == pytest.approx(harmonic, abs=1e-6)
    assert uniform["blocks"]["1"] == pytest.approx(harmonic, abs=1e-6)
    assert uniform["windows"]["1"] == pytest.approx(harmonic, abs=1e-6)
    assert list(uniform["blocks"]) == ["1", "2", "4", "8", "16", "n//8", "n//4", "n//3", "n//2"]
    assert uniform["blocks"]["n//8"] == uniform["blocks"]["2"]


def test_inspect_prints_tables_and_writes_into_the_run(run, capsys):
    result = inspect_run(run, examples=1, seed=3)
    printed = capsys.readouterr().out
    for text in (
        "inside diagonal blocks",
        "inside a sliding window",
        "layer 2, head 2",
        "mass.png",
    ):
        assert text in printed
    assert f"{100 * result['mass'][1]['blocks']['n//3']:.1f}" in printed
    assert is_png(run / "attention-layer2.png")
    assert result["example"]["tokens"] == example_tokens(seed=3) != example_tokens(seed=0)


def test_missing_matplotlib_is_said_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"needs matplotlib: install the extra 'plot'"):
        inspect_run(run, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_bad_arguments_are_named(run, tmp_path):
    with pytest.raises(ValueError, match="examples is 0"):
        inspect_run(run, examples=0)
    with pytest.raises(ValueError, match="holds no run"):
        inspect_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; expected a folder"):
        inspect_run(run, out=tmp_path / "file")


def test_pooled_cells_keep_the_largest_weight():
    weights = np.arange(25.0).reshape(5, 5)
    assert pool_max(weights, 2).tolist() == [[6, 8, 9], [16, 18, 19], [21, 23, 24]]
    assert pool_max(weights, 1).tolist() == weights.tolist()
