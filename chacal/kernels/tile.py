"""What the kernels share on the device: products, the inverse of a tile, tickets and counters.

The inverse of I - γT, for the lower triangular square T of a tile, is made of matrix products only.
With D = diag(1 - γT_tt) and M strictly lower,

    I - γT = D (I - M),   (I - M)⁻¹ = (I + M)(I + M²)(I + M⁴)(I + M⁸)   in squares of 16,
    [A   0]⁻¹   [   A⁻¹       0 ]
    [-C  B]   = [B⁻¹ C A⁻¹   B⁻¹]                                       from 16 to 32, to 64.

Rows of M sum to less than 1, so powers of it only shrink: nothing is lost. Squares of one size are
inverted together, as a batch. The plain twin is `solve_tile` in ops/streaming.py.

**Order.** A tile needs what earlier tiles solved. A program takes a ticket when it begins, and
works on the tile of that number; the tiles of one head have rising numbers in the order in which
they depend on each other. `done` of a head counts its solved tiles. A program waits only for tiles
of smaller numbers, hence of programs that had begun before it did and, once begun, are not taken
off the machine. Of all programs that run, the one with the smallest number waits for nobody; so
some program always goes on, and none waits for ever, however few run at once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot(a, b, UPCAST: tl.constexpr, PRECISION: tl.constexpr):
    """a @ b in float32; the interpreter multiplies bfloat16 wrongly, so there both are float32."""
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def scores(
    a, a_at, a_row, b_at, b_row, c, d,
    D: tl.constexpr, DEPTH: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(rows of a, rows of b) products over d channels, DEPTH of them at a time.

    `a_at` (rows, c) and `b_at` (c, rows) point to the first channels, `c` of them; `a` is what is
    at `a_at` if these are all. In pieces, a is read anew each time: it is in the nearest cache.
    """
    if D <= DEPTH:
        return dot(a, tl.load(b_at, (c < d)[:, None] & b_row, 0.0), UPCAST, PRECISION)
    else:
        S = tl.zeros([a_at.shape[0], b_at.shape[1]], tl.float32)
        for at in range(0, D, DEPTH):
            in_d = c + at < d
            a_c = tl.load(a_at + at, a_row & in_d[None, :], 0.0)
            b_c = tl.load(b_at + at, in_d[:, None] & b_row, 0.0)
            S += dot(a_c, b_c, UPCAST, PRECISION)
        return S


@triton.jit
def quarters(x, B: tl.constexpr, m: tl.constexpr):
    """(B, 2m, 2m) -> upper left, lower left and lower right, (B, m, m) each."""
    x = tl.permute(tl.reshape(x, (B, 2, m, 2, m)), (0, 2, 4, 1, 3))
    left, right = tl.split(x)
    a, c = tl.split(left)
    _, b = tl.split(right)
    return a, c, b


@triton.jit
def from_quarters(a, c, b, B: tl.constexpr, m: tl.constexpr):
    """The inverse of `quarters`, zero in the upper right."""
    x = tl.join(tl.join(a, c), tl.join(tl.zeros_like(b), b))
    return tl.reshape(tl.permute(x, (0, 3, 1, 4, 2)), (B, 2 * m, 2 * m))


@triton.jit
def times(a, b, B: tl.constexpr, m: tl.constexpr, PRECISION: tl.constexpr):
    """(B, m, m) products; one alone needs no batch."""
    if B == 1:
        a = tl.reshape(a, (m, m))
        b = tl.reshape(b, (m, m))
        return tl.reshape(tl.dot(a, b, input_precision=PRECISION), (1, m, m))
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def unit_inverse(M, B: tl.constexpr, m: tl.constexpr, PRECISION: tl.constexpr):
    """(I - M)⁻¹ of (B, m, m) strictly lower triangular squares."""
    if m == 16:
        row = tl.arange(0, 16)
        X = M + (row[:, None] == row[None, :]).to(tl.float32)[None, :, :]
        for _ in tl.static_range(3):
            M = times(M, M, B, 16, PRECISION)
            X += times(X, M, B, 16, PRECISION)
        return X
    else:
        half: tl.constexpr = m // 2
        a, c, b = quarters(M, B, half)
        a, b = inverse_pair(a, b, B, half, PRECISION)
        c = times(times(b, c, B, half, PRECISION), a, B, half, PRECISION)
        return from_quarters(a, c, b, B, half)


@triton.jit
def inverse_pair(a, b, B: tl.constexpr, m: tl.constexpr, PRECISION: tl.constexpr):
    """(I - a)⁻¹ and (I - b)⁻¹ of (B, m, m) each, as one batch."""
    both = tl.reshape(tl.permute(tl.join(a, b), (3, 0, 1, 2)), (2 * B, m, m))
    both = unit_inverse(both, 2 * B, m, PRECISION)
    return tl.split(tl.permute(tl.reshape(both, (2, B, m, m)), (1, 2, 3, 0)))


@triton.jit
def tile_inverse(T, gamma, TILE: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr):
    """(I - γT)⁻¹ of a lower triangular T (TILE, TILE); with DROP, of T without its diagonal."""
    row = tl.arange(0, TILE)
    M = gamma * tl.where(row[:, None] > row[None, :], T, 0.0)
    if DROP:
        return tl.reshape(
            unit_inverse(tl.reshape(M, (1, TILE, TILE)), 1, TILE, PRECISION), (TILE, TILE)
        )
    else:
        D = 1.0 - gamma * diagonal(T, TILE)
        X = unit_inverse(tl.reshape(M / D[:, None], (1, TILE, TILE)), 1, TILE, PRECISION)
        # (D (I - M))⁻¹ = (I - M)⁻¹ D⁻¹
        return tl.reshape(X, (TILE, TILE)) / D[None, :]


@triton.jit
def times_columns(
    a, x, m: tl.constexpr, c: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr
):
    """(m, m) @ (m, c), so many columns at a time: a warp may have to hold all of the right
    factor."""
    if c <= COLUMNS:
        return tl.dot(a, x, input_precision=PRECISION)
    else:
        half: tl.constexpr = c // 2
        left, right = tl.split(tl.permute(tl.reshape(x, (m, 2, half)), (0, 2, 1)))
        left = times_columns(a, left, m, half, COLUMNS, PRECISION)
        right = times_columns(a, right, m, half, COLUMNS, PRECISION)
        return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (m, c))


@triton.jit
def diagonal(T, TILE: tl.constexpr):
    """(TILE,) the diagonal of a square."""
    row = tl.arange(0, TILE)
    return tl.sum(tl.where(row[:, None] == row[None, :], T, 0.0), 1)


@triton.jit
def take_ticket(ticket, tiles, pairs, chunk):
    """The next (tile, pair) to work on: of `chunk` pairs first all tiles 0, then all tiles 1, ...

    A pair is a sequence and a head. Few pairs at a time keep what they read in the cache.
    """
    t = tl.atomic_add(ticket, 1)
    bucket = t // (chunk * tiles)
    rest = t - bucket * chunk * tiles
    size = min(chunk, pairs - bucket * chunk)
    return rest // size, bucket * chunk + rest % size


@triton.jit
def find_sequence(cu, tile, seqs, TILE: tl.constexpr, SEQS: tl.constexpr):
    """The sequence that holds a tile of a packed row: its number, first row, length, first tile.

    `cu` (seqs + 1,) are the places where sequences begin, and the end; each has tiles of its own.
    The number is `seqs` for a tile past the end.
    """
    s = tl.arange(0, SEQS)
    begin = tl.load(cu + s, s < seqs, 0)
    end = tl.load(cu + s + 1, s < seqs, 0)
    tiles = (end - begin + TILE - 1) // TILE
    number = tl.sum(((tl.cumsum(tiles, 0) <= tile) & (s < seqs)).to(tl.int32), 0)
    first = tl.sum(tl.where(s == number, begin, 0), 0)
    length = tl.sum(tl.where(s == number, end - begin, 0), 0)
    return number, first, length, tl.sum(tl.where(s < number, tiles, 0), 0)


@triton.jit
def wait(done, least):
    """How many tiles are solved, as soon as that is `least`; what they stored can be read then."""
    have = tl.load(done, volatile=True)
    while have < least:
        have = tl.load(done, volatile=True)
    return tl.atomic_add(done, 0, sem="acquire")


@triton.jit
def announce(done):
    """One more tile is solved, and all that this program stored can be read."""
    tl.debug_barrier()
    tl.atomic_add(done, 1, sem="release")
