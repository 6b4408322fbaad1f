"""A text that lies on several ranks is attended to as if it lay on one."""

import oracles
import pytest
import torch
from cases import draw
from ranks import both, on_ranks, shards

from chacal.parallel import sharded_attention
from chacal.parallel.sharded import cut

EXACT = 1e-10

OPERATORS = [
    "chacal", "chacal,diagonal=drop", "window@5", "window@9,diagonal=drop", "window@1", "window@99",
    "routed@4", "routed@3,near=0,routes=2", "routed@4,parts=2,score=bound,near=2", "routed",
    "dense", "local@6",
]  # fmt: skip

LENGTHS = [(8, 8), (13, 4), (1, 16), (7, 2, 12), (5, 1, 1, 14)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """As many chunks as for long texts."""
    monkeypatch.setattr("chacal.parallel.sharded.LEAST", 1)


def inputs(n, B=2, h=3, d=4, d_v=4):
    return draw(B, h, n, d), draw(B, h, n, d), draw(B, h, n, d_v)


def check(ranks, alone, most=EXACT):
    for name, x, y in zip(("Y", "dq", "dk", "dv", "dγ"), ranks, alone, strict=False):
        assert x.shape == y.shape, name
        assert (x - y).abs().max() < most, name
    assert len(ranks) == len(alone)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_outputs_and_gradients_are_those_of_one_process(operator, lengths):
    q, k, v = inputs(sum(lengths), d_v=4 if len(lengths) == 2 else 3)
    gamma = torch.rand(3).double() * 0.9
    learned = None if operator.startswith(("dense", "local")) else gamma
    check(*both(operator, q, k, v, lengths, gamma=learned))


@pytest.mark.parametrize("operator", ["chacal", "window@7", "routed@8"])
def test_one_gamma_for_all_and_gamma_near_1(operator):
    q, k, v = inputs(150)
    for gamma in (0.0, 0.9, 0.999):
        check(*both(operator, q, k, v, (70, 80), gamma=torch.tensor(gamma).double()), 1e-7)


@pytest.mark.parametrize("operator", ["chacal", "window@7", "routed@16"])
def test_float32_agrees_to_1e_5(operator):
    q, k, v = (x.float() for x in inputs(300, h=5, d=16, d_v=16))
    gamma = torch.rand(5) * 0.95
    ranks, alone = both(operator, q, k, v, (101, 99, 100), gamma=gamma)
    check([x / y.abs().max() for x, y in zip(ranks, alone, strict=True)],
          [y / y.abs().max() for y in alone], 1e-5)  # fmt: skip


@pytest.mark.parametrize(
    "operator", ["chacal", "chacal,diagonal=drop", "window@5", "routed@4", "routed"]
)
def test_padding(operator):
    q, k, v = inputs(20, B=4)
    mask = torch.ones(4, 20, dtype=torch.bool)
    mask[1, 15:] = False
    mask[2, :9] = False  # all of rank 0, and more
    mask[3, ::3] = False
    for x in (q, k, v):
        x.masked_fill_(~mask[:, None, :, None], torch.nan)
    gamma = torch.rand(3).double() * 0.9
    check(*both(operator, q, k, v, (8, 5, 7), gamma=gamma, mask=mask))


def test_rows_without_a_real_token():
    q, k, v = inputs(10)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0] = False
    check(*both("chacal", q, k, v, (5, 5), mask=mask))


@pytest.mark.parametrize("operator", ["chacal", "window@5", "routed@4", "routed"])
@pytest.mark.parametrize(
    "ends",
    [(0, 20), (0, 8, 13, 20), (0, 2, 2, 11, 12, 20), (0, 0, 5, 17, 20), (0, 3, 8, 8, 16, 20)],
    ids=str,
)
def test_packed_sequences(operator, ends):
    q, k, v = inputs(20)
    gamma = torch.rand(3).double() * 0.9
    check(*both(operator, q, k, v, (8, 5, 7), gamma=gamma, cu_seqlens=torch.tensor(ends)))


def test_oracles():
    """Against loops that know nothing of shards."""
    q, k, v = (x[0, 0] for x in inputs(19))
    lengths = (6, 4, 9)
    wanted = {
        "chacal,gamma=0.8": oracles.attention(q, k),
        "window@5,gamma=0.8": oracles.attention(q, k, oracles.within(5)),
        "routed@4,gamma=0.8": oracles.routed_matrix(q, k, 4, 1, 1),
    }
    parts = [shards(x, lengths) for x in (q, k, v)]
    for operator, A in wanted.items():

        def call(link, operator=operator):
            return sharded_attention(operator, *(x[link.rank] for x in parts), group=link)

        Y = torch.cat(on_ranks(3, call))
        assert (Y - oracles.resolvent(A, v, 0.8)).abs().max() < EXACT


def test_only_what_is_needed_is_sent():
    n, h, d = 64, 4, 8
    q, k, v = (draw(1, h, n, d) for _ in range(3))

    def sent(operator, lengths):
        parts = [shards(x, lengths) for x in (q, k, v)]

        def call(link):
            own = [x[link.rank] for x in parts]
            sharded_attention(operator, *own, group=link, lengths=lengths)
            return link.traffic.bytes // 8

        return on_ranks(2, call)

    first = h * d  # the value that others are counted from
    # keys and Z, or queries there and outputs with their log-sum-exps back; in turns
    assert sum(sent("chacal", (32, 32))) == first + h * 32 * 2 * d + h // 2 * 32
    assert sent("window@5", (32, 32)) == [first + h * 4 * 2 * d, 0]
    told, asked = sent("routed@4", (56, 8))
    summaries = h * 14 * d
    assert asked == h * 14 // 8  # a byte for each tile
    # the near tile, and at most one for each of 8 rows
    assert first + summaries + h * 4 * 2 * d <= told <= first + summaries + h * 9 * 4 * 2 * d


def test_what_has_no_sharded_form_is_refused_by_name():
    q, k, v = inputs(4)
    for operator in ("pooled", "block@4", "chacal,top_k=3", "pattern", "bigbird"):
        with pytest.raises(
            ValueError, match=f"^{operator.split('@')[0]}.* cannot share a sequence"
        ):
            sharded_attention(operator, q, k, v)


def test_wrong_lengths_are_told():
    q, k, v = inputs(4)

    def call(link):
        with pytest.raises(ValueError, match="expected one for each of 2 ranks, and 4 for rank"):
            sharded_attention("chacal", q, k, v, group=link, lengths=(3, 3))

    on_ranks(2, call)


def test_short_texts_are_not_cut_small(as_it_is):
    assert [len(x) for x in cut([64], [(8, 8)], 2)] == [1]
    assert [len(x) for x in cut([64], [(4096, 4096)], 2)] == [8]
    assert [len(x) for x in cut([6], [(4096, 4096)], 2)] == [6]


@pytest.fixture
def as_it_is(monkeypatch):
    monkeypatch.setattr("chacal.parallel.sharded.LEAST", 1024)
