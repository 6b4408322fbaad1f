"""Every test starts from the same seed, whichever ran before it, and uses one thread."""

import pytest
import torch

# tensors here are tiny: on a busy machine a second thread costs ten times what it saves
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
