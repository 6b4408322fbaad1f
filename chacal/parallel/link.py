"""How tensors get from one rank to another, counted: bytes sent, seconds waited.

Point to point over `torch.distributed`, on whatever backend the group has (gloo and NCCL both do).
What is sent is kept until it has left, and only so many at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

UNDER_WAY = 4
"""Tensors to each other rank that may be under way at once."""


@dataclass
class Traffic:
    """What a rank sent, and how long it stood still for others."""

    bytes: int = 0
    seconds: float = 0.0


class Received(Protocol):
    """A tensor that is on its way."""

    def wait(self) -> Tensor:
        """It, once it is here."""


class Link(Protocol):
    """One rank's way to the others."""

    rank: int
    size: int
    traffic: Traffic
    held: bool

    def send(self, x: Tensor, to: int) -> None:
        """Begin to send; x is not to be changed."""

    def receive(self, like: Tensor, shape: Sequence[int], origin: int) -> Received:
        """Begin to receive a tensor of that shape, and of the dtype and device of `like`."""

    def done(self) -> None:
        """A program is at its end; what was sent may leave later only where someone sees to it."""

    def flush(self) -> None:
        """Wait until all that was sent has left."""

    def gather(self, x: Tensor) -> list[Tensor]:
        """x of every rank, all of one shape."""


class Processes:
    """The ranks of a process group, by their numbers in it.

    Attributes:
        held: whether who holds it calls `flush` in the end: then a layer's last tensors leave while
            the next layer is begun.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.traffic = Traffic()
        self.held = False
        self._sent: deque[tuple[Any, Tensor]] = deque()

    def _whole(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def send(self, x: Tensor, to: int) -> None:
        """See `Link`."""
        x = x.contiguous()
        self.traffic.bytes += x.numel() * x.element_size()
        self._sent.append((dist.isend(x, self._whole(to), self.group), x))
        while len(self._sent) > UNDER_WAY * (self.size - 1):
            self._wait(self._sent.popleft()[0])

    def receive(self, like: Tensor, shape: Sequence[int], origin: int) -> Received:
        """See `Link`."""
        x = like.new_empty(tuple(shape))
        return _Coming(self, dist.irecv(x, self._whole(origin), self.group), x)

    def done(self) -> None:
        """See `Link`."""
        if not self.held:
            self.flush()

    def flush(self) -> None:
        """See `Link`."""
        while self._sent:
            self._wait(self._sent.popleft()[0])

    def gather(self, x: Tensor) -> list[Tensor]:
        """See `Link`."""
        everyone = [torch.empty_like(x) for _ in range(self.size)]
        begun = time.perf_counter()
        dist.all_gather(everyone, x.contiguous(), group=self.group)
        self.traffic.seconds += time.perf_counter() - begun
        return everyone

    def _wait(self, work: Any) -> None:
        begun = time.perf_counter()
        work.wait()
        self.traffic.seconds += time.perf_counter() - begun


@dataclass(frozen=True)
class _Coming:
    link: Processes
    work: Any
    x: Tensor

    def wait(self) -> Tensor:
        self.link._wait(self.work)
        return self.x


def exchange(
    link: Link, like: Tensor, sent: Mapping[int, Tensor], shapes: Mapping[int, Sequence[int]]
) -> dict[int, Tensor]:
    """Send to some ranks and receive from some; tensors by the rank that they came from.

    In the order of pairs of ranks, the same for all of them, as NCCL needs it.
    """
    coming: dict[int, Received] = {}
    for other in range(link.size):
        steps = [("send", other), ("receive", other)]
        for step, rank in steps if link.rank < other else reversed(steps):
            if step == "send" and rank in sent:
                link.send(sent[rank], rank)
            elif step == "receive" and rank in shapes:
                coming[rank] = link.receive(like, shapes[rank], rank)
    return {rank: x.wait() for rank, x in coming.items()}
