"""Where a model stands on a part of the text: inside `context_parallel`, its layers know it.

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "context"))
with context_parallel(mesh["context"], tokens.shape[1]) as part:
    scores = model(part.take(tokens))     # of this rank's tokens
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from chacal.operators import Operator
from chacal.ops.inputs import Gamma, check_count
from chacal.parallel.attention import Group, as_link, sharded_attention
from chacal.parallel.chunk import starts
from chacal.parallel.link import Link


@dataclass(frozen=True)
class Part:
    """This rank's part of a text.

    Attributes:
        link: the way to the other ranks.
        lengths: tokens of every rank.
    """

    link: Link
    lengths: tuple[int, ...]

    @property
    def first(self) -> int:
        """The position of this rank's first token in the text."""
        return starts(self.lengths)[self.link.rank]

    @property
    def length(self) -> int:
        """This rank's tokens."""
        return self.lengths[self.link.rank]

    def take(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of a tensor of the whole text, along `dim`."""
        if x.shape[dim] != sum(self.lengths):
            raise ValueError(
                f"the tensor has {x.shape[dim]} tokens along dimension {dim}; expected those of "
                f"the whole text, {sum(self.lengths)}"
            )
        return x.narrow(dim, self.first, self.length)

    def join(self, x: Tensor, dim: int = 1) -> Tensor:
        """The whole of a tensor of which each rank has its part along `dim`; no gradient."""
        x = x.detach().transpose(0, dim)
        most = x.new_zeros(max(self.lengths), *x.shape[1:])
        most[: self.length] = x
        parts = zip(self.link.gather(most), self.lengths, strict=True)
        return torch.cat([part[:length] for part, length in parts]).transpose(0, dim)

    def attend(
        self,
        operator: Operator,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        gamma: Gamma | None = None,
    ) -> Tensor:
        """`sharded_attention` of this text."""
        return sharded_attention(
            operator, q, k, v, group=self.link, lengths=self.lengths, mask=mask, gamma=gamma
        )


_CURRENT: ContextVar[Part | None] = ContextVar("part", default=None)

_OPEN: list[Part] = []
"""All that are entered in this process, for compilers."""


def current_part() -> Part | None:
    """The part that a surrounding `context_parallel` names."""
    if torch.compiler.is_compiling():
        # a compiler cannot read a context variable, but it sees this list change
        if _OPEN:
            raise NotImplementedError(
                "a model that shares texts was compiled; expected it as it is"
            )
        return None
    return _CURRENT.get()


@contextmanager
def context_parallel(group: Group, length: int | Sequence[int]) -> Iterator[Part]:
    """Layers called inside stand on this rank's part of a text.

    Every rank of the group enters with the same length, calls the same layers, and, for gradients,
    backward; what its loss does not need is still waited for by others, so every rank's loss must
    depend on its outputs, if only with weight 0.

    Args:
        group: the ranks in the order of the text: a process group, one dimension of a
            `DeviceMesh`, or None for all.
        length: tokens of the whole text, at least one for each rank, of which the first n mod P
            ranks have one more than the others; or the tokens of every rank.

    Yields:
        this rank's part.
    """
    link = as_link(group)
    lengths = even_lengths(length, link.size) if isinstance(length, int) else tuple(length)
    if len(lengths) != link.size or min(lengths) < 1:
        raise ValueError(
            f"lengths are {', '.join(map(str, lengths))}; expected at least one token for each of "
            f"{link.size} ranks"
        )
    part = Part(link, lengths)
    token = _CURRENT.set(part)
    _OPEN.append(part)
    link.held = True
    try:
        yield part
        link.flush()
    finally:
        # gradients that are asked for later still leave
        link.held = False
        _OPEN.remove(part)
        _CURRENT.reset(token)


def even_lengths(n: int, ranks: int) -> tuple[int, ...]:
    """Tokens of every rank: n over the ranks, the first n mod ranks of them having one more."""
    check_count("length", n)
    each, more = divmod(n, ranks)
    return tuple(each + (rank < more) for rank in range(ranks))
