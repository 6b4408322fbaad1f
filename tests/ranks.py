"""Ranks as threads of this process, with queues between them: quick enough for every test."""

import collections
import queue
import threading

import torch

from chacal.parallel.link import Traffic


class Ranks:
    """The queues between all ranks, and who failed."""

    def __init__(self, size):
        self.size = size
        self.queues = {(a, b): queue.Queue() for a in range(size) for b in range(size)}


class ThreadLink:
    def __init__(self, ranks, rank):
        self.ranks, self.rank, self.size = ranks, rank, ranks.size
        self.traffic = Traffic()
        self.held = False
        self.posted = {other: collections.deque() for other in range(self.size)}

    def send(self, x, to):
        assert to != self.rank
        self.traffic.bytes += x.numel() * x.element_size()
        self.ranks.queues[self.rank, to].put(x.detach().clone())

    def receive(self, like, shape, origin):
        coming = Coming(self, origin, like, tuple(shape))
        self.posted[origin].append(coming)
        return coming

    def done(self):
        pass

    def flush(self):
        pass

    def gather(self, x):
        for other in range(self.size):
            self.ranks.queues[self.rank, other].put(x.clone())
        return [self.ranks.queues[other, self.rank].get(timeout=5) for other in range(self.size)]


class Coming:
    """What was asked for first comes first, whatever is waited for."""

    def __init__(self, link, origin, like, shape):
        self.link, self.origin, self.like, self.shape = link, origin, like, shape
        self.x = None

    def wait(self):
        while self.x is None:
            first = self.link.posted[self.origin].popleft()
            first.x = self.link.ranks.queues[self.origin, self.link.rank].get(timeout=5)
        assert self.x.shape == self.shape, f"expected {self.shape}, got {tuple(self.x.shape)}"
        assert self.x.dtype == self.like.dtype
        return self.x


def on_ranks(size, function):
    """function(link) of every rank; what each returned."""
    ranks = Ranks(size)
    results, errors = [None] * size, []

    def work(rank):
        try:
            results[rank] = function(ThreadLink(ranks, rank))
        except BaseException as error:  # raised again by the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, queue.Empty):
            raise error
    if errors:
        raise errors[0]
    left = {pair: q.qsize() for pair, q in ranks.queues.items() if q.qsize()}
    assert not left, f"sent and never received: {left}"
    return results


def shards(x, lengths, dim=-2):
    return [part.clone() for part in torch.split(x, list(lengths), dim)]


def both(operator, q, k, v, lengths, gamma=None, mask=None, cu_seqlens=None, dY=None):
    """(Y, dq, dk, dv, dγ) of ranks, put together, and of one process."""
    from chacal.operators import parse_operator
    from chacal.parallel import sharded_attention

    dY = torch.randn(*v.shape[:-1], v.shape[-1], dtype=v.dtype) if dY is None else dY
    masks = [None] * len(lengths) if mask is None else shards(mask, lengths, -1)
    parts = list(zip(*(shards(x, lengths) for x in (q, k, v, dY)), strict=True))

    def one_rank(link):
        *inputs, dY_own = parts[link.rank]
        inputs = [x.requires_grad_() for x in inputs]
        own = None if gamma is None else gamma.clone().requires_grad_()
        Y = sharded_attention(
            operator, *inputs, group=link, gamma=own, mask=masks[link.rank], cu_seqlens=cu_seqlens
        )
        Y.backward(dY_own)
        return Y.detach(), *(x.grad for x in inputs), None if own is None else own.grad

    found = list(zip(*on_ranks(len(lengths), one_rank), strict=True))
    ranks = [torch.cat(x, -2) for x in found[:4]]
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    own = None if gamma is None else gamma.clone().requires_grad_()
    Y = parse_operator(operator)(*inputs, gamma=own, mask=mask, cu_seqlens=cu_seqlens)
    Y.backward(dY)
    alone = [Y.detach(), *(x.grad for x in inputs)]
    if gamma is not None:
        ranks.append(sum(found[4]))
        alone.append(own.grad)
    return ranks, alone
