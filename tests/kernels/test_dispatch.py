"""What is on a card goes to the kernels: as the plain operators, padded, packed and compiled."""

import pytest
import torch
from cases import draw_qkv, far, leaves
from torch._subclasses.fake_tensor import FakeTensorMode

import chacal
from chacal.ops import cards
from chacal.ops.routed import TRITON_ROUTED, card_kernel

pytest.importorskip("triton", reason="the kernels need Triton: pip install chacal[gpu]")

OPERATORS = ["chacal", "chacal,diagonal=drop", "window@9", "routed@5,routes=2", "routed"]


@pytest.fixture
def as_if_on_a_card(monkeypatch):
    """The CPU is the card, since Triton interprets; how often a kernel was run."""
    from chacal.kernels.resolvent import INTERPRETING

    if not INTERPRETING:
        pytest.skip("Triton compiles here; `make test` runs this in its interpreter")
    ran = []

    def fits(q, v):
        ran.append(q.dtype)
        return True

    monkeypatch.setattr("chacal.ops.inputs.fits", fits)
    return ran


def both(text, inputs, gamma, **options):
    """Y and gradients of a call."""
    own = [*leaves(*inputs), gamma.clone().requires_grad_()]
    Y = chacal.parse_operator(text)(*own[:3], gamma=own[3], **options)
    weights = torch.linspace(-1, 1, Y.numel(), dtype=Y.dtype).view_as(Y)
    return [Y.detach(), *torch.autograd.grad((Y * weights).sum(), own)]


@pytest.mark.parametrize("text", OPERATORS)
@pytest.mark.parametrize("how", ["plain", "padded", "packed"])
def test_as_the_plain_operators(text, how, monkeypatch, request):
    inputs, gamma = draw_qkv(2, 2, n=37, d=8, d_v=6, dtype=torch.float32), torch.tensor([0.3, 0.8])
    mask = torch.ones(2, 37, dtype=torch.bool)
    mask[0, :5] = mask[1, 30:] = False
    options = {
        "plain": {},
        "padded": {"mask": mask},
        "packed": {"cu_seqlens": torch.tensor([0, 11, 12, 37])},
    }[how]
    expected = both(text, inputs, gamma, **options)
    ran = request.getfixturevalue("as_if_on_a_card")
    found = both(text, inputs, gamma, **options)
    assert ran
    for a, b in zip(found, expected, strict=True):
        assert far(a, b) < 2e-5 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("how", ["plain", "padded", "packed"])
def test_keys_of_a_group_are_read_in_place(how, monkeypatch, as_if_on_a_card):
    q, gamma = draw_qkv(2, 4, n=20, d=8, d_v=6, dtype=torch.float32)[0], torch.full((4,), 0.5)
    k, v = draw_qkv(2, 2, n=20, d=8, d_v=6, dtype=torch.float32)[1:]
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, :5] = False
    options = {
        "plain": {},
        "padded": {"mask": mask},
        "packed": {"cu_seqlens": torch.tensor([0, 11, 12, 20])},
    }[how]
    if how == "packed":
        q, k, v = (x[0] for x in (q, k, v))
    seen, forward = [], cards.TRITON.forward
    monkeypatch.setattr(
        cards.TRITON, "forward", lambda *args: (seen.append(args[1].shape[1]), forward(*args))[1]
    )
    found = both("chacal", (q, k, v), gamma, **options)
    assert seen == [2 if how == "packed" else 4]
    monkeypatch.setattr("chacal.ops.inputs.fits", lambda q, v: False)
    for a, b in zip(found, both("chacal", (q, k, v), gamma, **options), strict=True):
        assert far(a, b) < 2e-5 * max(1.0, float(b.abs().max()))


def test_half_precision_is_not_copied_to_float32(as_if_on_a_card):
    inputs = draw_qkv(1, 2, n=20, d=8, dtype=torch.float16)
    Y = chacal.resolvent_attention(*inputs, gamma=0.5)
    assert Y.dtype == torch.float16
    assert as_if_on_a_card == [torch.float16]
    assert far(Y, chacal.parse_operator("chacal,gamma=0.5")(*(x.double() for x in inputs))) < 1e-2


def test_pytorch_accepts_the_operator():
    inputs = leaves(*draw_qkv(1, 2, n=20, d=8, d_v=6, dtype=torch.float32))
    gamma = torch.tensor([[0.3, 0.8]], requires_grad=True)
    for packed in (None, torch.tensor([0, 7, 20], dtype=torch.int32)):
        torch.library.opcheck(cards.TRITON.op, (*inputs, gamma, packed, 0.5, False, None))


def test_the_cpu_stays_plain():
    x = torch.zeros(1, 2, 4, 8)
    assert not cards.fits(x, x)
    assert not cards.fits(x.to("meta"), x)


def test_what_has_no_kernel_stays_plain_and_that_is_said_once():
    with FakeTensorMode():
        x, wide = (torch.empty(1, 2, 4, width, device="cuda") for width in (256, 300))
        double = torch.empty(1, 2, 4, 8, dtype=torch.float64, device="cuda")
    assert cards.fits(x, x)
    with pytest.warns(UserWarning, match="d_v is 300, .* plain PyTorch.*at most 256"):
        assert not cards.fits(x, wide)
    with pytest.warns(UserWarning, match="float64.*expected, for its kernels, float32"):
        assert not cards.fits(double, double)
    assert not cards.fits(x, wide)  # a second warning would be an error here
    with pytest.warns(UserWarning, match="routes is 17.*at most 16"):
        assert card_kernel(TRITON_ROUTED, 17, wide) is None
