"""Tiles wait for each other and never for ever, whichever program runs when.

In the interpreter one program runs to its end before the next. Here programs are threads instead,
that sleep for a while after they took their ticket, so that later ones overtake them and have to
wait.
"""

import dataclasses
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need Triton: pip install chacal[gpu]")

import triton
import triton.language as tl
from test_kernels import SINGLE, call_of, inputs, oracle

from chacal.kernels import backward, forward, resolvent
from chacal.kernels.configs import Config
from chacal.kernels.tile import take_ticket


@triton.jit
def tickets_kernel(ticket, out, tiles, pairs, chunk):
    number = tl.load(ticket)
    tile, pair = take_ticket(ticket, tiles, pairs, chunk)
    tl.store(out + 2 * number, tile)
    tl.store(out + 2 * number + 1, pair)


pytestmark = pytest.mark.skipif(
    not resolvent.INTERPRETING, reason="on a card programs run side by side anyway"
)


@pytest.fixture
def in_threads(monkeypatch):
    """Programs as threads, so many at once; counts how often one had to wait."""
    from triton.runtime.interpreter import _patch_lang

    waited = []

    def use(at_once, seed):
        lock, chance = threading.Lock(), random.Random(seed)

        alone = resolvent.Launch.__call__

        def launch(self, kernel, *arguments):
            if "ticket" not in kernel.arg_names:  # nothing waits in it
                return alone(self, kernel, *arguments)
            options = {name: x for name, x in self.options.items() if name in kernel.arg_names}
            # what the interpreter patches, it restores after each program: keep it all the while
            scope = _patch_lang(kernel.fn)
            try:
                with ThreadPoolExecutor(at_once) as pool:
                    runs = [
                        pool.submit(kernel[(1,)], *arguments, **options)
                        for _ in range(self.programs)
                    ]
                for run in runs:
                    run.result()
            finally:
                scope.restore()

        def slow_ticket(take):
            def ticket(*arguments):
                with lock:  # the interpreter's atomics are a card's, but not Python's
                    mine = take(*arguments)
                    pause = chance.random() / 20
                time.sleep(pause)
                return mine

            return ticket

        def counted(wait):
            def counting(done, least):
                if int(tl.load(done)) < int(least):
                    waited.append(least)
                while int(tl.load(done)) < int(least):
                    time.sleep(1e-4)
                return wait(done, least)

            return counting

        monkeypatch.setattr(resolvent.Launch, "__call__", launch)
        for module in (forward, backward):
            monkeypatch.setattr(module, "take_ticket", slow_ticket(module.take_ticket))
            monkeypatch.setattr(module, "wait", counted(module.wait))
        return waited

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield use
    sys.setswitchinterval(interval)


def both_passes(q, k, v, gamma, call, *lists):
    Y, Z, lse = resolvent.forward(q, k, v, gamma, call, *lists)
    return Y, *resolvent.backward(torch.ones_like(Y), q, k, v, gamma, Y, Z, lse, call, *lists)


CU = torch.tensor([0, 75, 110], dtype=torch.int32)
# rows of block 5 choose block 0, ..., in blocks of 11 with one near
CHOSEN = torch.tensor([-1, -1, 0, 0, 1, 0, 3, 2, 1, 7], dtype=torch.int32)


@pytest.mark.parametrize("at_once", [2, 5])
@pytest.mark.parametrize("how", ["exact", "packed", "routed"])
def test_programs_that_overtake_each_other_wait(at_once, how, in_threads, poison):
    q, k, v, gamma = inputs(110, heads=1, key_heads=1)
    call = call_of(q)
    lists = [CU] if how == "packed" else []
    if how == "routed":
        call = dataclasses.replace(call, block=11, near=1, config=Config(tile=16, warps=4))
        lists = [None, CHOSEN.repeat_interleave(11).view(1, 1, 110, 1)]
    in_order = both_passes(q, k, v, gamma, call, *lists)
    waited = in_threads(at_once, seed=at_once)
    for _ in range(10):  # threads may happen to run in the order of their tickets
        for one, other in zip(in_order, both_passes(q, k, v, gamma, call, *lists), strict=True):
            # dq is added up in another order
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
        if waited:
            break
    assert waited, "no program had to wait: nothing was tried"


@pytest.mark.parametrize("pairs_at_once", [1, 2, 3])
def test_tickets_may_go_head_by_head(pairs_at_once):
    q, k, v, gamma = inputs(70, heads=3, key_heads=3, d=16)
    call = call_of(q, pairs_at_once=pairs_at_once)
    Y, *_ = both_passes(q, k, v, gamma, call)
    assert (Y - oracle(q, k, v, gamma)).norm() < SINGLE * Y.norm()


@pytest.mark.parametrize(("tiles", "pairs", "chunk"), [(3, 5, 2), (4, 3, 3), (2, 7, 64), (5, 4, 1)])
def test_every_tile_has_one_ticket_and_comes_after_those_it_waits_for(tiles, pairs, chunk):
    ticket = torch.zeros(1, dtype=torch.int32)
    out = torch.zeros(tiles * pairs, 2, dtype=torch.int32)
    tickets_kernel[(tiles * pairs,)](ticket, out, tiles, pairs, min(chunk, pairs))
    taken = [tuple(row) for row in out.tolist()]
    assert sorted(taken) == [(tile, pair) for tile in range(tiles) for pair in range(pairs)]
    for pair in range(pairs):
        assert [tile for tile, other in taken if other == pair] == list(range(tiles))
