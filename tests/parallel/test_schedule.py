"""One order for all ranks: nothing waits in a circle, and with enough chunks ranks mostly work."""

import itertools

import pytest

from chacal.operators import parse_operator
from chacal.parallel.attention import method_of
from chacal.parallel.chunk import Shape
from chacal.parallel.schedule import Task
from chacal.parallel.sharded import program_of

OPERATORS = ["chacal", "window@16", "routed@8,routes=2"]


def program(operator, ranks, chunks, length=64, backward=False):
    shape = Shape(1, (length,) * ranks, 8, 8)
    method = method_of(parse_operator(operator), shape.n)
    return program_of([(method, shape)] * chunks, backward=backward)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_message_stands_between_what_makes_it_and_what_needs_it(operator, ranks, backward):
    made = program(operator, ranks, 2 * ranks, backward=backward)
    order = made.order()
    assert len(order) == len(made.tasks) + len(made.messages) == len(set(order))
    at = {event: i for i, event in enumerate(order)}
    for message in made.messages:
        assert message.after is None or at[message.after] < at[message]
        assert message.after is None or message.after.rank == message.source
        assert at[message] < at[message.before]
        assert message.before.rank == message.target != message.source
    for before, task in made.needs:
        assert at[before] < at[task]
        assert before.rank == task.rank


def test_what_a_task_leaves_is_sent_before_the_next_task_of_its_rank():
    # a state has room for one result
    for backward, operator in itertools.product((False, True), OPERATORS):
        made = program(operator, 4, 16, backward=backward)
        last: dict[int, Task] = {}
        for event in made.order():
            if isinstance(event, Task):
                last[event.rank] = event
            elif event.after is not None:
                own = [event.after.rank, event.after.chunk]
                now = last[event.source]
                assert now is event.after or own != [now.rank, now.chunk] or now.kind != "see"


@pytest.mark.parametrize(
    ("operator", "ranks"),
    [
        ("chacal", 2),
        ("chacal", 8),
        ("window@16", 2),
        ("window@16", 64),
        ("routed", 2),
        ("routed", 8),
    ],
)
def test_with_four_chunks_per_rank_at_least_seven_tenths_are_work(operator, ranks):
    for backward in (False, True):
        made = program(operator, ranks, 4 * ranks, length=1024, backward=backward)
        assert made.work_share(ranks) >= 0.7


def test_one_chunk_leaves_ranks_waiting():
    assert program("window@16", 8, 1).work_share(8) == pytest.approx(1 / 8)


def test_a_slow_line_costs():
    quick, slow = (program("window@16", 4, 16).work_share(4, delay) for delay in (0.0, 10.0))
    assert slow < quick
