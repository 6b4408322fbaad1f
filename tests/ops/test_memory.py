"""Nothing n x n is held: every tensor made, forward and backward, is watched.

All in plain PyTorch, since what the compiled library holds is no tensor; its room is limited in
tests/native.
"""

import pytest
import torch
from cases import draw_qkv, leaves
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import chacal
from chacal.native import resolvent

N = 4096


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(resolvent, "fits", lambda *_: False)


class Watch(TorchDispatchMode):
    """The largest tensor made, and the most bytes alive at once, while this is on."""

    def __init__(self):
        super().__init__()
        self.largest = 0
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self._alive = {key: x for key, x in self._alive.items() if not x[0].expired()}
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                self.largest = max(self.largest, storage.nbytes() // x.element_size())
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return out


def watched(text: str, d_v: int, n: int = N) -> Watch:
    inputs = leaves(*draw_qkv(1, n=n, d=4, d_v=d_v, dtype=torch.float32))
    with Watch() as watch:
        Y = chacal.parse_operator(text)(*inputs)
        torch.autograd.grad(Y.sum(), inputs)
    return watch


def test_the_watch_sees_a_matrix_that_is_there():
    watch = watched("chacal,top_k=4", 4, n=256)  # pruning needs A in full
    assert watch.largest >= 256 * 256
    assert watch.peak >= 2 * 256 * 256 * 4


@pytest.mark.parametrize("d_v", [4, 3])
@pytest.mark.parametrize(
    "text", ["chacal", "chacal,diagonal=drop", "block@256", "block/3,rows=mean", "delta"]
)
def test_the_exact_operators_hold_no_matrix(text, d_v):
    watch = watched(text, d_v)
    assert watch.largest < N * N / 32
    assert watch.peak < N * N * 4 / 8


@pytest.mark.parametrize("d_v", [4, 3])
@pytest.mark.parametrize(
    "text",
    ["window@64", "window@64,diagonal=drop", "pooled@64", "pooled@64,near=0", "pooled"],
)
def test_the_subquadratic_operators_hold_little_more_than_their_inputs(text, d_v):
    watch = watched(text, d_v)
    assert watch.largest <= 4 * N
    # q, k, v, their gradients and a few of that size; a window of scores a row would be 32 of them
    assert watch.peak < 20 * (4 * N * 4)


@pytest.mark.parametrize("d_v", [4, 3])
@pytest.mark.parametrize("text", ["routed", "routed@32,near=0,routes=2"])
def test_the_routed_operator_holds_no_scores_of_chosen_tiles(text, d_v):
    watch = watched(text, d_v)
    # those of all rows would be 64 of N, or of few rows against all tiles 16
    assert watch.largest <= 12 * N
    assert watch.peak < 20 * (4 * N * 4)


@pytest.mark.parametrize(("text", "keys"), [("pattern", 13), ("pattern,offsets=squares", 65)])
@pytest.mark.parametrize("d_v", [4, 3])
def test_patterns_hold_one_number_per_key_seen(text, keys, d_v):
    # of 4,096 rows one sees itself and 12 powers of 2, or itself and 64 squares
    watch = watched(text, d_v)
    # the band of 8 tiles is as large for any n
    assert watch.largest <= max(keys * N, 8 * 64 * 128)
    # P, dS and one product of the two, beside q, k, v, their gradients and a few of that size
    assert watch.peak < (4 * keys + 20 * 4) * N * 4


@pytest.mark.parametrize("text", ["local@32", "bigbird@32"])
def test_the_baselines_hold_windows_only(text):
    # 2 · 32 scores a token, and as many gathered keys
    watch = watched(text, 3)
    assert watch.largest <= 2 * 40 * 4 * N
    assert watch.peak < N * N * 4 / 4


@pytest.mark.parametrize("text", ["window@64", "pattern,offsets=1+100", "local@32", "bigbird@32"])
def test_linear_operators_grow_linearly(text):
    assert watched(text, 3).peak < 2.2 * watched(text, 3, n=N // 2).peak


def beyond(text: str, n: int) -> int:
    """Bytes at most alive beside inputs, Y, its gradient and theirs; two heads of 64."""
    *inputs, dY = leaves(*(torch.randn(2, n, 64) for _ in range(4)))
    with Watch() as watch:
        torch.autograd.grad(chacal.parse_operator(text)(*inputs), inputs, dY.detach())
    # the watch sees views of the four that are given; four more are made
    return watch.peak - 2 * sum(x.numel() * x.element_size() for x in (*inputs, dY))


@pytest.mark.parametrize(
    ("text", "numbers"),
    # a log-sum-exp, in two units; four means of 64 for every 32 rows; a chosen tile and places
    # in groups, of which the numbers are twice as long
    [("window@32", 1), ("window@32,diagonal=drop", 2), ("pooled@32", 9), ("routed@32", 8)],
)
def test_nothing_as_long_as_the_inputs_is_held_beside_outputs_and_gradients(text, numbers):
    # of two lengths, the longer one's excess: what does not grow is of no interest
    assert beyond(text, 8192) - beyond(text, 4096) <= 4096 * 2 * 4 * numbers


def test_exact_chacal_saves_its_inputs_output_and_one_number_a_row():
    inputs = leaves(*draw_qkv(1, n=N, d=4, d_v=3))
    with Watch() as watch:
        Y = chacal.resolvent_attention(*inputs)
        kept = sum(x[1] for x in watch._alive.values() if not x[0].expired())
    # Y, the log-sum-exps, and room for views of what was there before
    before = sum(x.untyped_storage().nbytes() for x in inputs)
    assert kept <= before + 2 * Y.untyped_storage().nbytes() + N * 8 + 1024
