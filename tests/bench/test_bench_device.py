"""On a card its own clock counts; without one, that is said. No card is needed to see it."""

import pytest
import torch

from chacal.bench import decode, ops
from chacal.bench.timing import interleave, machine, place


class Queue:
    """A card as `torch.cuda` shows it: work is done when somebody waits for it."""

    def __init__(self):
        self.clock, self.waiting = 0.0, []

    def ask(self, milliseconds):
        self.waiting.append(milliseconds)

    def synchronize(self):
        for what in self.waiting:
            if isinstance(what, Mark):
                what.at = self.clock
            else:
                self.clock += what
        self.waiting.clear()


class Mark:
    def __init__(self, queue):
        self.queue, self.at = queue, None

    def record(self):
        self.queue.waiting.append(self)

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def card(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Mark(queue))
    monkeypatch.setattr(torch.cuda, "synchronize", queue.synchronize)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 2**34))
    return queue


def test_a_cards_own_clock_counts_and_nothing_of_the_one_before(card):
    def quick():
        card.ask(3.0)

    def slow():
        card.ask(250.0)
        card.ask(250.0)

    found = interleave({"quick": quick, "slow": slow}, rounds=3, device="cuda")
    assert found["quick"].seconds == pytest.approx([0.003] * 3)
    assert found["slow"].seconds == pytest.approx([0.5] * 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_benches_run_as_on_a_card(card, monkeypatch, dtype):
    for module in (ops, decode):
        monkeypatch.setattr(module, "place", lambda device: torch.device("cpu"))
    plain = torch.nn.functional.scaled_dot_product_attention
    given = []

    def watched(q, k, v, **options):
        given.append(q.dtype)
        card.ask(2.0)
        return plain(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    options = {"heads": 1, "width": 4, "rounds": 1, "device": "cuda", "dtype": dtype}
    rows = ops.measure(["window@4"], [16], **options)
    assert [(row.operator, row.seconds) for row in rows] == [("sdpa", 0.002), ("window@4", 0)]
    rows = decode.measure(["window@4"], [16], **options)
    assert rows[0].seconds == pytest.approx(0.002)
    assert set(given) == {getattr(torch, dtype)}


def test_what_was_measured_on_is_told(card):
    assert machine(1, "cuda")["gpu"] == "a card"
    assert "gpu" not in machine(1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_that_is_said():
    for measure in (ops.measure, decode.measure):
        with pytest.raises(ValueError, match=r"^no CUDA device; expected --device cpu"):
            measure(["chacal"], [16], device="cuda")
    assert place("cpu") == torch.device("cpu")
