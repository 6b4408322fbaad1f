"""The routed operator against its dense form, where each row's tiles are picked by a loop."""

import math

import oracles
import pytest
import torch
from cases import EXACT, LEAF_CROSSING, draw, draw_gamma, draw_qkv, far, leaves

import chacal
from chacal.ops import routing
from chacal.ops.routing import Routing, largest
from chacal.ops.view import View


def visible(q, k, m, near=1, routes=1, parts=1, score="mean"):
    """(..., n, n) which keys each row sees, without loops over keys."""
    n = q.shape[-2]
    t = torch.arange(n)
    tile = t // m
    seen = (t[:, None] >= t) & (tile >= tile[:, None] - near)
    whole = n // m
    far_tiles = torch.arange(whole) < tile[:, None] - near
    keys = k[..., : whole * m, :].unflatten(-2, (whole, m))
    if score == "keys":
        picked = torch.stack(
            [torch.stack(oracles.standing_out(x, parts)) for x in keys.reshape(-1, m, k.shape[-1])]
        ).view(*keys.shape[:-2], -1, k.shape[-1])  # fmt: skip
        keys = picked
    each = []
    for part in keys.tensor_split(min(parts, m), -2):
        if score != "bound":
            each.append(q @ part.mean(-2).mT)
        else:
            each.append((q[..., :, None, None, :] * part.unsqueeze(-4)).amax(-2).sum(-1))
    scores = torch.stack(each).amax(0)
    rank = scores.masked_fill(~far_tiles, -torch.inf).argsort(-1, descending=True).argsort(-1)
    chosen = far_tiles & (rank < routes)
    rest = torch.zeros(*chosen.shape[:-1], n - whole * m, dtype=torch.bool)
    return seen | torch.cat([chosen.repeat_interleave(m, -1), rest], -1)


def dense(q, k, v, gamma, **options):
    """The operator in full, for autograd to differentiate."""
    scores = (q @ k.mT) / math.sqrt(q.shape[-1])
    seen = visible(q.detach(), k.detach(), **options)
    return chacal.resolvent(scores.masked_fill(~seen, -torch.inf).softmax(-1), v, gamma)


@pytest.mark.parametrize("n", [1, 2, 7, 33, 61])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("near", [0, 1, 2])
@pytest.mark.parametrize("routes", [1, 2, 5])
@pytest.mark.parametrize(
    ("parts", "score"),
    [(1, "mean"), (1, "bound"), (3, "mean"), (2, "bound"), (2, "keys")],
)
def test_forward(n, m, near, routes, parts, score):
    q, k, v = draw_qkv(1, n=n, d_v=2)
    Y = chacal.routed_resolvent_attention(
        q, k, v, block_size=m, near=near, routes=routes, parts=parts, score=score, gamma=0.8
    )
    A = oracles.routed_matrix(q[0], k[0], m, near, routes, parts, score)
    assert far(Y[0], oracles.resolvent(A, v[0], 0.8)) < EXACT


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [None, (), (3,), (3, 1, 1)])
def test_leading_dimensions_gamma_and_scale(leading, shape):
    gamma, each = draw_gamma(shape, leading)
    q, k, v = draw_qkv(*leading, n=23)
    Y = chacal.routed_resolvent_attention(q, k, v, block_size=3, gamma=gamma, scale=0.9)

    def oracle(q, k, v, g):
        return oracles.resolvent(oracles.routed_matrix(q, k, 3, 1, 1, scale=0.9), v, g)

    assert far(Y, oracles.each(oracle, q, k, v, gamma=each)) < EXACT


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 2), (16, 4), (40, 8), (64, 8), (256, 16)])
def test_the_default_tile_is_about_the_root_of_n(n, m):
    q, k, v = draw_qkv(2, n=n)
    Y = chacal.routed_resolvent_attention(q, k, v)
    assert far(Y, chacal.routed_resolvent_attention(q, k, v, block_size=m)) == 0


@pytest.mark.parametrize(("m", "near"), [(1, 0), (2, 0), (2, 1), (3, 0), (9, 1)])
@pytest.mark.parametrize("routes", [1, 2])
@pytest.mark.parametrize("score", ["mean", "bound", "keys"])
def test_gradcheck(m, near, routes, score):
    inputs = leaves(*draw_qkv(2, n=9, d=2, d_v=3), torch.tensor([0.4, 0.9]).double())

    def function(q, k, v, gamma):
        return chacal.routed_resolvent_attention(
            q, k, v, gamma=gamma, block_size=m, near=near, routes=routes, score=score
        )

    assert torch.autograd.gradcheck(function, inputs)


# tiles that many rows choose and tiles that none does; groups that are full and that are not
@pytest.mark.parametrize(("m", "near", "routes"), [(16, 0, 1), (8, 1, 2), (13, 1, 1), (5, 0, 4)])
@pytest.mark.parametrize(("parts", "score"), [(1, "mean"), (3, "mean"), (2, "bound"), (2, "keys")])
@pytest.mark.parametrize("d_v", [3, 5])
def test_gradients_across_tiles(m, near, routes, parts, score, d_v):
    inputs = leaves(*draw_qkv(2, n=LEAF_CROSSING, d_v=d_v), torch.tensor([0.4, 0.9]).double())
    q, k, v, gamma = inputs
    weights = draw(2, LEAF_CROSSING, d_v, seed=9)
    options = {"near": near, "routes": routes, "parts": parts, "score": score}
    ours = chacal.routed_resolvent_attention(q, k, v, gamma=gamma, block_size=m, **options)
    theirs = dense(q, k, v, gamma[:, None, None], m=m, **options)
    assert far(ours, theirs) < EXACT
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))


def test_keys_among_many_that_are_alike_are_found():
    """As names among filling words: a mean hides them, a bound mistakes others for them."""
    n, m, d, each = 330, 16, 8, 3
    whole = n // m
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(whole * each + 1, d, generator=generator)
    names, filler = torch.nn.functional.normalize(drawn, dim=-1).split([whole * each, 1])
    k = filler.repeat(n, 1)
    for tile in range(whole):
        places = torch.randperm(m, generator=generator)[:each]
        k[tile * m + places] = names[tile * each : (tile + 1) * each]
    t = torch.arange(2 * m, n)
    asked = (torch.rand(len(t), generator=generator) * (t // m) * each).long()
    q = torch.zeros(n, d).index_copy(0, t, 20 * names[asked])

    def found(parts, score):
        rule = Routing(1, parts, score)
        summary = rule.summary(k[: whole * m].unflatten(0, (-1, m))[None])
        chosen = rule.choose(q[None], summary, View(m, near=0))[0, t, 0]
        return float((chosen == asked // each).float().mean())

    assert found(each, "keys") == 1
    assert max(found(each, "mean"), found(each, "bound")) < 0.9


def test_one_tile_that_every_row_chooses():
    q, k, v = draw_qkv(2, n=LEAF_CROSSING)
    q, k = q.abs(), -k.abs()
    k[:, 8:16] *= -1
    Y = chacal.routed_resolvent_attention(q, k, v, block_size=8)
    expected = dense(q, k, v, 0.9, m=8)
    assert bool(visible(q, k, 8)[:, 24:, 8:16].all())
    assert far(Y, expected) < EXACT


@pytest.mark.parametrize("options", [
    {"block_size": 16, "near": 8}, {"block_size": 16, "routes": 7},
    {"block_size": 1, "routes": 130}, {"block_size": 13, "near": 4, "routes": 5},
    {"block_size": 130}, {"block_size": 400, "near": 0},
])  # fmt: skip
def test_with_everything_seen_it_is_exact_chacal(options):
    q, k, v = draw_qkv(2, n=LEAF_CROSSING)
    Y = chacal.routed_resolvent_attention(q, k, v, **options)
    assert far(Y, chacal.resolvent_attention(q, k, v)) < EXACT


@pytest.mark.parametrize(("m", "near", "routes"), [(1, 0, 1), (7, 0, 2), (7, 1, 1), (16, 2, 3)])
def test_identities(m, near, routes):
    q, k, v = draw_qkv(2, n=70)
    options = {"block_size": m, "near": near, "routes": routes}
    ones = torch.ones_like(v)
    assert far(chacal.routed_resolvent_attention(q, k, ones, **options), ones) < EXACT
    A = oracles.each(lambda q, k: oracles.routed_matrix(q, k, m, near, routes), q, k)
    assert far(chacal.routed_resolvent_attention(q, k, v, **options, gamma=0), A @ v) < EXACT


def test_it_finds_the_one_key_that_matches():
    # 60 tiles back, which no window of that size and no mean of values could give
    q, k, v = torch.zeros(3, 1, 1000, 8).double()
    k[0, 37], q[0, 999], v[0, 37] = 9, 9, 1
    Y = chacal.routed_resolvent_attention(q, k, v, block_size=16, gamma=0)
    assert far(Y[0, 999], v[0, 37]) < 1e-6


@pytest.mark.parametrize(("name", "value", "least"), [
    ("block_size", 0, 1), ("block_size", 2.5, 1), ("near", -1, 0), ("routes", 0, 1),
    ("routes", None, 1), ("parts", 0, 1),
])  # fmt: skip
def test_bad_sizes_are_named(name, value, least):
    with pytest.raises(ValueError, match=f"{name} is {value}.*whole number of at least {least}"):
        chacal.routed_resolvent_attention(*draw_qkv(n=3), **{name: value})


def test_parts_find_a_key_that_the_mean_hides():
    # the key at 5 is what the query looks for, and its neighbours are the opposite
    q, k, v = torch.zeros(3, 1, 40, 2).double()
    q[0, 39, 0], k[0, 5, 0], k[0, 4, 0], k[0, 6, 0], v[0, 5] = 9, 9, -9, -9, 1
    found = [
        chacal.routed_resolvent_attention(q, k, v, block_size=8, gamma=0, parts=parts)[0, 39, 0]
        for parts in (1, 8, 100)
    ]
    assert far(torch.stack(found), torch.tensor([0, 1, 1]).double()) < 1e-6


def test_an_unknown_score_is_named():
    with pytest.raises(
        ValueError, match="score is 'best'; expected one of 'mean', 'bound', 'keys'"
    ):
        chacal.routed_resolvent_attention(*draw_qkv(n=3), score="best")


@pytest.mark.parametrize("width", [1, 5, 64, 65, 200, 255, 512, 1024])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_largest_and_their_places(width, count):
    S = draw(2, 7, width)
    found, where = largest(S.clone(), count)
    assert found.shape[-1] == min(count, width)
    assert torch.equal(found, S.sort(-1, descending=True).values[..., :count])
    assert torch.equal(S.gather(-1, where), found)


def chosen_at_once(q, k, tile, near, routing):
    """The choice from all scores, as sets in order."""
    n = q.shape[1]
    whole = k[:, : n - n % tile].unflatten(1, (-1, tile))
    S = torch.einsum("btd,bJpd->btJp", routing.query(q), routing.summary(whole)).amax(-1)
    seen = torch.arange(S.shape[2]) < (torch.arange(n) // tile - near)[:, None]
    best, tiles = S.masked_fill(~seen, -torch.inf).sort(-1, descending=True)
    tiles = torch.where(best > -torch.inf, tiles, -1)[..., : routing.routes]
    return tiles.sort(-1).values


# more tiles than are scored at once: of 1,024, or of 16 in pieces of two sequences and five rows
@pytest.mark.parametrize(("n", "pieces"), [(2100, {}), (181, {
    "PIECE": 160, "CHOICE_ROWS": 5, "CHOICE_TILES": 16,
})])  # fmt: skip
@pytest.mark.parametrize(("tile", "near"), [(1, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize(("routes", "parts", "score"), [(1, 1, "mean"), (4, 2, "bound")])
def test_a_choice_in_pieces_is_the_same(monkeypatch, n, pieces, tile, near, routes, parts, score):
    for name, size in pieces.items():
        monkeypatch.setattr(routing, name, size)
    (q, k, _), how = draw_qkv(3, n=n), Routing(routes, parts, score)
    view, summary = (
        View(tile, near=near),
        how.summary(k[:, : n - n % tile].unflatten(1, (-1, tile))),
    )
    chosen = how.choose(q, summary, view).sort(-1).values
    assert torch.equal(chosen, chosen_at_once(q, k, tile, near, how))
    last = how.choose(q[:, -3:], summary, view, n - 3).sort(-1).values
    assert torch.equal(last, chosen[:, -3:])


@pytest.mark.parametrize("near", [0, 1])
@pytest.mark.parametrize("d_v", [3, 2])
def test_a_tile_longer_than_what_is_solved_at_once(near, d_v):
    inputs = leaves(*draw_qkv(2, n=640, d_v=d_v), torch.tensor([0.4, 0.9]).double())
    q, k, v, gamma = inputs
    ours = chacal.routed_resolvent_attention(q, k, v, gamma=gamma, block_size=150, near=near)
    theirs = dense(q, k, v, gamma[:, None, None], m=150, near=near)
    assert far(ours, theirs) < EXACT
    weights = draw(2, 640, d_v, seed=9)
    grads = torch.autograd.grad((ours * weights).sum(), inputs)
    expected = torch.autograd.grad((theirs * weights).sum(), inputs)
    for a, b in zip(grads, expected, strict=True):
        assert far(a, b) < EXACT * max(1, float(b.abs().max()))
