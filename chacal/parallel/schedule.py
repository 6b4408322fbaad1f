"""Who computes what when: tasks of all ranks and the messages between them, in one order for all.

A sharded operator says what is to be done for each chunk (some heads of some sequences): tasks,
each with its rank and its cost, and messages between tasks. Every rank simulates the same run of
all ranks, in which each takes the first task that is ready, earlier chunks before later ones. Out
of it comes one order of all tasks and messages. Each rank does its own part of it. Since a message
stands in that order after what makes it and before what needs it, no two ranks can wait for each
other, whatever a backend buffers; and between two ranks messages go in one order, which NCCL needs.

The same simulation, with times in place of counts, tells what share of a run is work: the model of
`chacal bench context`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

AHEAD = 2
"""A message that waits for no task is sent so many tasks before the one that needs it: early enough
to be there, late enough that few are held."""


@dataclass(frozen=True, eq=False)
class Task:
    """What one rank computes for one chunk.

    Attributes:
        kind: what, to the chunk's method.
        chunk: which.
        rank: who computes it.
        rows, keys: ranks whose rows and keys it is about.
        cost: multiplications, up to a factor; more than 0, if a message comes of it.
    """

    kind: str
    chunk: int
    rank: int
    rows: int
    keys: int
    cost: float


@dataclass(frozen=True, eq=False)
class Message:
    """A tensor for another rank.

    Attributes:
        kind: what, to the chunk's method.
        chunk: which.
        source, target: ranks.
        after: the task that makes it; None for what is there from the beginning.
        before: the task that needs it.
        size: numbers, about.
    """

    kind: str
    chunk: int
    source: int
    target: int
    after: Task | None
    before: Task
    size: float = 0.0


Event = Task | Message


@dataclass(frozen=True)
class Program:
    """All that is to be done for some chunks.

    Attributes:
        tasks: earlier ones are preferred.
        messages: between them.
        needs: for a task, those of the same rank that come before it.
    """

    tasks: Sequence[Task]
    messages: Sequence[Message]
    needs: Sequence[tuple[Task, Task]] = ()

    def simulate(self, delay: float = 0.0) -> tuple[dict[Task, float], float]:
        """When each task starts, and when all are done, if a number takes `delay` on its way."""
        waits = dict.fromkeys(self.tasks, 0)
        follow: dict[Task, list[tuple[Task, float]]] = {task: [] for task in self.tasks}
        for message in self.messages:
            if message.after is not None:
                follow[message.after].append((message.before, delay * message.size))
                waits[message.before] += 1
        for before, task in self.needs:
            follow[before].append((task, 0.0))
            waits[task] += 1
        number = {task: i for i, task in enumerate(self.tasks)}
        start: dict[Task, float] = {}
        ready: dict[int, list[int]] = {task.rank: [] for task in self.tasks}
        busy = dict.fromkeys(ready, False)
        # (time, whether a task ends or becomes ready, its number)
        events = [(0.0, 1, number[task]) for task in self.tasks if not waits[task]]
        heapq.heapify(events)
        latest = dict.fromkeys(self.tasks, 0.0)
        now = 0.0
        while events:
            now = events[0][0]
            ranks = set()
            while events and events[0][0] == now:
                _, becomes_ready, which = heapq.heappop(events)
                task = self.tasks[which]
                ranks.add(task.rank)
                if becomes_ready:
                    heapq.heappush(ready[task.rank], which)
                    continue
                busy[task.rank] = False
                for other, late in follow[task]:
                    latest[other] = max(latest[other], now + late)
                    waits[other] -= 1
                    if not waits[other]:
                        heapq.heappush(events, (latest[other], 1, number[other]))
            for rank in ranks:
                if ready[rank] and not busy[rank]:
                    task = self.tasks[heapq.heappop(ready[rank])]
                    busy[rank], start[task] = True, now
                    heapq.heappush(events, (now + task.cost, 0, number[task]))
        return start, now

    def order(self) -> list[Event]:
        """All tasks and messages, each message after its task and before the one that needs it."""
        start, _ = self.simulate()
        by_rank: dict[int, list[Task]] = {}
        for task in sorted(self.tasks, key=start.__getitem__):
            by_rank.setdefault(task.rank, []).append(task)
        place = {task: i for tasks in by_rank.values() for i, task in enumerate(tasks)}
        at: list[tuple[float, int, int, Event]] = []
        for i, message in enumerate(self.messages):
            if message.after is not None:
                time = start[message.after] + message.after.cost
            else:
                time = start[by_rank[message.target][max(0, place[message.before] - AHEAD)]]
            at.append((time, 0, i, message))
        at += [(start[task], 1, i, task) for i, task in enumerate(self.tasks)]
        return [event for *_, event in sorted(at, key=lambda x: x[:3])]

    def work_share(self, ranks: int, delay: float = 0.0) -> float:
        """The share of all ranks' time that is work."""
        _, end = self.simulate(delay)
        return sum(task.cost for task in self.tasks) / (ranks * end)
