"""A learned γ starts at 0, moves from there, and stays in [0, 1) whatever is done to it."""

import pytest
import torch

from chacal.nn import Attention, Transformer
from chacal.nn.gamma import LARGEST, LearnedGamma, learned_gammas, parameter_groups


def test_it_starts_at_0_and_has_a_gradient_there():
    torch.manual_seed(0)
    learned, dense = Attention(16, 4, "chacal,gamma=learn"), Attention(16, 4, "dense")
    dense.load_state_dict({k: v for k, v in learned.state_dict().items() if "gamma" not in k})
    assert set(learned.state_dict()) - set(dense.state_dict()) == {"learned_gamma.weight"}
    x = torch.randn(2, 9, 16)
    torch.testing.assert_close(learned(x), dense(x), atol=1e-6, rtol=0)
    learned(x).square().sum().backward()
    assert learned.learned_gamma.weight.grad.abs().min() > 1e-3


def test_it_starts_where_it_is_told_to():
    layer = Attention(8, 2, "window@4,gamma=learn:0.5")
    assert layer.gamma.tolist() == [0.5, 0.5]
    x = torch.randn(1, 6, 8)
    fixed = Attention(8, 2, "window@4,gamma=0.5")
    fixed.load_state_dict({k: v for k, v in layer.state_dict().items() if "gamma" not in k})
    assert torch.equal(layer(x), fixed(x))


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("lr", [0.1, 1e4])
def test_no_step_takes_it_out_of_its_bounds(optimiser, lr):
    torch.manual_seed(0)
    gamma = LearnedGamma(5)
    steps = optimiser(gamma.parameters(), lr=lr)
    for _ in range(20):
        steps.zero_grad()
        (gamma() * torch.randn(5)).sum().backward()
        steps.step()
        assert bool(((gamma() >= 0) & (gamma() <= LARGEST)).all())
        assert bool((gamma() < 1).all())


def test_beyond_a_border_only_the_way_back_is_open():
    gamma = LearnedGamma(5)
    with torch.no_grad():
        gamma.weight.copy_(torch.tensor([0.0, -3.0, 0.5, LARGEST, 2.0]))
    assert gamma().tolist() == pytest.approx([0.0, 0.0, 0.5, LARGEST, LARGEST])
    for sign, passed in ((1.0, [1, 0, 1, 1, 1]), (-1.0, [1, 1, 1, 1, 0])):
        gamma.weight.grad = None
        (sign * gamma().sum()).backward()
        assert gamma.weight.grad.tolist() == [sign * each for each in passed]


def test_a_head_that_is_better_off_without_hops_comes_to_rest_at_0():
    gamma = LearnedGamma(2, start=0.05)
    steps = torch.optim.AdamW(parameter_groups(gamma, lr=1.0, gamma_lr=1e-2))
    for _ in range(100):
        steps.zero_grad()
        (gamma() * torch.tensor([1.0, -1.0])).sum().backward()
        steps.step()
    assert gamma()[0] == 0
    assert gamma()[1] > 0.9
    # momentum has not carried it so far that it could not come back
    for _ in range(30):
        steps.zero_grad()
        (gamma() * torch.tensor([-1.0, -1.0])).sum().backward()
        steps.step()
    assert gamma()[0] > 0.01


@pytest.mark.parametrize("cast", ["half", "bfloat16"])
def test_it_keeps_its_precision_when_a_model_is_halved(cast):
    layer = Attention(8, 2, "chacal,gamma=learn:0.1234567")
    getattr(layer, cast)()
    assert layer.qkv.weight.itemsize == 2
    assert layer.gamma.tolist() == pytest.approx([0.1234567] * 2, abs=1e-8)
    assert layer.double().gamma.dtype == torch.float64


def test_it_goes_through_the_meta_device():
    layer = Attention(8, 2, "chacal,gamma=learn:0.5").to("meta")
    assert layer.bfloat16().learned_gamma.weight.is_meta
    layer.to_empty(device="cpu")
    layer.learned_gamma.reset_parameters()
    assert layer.gamma.tolist() == [0.5, 0.5]


def test_bfloat16_cannot_round_it_to_1():
    gamma = LearnedGamma(1)
    gamma.weight = torch.nn.Parameter(torch.tensor([0.9999]).bfloat16())
    assert gamma.weight.item() == 1.0
    assert gamma().item() == pytest.approx(LARGEST)


def test_groups_of_a_model():
    model = Transformer(
        vocab_size=5, num_classes=5, operators=["dense", "chacal,gamma=learn"], width=16
    )
    matrices, vectors, gammas = parameter_groups(model, lr=1e-3, gamma_lr=0.02, weight_decay=0.1)
    assert [p.shape for p in gammas["params"]] == [(4,)]
    assert gammas["params"] == list(learned_gammas(model))
    told = [(g["lr"], g["weight_decay"]) for g in (matrices, vectors, gammas)]
    assert told == [(1e-3, 0.1), (1e-3, 0.0), (0.02, 0.0)]
    assert {p.ndim for p in matrices["params"]} == {2}
    assert {p.ndim for p in vectors["params"]} == {1}
    assert sum(len(g["params"]) for g in (matrices, vectors, gammas)) == len(
        list(model.parameters())
    )
    for p in [*matrices["params"], *vectors["params"]]:
        p.requires_grad = False
    assert parameter_groups(model, lr=1e-3) == [
        {"params": gammas["params"], "lr": 1e-2, "weight_decay": 0.0}
    ]


def test_decoding_goes_on_with_the_learned_gamma():
    torch.manual_seed(0)
    model = Transformer(vocab_size=7, num_classes=7, operators=["chacal,gamma=learn"], width=16)
    with torch.no_grad():
        model.blocks()[0].attention.learned_gamma.weight.copy_(torch.linspace(0, 0.9, 4))
    tokens = torch.randint(7, (2, 11))
    state = model.decoder()
    told = torch.cat([state.extend(part) for part in tokens.split([5, 1, 5], 1)], 1)
    torch.testing.assert_close(told, model(tokens), atol=1e-5, rtol=0)
