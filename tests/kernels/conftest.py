"""Kernels run in Triton's interpreter, and those marked `gpu` once more on a card."""

import pytest
import torch
from torch.utils import deterministic


@pytest.fixture(
    params=[pytest.param("cpu", id="interpreter"), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request):
    """Where a kernel runs."""
    from chacal.kernels.resolvent import INTERPRETING

    if request.param == "cuda" and (INTERPRETING or not torch.cuda.is_available()):
        pytest.skip("no card, or Triton interprets; `make test-gpu` runs this on a card")
    if request.param == "cpu" and not INTERPRETING:
        pytest.skip("Triton compiles here; `make test` runs this in its interpreter")
    return request.param


@pytest.fixture
def poison(monkeypatch):
    """Memory that nobody wrote to holds NaN."""
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
