"""One sequence over several processes of this machine, against one process that has it alone.

Every rank times its own part, forward and backward; what it stands still for others, in messages
and at the end, is waiting, and the rest is work. One process has its turn in between, while the
others stand still. What no machine here can show, more processes, is a model: the schedule that
ranks really follow (parallel/schedule.py), simulated with costs that are counted, seconds that were
measured, and a line whose speed is given.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from chacal._memory import check_fits
from chacal.bench.timing import Timed, check_threads, interleave, together
from chacal.operators import parse_operator
from chacal.ops.inputs import check_count
from chacal.parallel.attention import check_shardable, method_of, sharded_attention, whole_tiles
from chacal.parallel.chunk import Shape
from chacal.parallel.context import even_lengths
from chacal.parallel.link import Processes
from chacal.parallel.routed import Routed
from chacal.parallel.schedule import Program
from chacal.parallel.sharded import CHUNKS, cut, program_of

DEFAULT_OPERATORS = ("chacal", "window@64", "routed@64")
FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of the text."""

    length: int
    heads: int
    width: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Row(Timed):
    """One operator: forward and backward over the processes, and over one."""

    processes: int
    bytes_per_token: float
    """Sent by all ranks together."""
    waiting: float
    """Share of the ranks' time."""
    models: tuple[tuple[int, float], ...] = ()
    """MODEL, not measured: (processes, the share of their time that is work)."""

    @property
    def work(self) -> float:
        """The share of the ranks' time that is not waiting."""
        return 1 - self.waiting


def measure(
    operators: Sequence[str],
    sizes: Sizes,
    *,
    processes: int = 2,
    rounds: int = 5,
    threads: int = 1,
    models: Sequence[int] = (8, 64),
    bandwidth: float = 10.0,
    report: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Time operators over processes, in turns with one of them alone.

    Args:
        operators: texts for `parse_operator`.
        sizes: of the text.
        processes: ranks, on this machine.
        rounds: timed calls of each.
        threads: CPU threads of each process.
        models: numbers of processes to model, with as many tokens each and `CHUNKS` heads for each.
        bandwidth: of the modelled line between two processes, in GB/s.
        report: called with each row when all of it is known.

    Returns:
        one row per operator.
    """
    counts = {"processes": processes, "rounds": rounds, **vars(sizes)}
    for name, value in [*counts.items(), *(("model", ranks) for ranks in models)]:
        check_count(name, value)
    check_threads(threads)
    if not bandwidth > 0:
        raise ValueError(f"bandwidth is {bandwidth}; expected a positive number of GB/s")
    if not 2 <= processes <= sizes.length:
        raise ValueError(
            f"processes are {processes}; expected 2 to {sizes.length}, the tokens of the text"
        )
    for text in operators:
        check_shardable(parse_operator(text))
    rows = sizes.batch * sizes.heads * sizes.length
    check_fits(
        f"a text of {sizes.length} with {sizes.batch} x {sizes.heads} heads of {sizes.width}",
        # q, k, v, Y and their gradients, whole and in parts
        FLOAT * 2 * 8 * rows * sizes.width,
        "a shorter text, fewer heads or a smaller batch",
    )
    made = []
    for text in operators:
        with tempfile.TemporaryDirectory() as folder:
            call = partial(
                _one_rank, text=text, sizes=sizes, size=processes, rounds=rounds,
                threads=threads, meeting=str(Path(folder) / "meeting"),
            )  # fmt: skip
            ranks = together(call, processes)
        first = ranks[0]
        row = Row(
            operator=text,
            processes=processes,
            seconds=first.shared,
            ratios=(first.shared / first.alone,),
            rounds=rounds,
            bytes_per_token=sum(rank.sent for rank in ranks) / (sizes.batch * sizes.length),
            waiting=statistics.mean(rank.waiting for rank in ranks),
        )
        shares = [
            (size, _model(text, sizes, processes, size, first.alone, bandwidth))
            for size in (processes, *models)
        ]
        made.append(replace(row, models=tuple(shares)))
        report(made[-1])
    return made


@dataclass(frozen=True)
class _Measured:
    """What one rank found: seconds of both candidates, bytes sent and the share of waiting."""

    alone: float
    shared: float
    sent: float
    waiting: float


def _one_rank(
    rank: int, *, text: str, sizes: Sizes, size: int, rounds: int, threads: int, meeting: str
) -> _Measured:
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    link = Processes(None)
    link.held = True
    operator = parse_operator(text)
    lengths = even_lengths(sizes.length, size)
    generator = torch.Generator().manual_seed(0)
    shape = (sizes.batch, sizes.heads, sizes.length, sizes.width)
    whole = [torch.randn(shape, generator=generator) for _ in range(4)]
    own = [x.split(lengths, 2)[rank].clone() for x in whole]
    *inputs, dY = (x.requires_grad_(i < 3) for i, x in enumerate(own))
    *inputs_alone, dY_alone = (x.requires_grad_(i < 3) for i, x in enumerate(whole))
    calls: list[tuple[float, float, int]] = []

    def alone() -> None:
        if rank == 0:
            torch.autograd.grad(operator(*inputs_alone), inputs_alone, dY_alone)
        dist.barrier()

    def shared() -> None:
        link.traffic.bytes, link.traffic.seconds = 0, 0.0
        begun = time.perf_counter()
        Y = sharded_attention(operator, *inputs, group=link, lengths=lengths)
        torch.autograd.grad(Y, inputs, dY)
        link.flush()
        ended = time.perf_counter()
        dist.barrier()
        now = time.perf_counter()
        waited = link.traffic.seconds + now - ended
        calls.append((waited, now - begun, link.traffic.bytes))

    times = interleave({"alone": alone, "shared": shared}, rounds)
    dist.destroy_process_group()
    timed = calls[1:]  # the first call was to warm up
    return _Measured(
        times["alone"].median,
        times["shared"].median,
        timed[0][2],
        statistics.median(waited / seconds for waited, seconds, _ in timed),
    )


def _model(
    text: str, sizes: Sizes, processes: int, ranks: int, alone: float, bandwidth: float
) -> float:
    """MODEL: the share of work of so many ranks that have as many tokens each as were measured."""
    measured = _programs(text, sizes, processes, sizes.batch * sizes.heads)
    second = sum(task.cost for program in measured for task in program.tasks) / alone
    if ranks == processes:
        programs = measured
    else:
        more = replace(sizes, length=sizes.length // processes * ranks)
        programs = _programs(text, more, ranks, CHUNKS * ranks)
    delay = FLOAT / (bandwidth * 1e9) * second
    work = sum(task.cost for program in programs for task in program.tasks)
    return work / (ranks * sum(program.simulate(delay)[1] for program in programs))


def _programs(text: str, sizes: Sizes, ranks: int, heads: int) -> list[Program]:
    """Both directions, of a text of so many tokens over so many ranks."""
    method = method_of(parse_operator(text), sizes.length)
    lengths = even_lengths(sizes.length, ranks)
    if isinstance(method, Routed):
        lengths = whole_tiles(lengths, method.view.tile)
    chunks = [
        (method, Shape(at.stop - at.start, lengths, sizes.width, sizes.width))
        for at in cut([heads], [lengths], ranks)[0]
    ]
    return [program_of(chunks), program_of(chunks, backward=True)]
