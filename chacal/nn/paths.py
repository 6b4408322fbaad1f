"""How a resolvent found what it read: the mass of one row by number of hops, and path by path.

    Y = (1-γ) A (I-γA)⁻¹ V = (1-γ) Σ_t γ^(t-1) A^t V                                (Eq. 1)

A^t counts a step from a token to itself like any other, and a token at the end of a chain points at
itself: a chain of 7 hops is then spread over t = 7, 8, 9 and all that follow. What a person calls a
hop goes somewhere. With A = diag(A) + N and D = I - γ diag(A),

    Y = (1-γ) [ diag(A) D⁻¹ + Σ_k γ^(k-1) (D⁻¹N)^k D⁻¹ ] V   at the row asked for

(diag(A) its own entry there) sorts the same mass by k, the hops that go somewhere, waits left out.
N is strictly lower triangular, so the sum is finite and every path can be named.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

LONGEST = 64
"""Path lengths t that are told apart; what is longer is told as one remainder."""


@dataclass(frozen=True)
class Path:
    """One way from a row to a token.

    Attributes:
        tokens: positions, from the row that asks to the token that is read.
        weights: of A, one for each hop.
        flows: for each hop, the share of the row's mass that takes it after the hops before it,
            wherever it goes on to.
        share: of the row's mass that came this way and ended here, waits on the way included.
    """

    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    flows: tuple[float, ...]
    share: float


def by_length(A: np.ndarray, gamma: float, row: int) -> np.ndarray:
    """(1-γ)γ^(t-1) A^t of one row, for t = 1, 2, ...

    Args:
        A: (n, n) lower triangular, row sums at most 1.
        gamma: γ in [0, 1).
        row: which.

    Returns:
        (LONGEST, n); fewer than 64 where γ is 0.
    """
    found, reached, weight = [], A[row].astype(np.float64), 1 - gamma
    for _ in range(LONGEST if gamma else 1):
        found.append(weight * reached)
        reached, weight = reached @ A, weight * gamma
    return np.stack(found)


def by_hops(A: np.ndarray, gamma: float, row: int) -> np.ndarray:
    """The mass of one row by hops that go somewhere, for k = 0, 1, 2, ...

    Args:
        A: (n, n) lower triangular, row sums at most 1.
        gamma: γ in [0, 1).
        row: which.

    Returns:
        (1 + hops, n), which sums over hops to the row of the resolvent. No further than is worth
        telling: what is left out is below 1e-6.
    """
    stay = 1 / (1 - gamma * np.diagonal(A).astype(np.float64))
    hop = stay[:, None] * np.tril(A, -1)
    first = np.zeros(len(A))
    first[row] = (1 - gamma) * A[row, row] * stay[row]
    found, reached = [first], hop[row]
    while reached.sum() > 1e-6:
        found.append((1 - gamma) * reached * stay)
        reached = gamma * (reached @ hop)
    return np.stack(found)


class Ways:
    """The paths that carry most, of any row: what is worth knowing of the rows below is kept.

    Args:
        A: (n, n) lower triangular, row sums at most 1.
        gamma: γ in [0, 1).
        count: how many of each row, at most.
    """

    def __init__(self, A: np.ndarray, gamma: float, count: int) -> None:
        self.A, self.gamma, self.count = A, gamma, count
        self.stay = 1 / (1 - gamma * np.diagonal(A).astype(np.float64))
        self.hop = self.stay[:, None] * np.tril(A, -1)
        n = len(A)
        # best[i]: what the best ways on from i carry, stopping at i among them; way[i]: where to
        self.best = np.zeros((n, count))
        self.way = np.full((n, count, 2), -1)
        for i in range(n):
            values = (gamma * self.hop[i, :i, None] * self.best[:i]).ravel()
            options = [((1 - gamma) * self.stay[i], -1, -1)]
            options += [(values[at], *divmod(int(at), count)) for at in _largest(values, count)]
            options.sort(key=lambda option: -option[0])
            for rank, (value, to, its_rank) in enumerate(options[:count]):
                self.best[i, rank], self.way[i, rank] = value, (to, its_rank)

    def of(self, row: int) -> list[Path]:
        """The paths of one row, strongest first, waits on the way included."""
        values = (self.hop[row, :row, None] * self.best[:row]).ravel()
        own = (1 - self.gamma) * self.A[row, row] * self.stay[row]
        found = [Path((row,), (), (), float(own))]
        for at in _largest(values, self.count):
            i, rank = divmod(int(at), self.count)
            tokens = [row]
            while i >= 0:
                tokens.append(i)
                i, rank = map(int, self.way[i, rank])
            found.append(self._path(tokens, float(values[at])))
        return sorted((p for p in found if p.share > 0), key=lambda p: -p.share)[: self.count]

    def _path(self, tokens: list[int], share: float) -> Path:
        weights, flows, reached = [], [], 1.0
        for a, b in pairwise(tokens):
            weights.append(float(self.A[a, b]))
            # rows that sum to 1 lose nothing on the way: what takes a hop ends somewhere behind it
            flows.append(reached * float(self.hop[a, b]))
            reached = self.gamma * flows[-1]
        return Path(tuple(tokens), tuple(weights), tuple(flows), share)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-values, kind="stable")[:count]
