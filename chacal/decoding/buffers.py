"""What states are made of: tensors that grow by a token, and named ones side by side."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import Tensor

from chacal.ops.cards import Kernel

if TYPE_CHECKING:
    from typing_extensions import Self

OF_KEYS = ("k", "mean_k", "summary")
"""Buffers that are the same for heads with the same keys; Z never is, for A is another."""


class Buffer:
    """(B, n, d) that grows along n without copying what is there at every token.

    Where every `groups` rows of B are the same, as keys of grouped-query heads are, one is kept.
    """

    def __init__(self, data: Tensor | None = None, groups: int = 1) -> None:
        self._data = data
        self._used = 0 if data is None else data.shape[1]
        self._groups = groups

    @property
    def length(self) -> int:
        """Tokens held."""
        return self._used

    def append(self, x: Tensor) -> Tensor:
        """All tokens so far, the new ones last; a view that later calls may grow past."""
        self.add(x)
        return self.view()

    def add(self, x: Tensor) -> None:
        """One or more tokens."""
        x = x[:: self._groups]
        end = self._used + x.shape[1]
        if self._data is None or self._data.shape[1] < end:
            grown = x.new_empty(x.shape[0], max(end, 2 * self._used), x.shape[2])
            if self._data is not None:
                grown[:, : self._used] = self.kept()
            self._data = grown
        self._data[:, self._used : end] = x
        self._used = end

    def view(self) -> Tensor:
        """(B, n, d); a copy where rows are kept once for several."""
        return self.kept() if self._groups == 1 else self.kept().repeat_interleave(self._groups, 0)

    def kept(self) -> Tensor:
        """(B / groups, n, d)."""
        assert self._data is not None
        return self._data[:, : self._used]

    @property
    def slots(self) -> Tensor:
        """(B / groups, room, d): what is held, and the room after it."""
        assert self._data is not None
        return self._data

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens."""
        self._used = length

    def drop_front(self, count: int) -> None:
        """Forget the first `count` tokens."""
        if count and self._data is not None:
            self._data = self.kept()[:, count:].clone()
            self._used -= count

    def select(self, index: Tensor) -> Buffer:
        """A copy with rows `index` of B, which keep together what shares a row."""
        index = index[:: self._groups] // self._groups
        return Buffer(None if self._data is None else self.kept()[index], self._groups)

    def tensors(self) -> list[Tensor]:
        """What is kept, if anything."""
        return [] if self._data is None else [self.kept()]


class BufferedState:
    """The parts of a state that are the same for all: it is named buffers and a length."""

    names: tuple[str, ...]
    groups = 1
    kernel: Kernel | None = None
    """What computes one token on a GPU, if anything does."""

    def __init__(self) -> None:
        self.clear()

    def share_keys(self, groups: int) -> None:
        """Keep the keys of every `groups` rows of B once; before the first token."""
        self.groups = groups
        self.clear()

    def clear(self) -> None:
        """Back to no tokens."""
        self.length = 0
        self.origin = 0  # the position of the first token whose Z is kept
        for name in self.names:
            setattr(self, name, Buffer(groups=self.groups if name in OF_KEYS else 1))

    def remembers(self, length: int) -> bool:
        """Whether it could crop to `length` tokens."""
        return True

    def select(self, index: Tensor) -> Self:
        """A copy with rows `index` of B."""
        new = copy.copy(self)
        for name in self.names:
            setattr(new, name, getattr(self, name).select(index))
        return new

    def now(self) -> dict[str, Any]:
        """What `back_to` needs to undo all that comes: buffers grow, but keep what they hold."""
        return self.__dict__ | {name: copy.copy(getattr(self, name)) for name in self.names}

    def back_to(self, then: dict[str, Any]) -> None:
        """Be as it was when `now` was asked."""
        self.__dict__.update(then)

    def tensors(self) -> list[Tensor]:
        """All that is kept."""
        return [x for name in self.names for x in getattr(self, name).tensors()]
