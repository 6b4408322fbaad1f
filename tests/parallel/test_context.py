"""A model inside `context_parallel` is the model: the same scores and the same gradients."""

import copy

import pytest
import torch
from ranks import on_ranks

from chacal.nn import Transformer
from chacal.parallel import context_parallel, current_part


def model(positions, operators):
    torch.manual_seed(0)
    return Transformer(
        vocab_size=11, num_classes=5, operators=operators, width=16, heads=4, positions=positions,
        max_length=21, period=4, learn_gamma=True,
    ).double()  # fmt: skip


@pytest.mark.parametrize("positions", ["rotary", "learned", "factorised", "none"])
@pytest.mark.parametrize("length", [21, (3, 11, 7)])
def test_scores_and_gradients(positions, length, monkeypatch):
    monkeypatch.setattr("chacal.parallel.sharded.LEAST", 1)
    whole = model(positions, ("dense", "chacal,gamma=learn:0.5", "routed@4", "window@5"))
    tokens = torch.randint(11, (2, 21), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 21, dtype=torch.bool)
    mask[1, 17:] = False
    expected = whole(tokens, mask)
    weight = torch.randn_like(expected) * mask[..., None]
    (expected * weight).sum().backward()
    copies = [copy.deepcopy(whole) for _ in range(3)]

    def one(link):
        own = copies[link.rank]
        own.zero_grad()
        with context_parallel(link, length) as part:
            scores = own(part.take(tokens), part.take(mask))
            (scores * part.take(weight)).sum().backward()
            return part.join(scores)

    for scores in on_ranks(3, one):
        assert (scores - expected)[mask].abs().max() < 1e-10
    for name, p in whole.named_parameters():
        summed = sum(dict(other.named_parameters())[name].grad for other in copies)
        assert (summed - p.grad).abs().max() < 1e-9, name


def test_the_rule_of_lengths():
    def one(link):
        with context_parallel(link, 8) as part:
            assert part.lengths == (3, 3, 2)
            assert (part.first, part.length) == [(0, 3), (3, 3), (6, 2)][link.rank]
            with pytest.raises(ValueError, match=r"has 7 tokens along dimension 0; .*text, 8"):
                part.take(torch.zeros(7), 0)
        few = pytest.raises(ValueError, match="1, 1, 0; expected at least one token for each of 3")
        with few, context_parallel(link, 2):
            pass

    on_ranks(3, one)


def test_a_shard_of_another_length_is_told():
    def one(link):
        with context_parallel(link, 8), pytest.raises(ValueError, match="lengths are 4, 4"):
            model("rotary", ("chacal",))(torch.zeros(1, 3, dtype=torch.long))

    on_ranks(2, one)


def test_a_compiler_does_not_take_a_part_for_the_whole(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert current_part() is None

    def one(link):
        with (
            context_parallel(link, 8),
            pytest.raises(NotImplementedError, match="shares texts was compiled"),
        ):
            current_part()

    on_ranks(1, one)
    assert current_part() is None
