"""Whose pulse has stopped is gone, but for who left a note."""

import pytest
import torch.distributed as dist

from chacal.training import pulse
from chacal.training.pulse import Pulse


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(pulse, "BEAT", 0.01)
    monkeypatch.setattr(pulse, "PATIENCE", 0.5)


def test_the_dead_are_named_and_the_first_of_the_living_speaks():
    store = dist.HashStore()
    ranks = [Pulse(store, rank, 4) for rank in range(4)]
    assert ranks[1].lost() == []
    ranks[0].stop()  # as if it were killed
    ranks[2].stop()
    store.set("left/2", "1")  # it had met the error before us
    assert ranks[1].lost() == [0]
    assert ranks[3].lost() == [0]
    assert [ranks[rank].speaks([0]) for rank in (1, 3)] == [True, False]
    for rank in ranks:
        rank.stop()


def test_a_store_that_went_with_its_process():
    class Gone:
        def set(self, key, value):
            pass

        def get(self, key):
            raise RuntimeError("connection reset")

    own = Pulse(Gone(), 1, 2)
    assert own.lost() == [0]
    own.stop()
