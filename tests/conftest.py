"""Every test starts from the same seed, whichever ran before it, and uses one thread."""

import os
import signal

# before anything imports Triton: without a card its kernels run on the CPU (`make test-gpu`: on it)
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from chacal.training.bfloat16 import ensure_bfloat16

# a shell's & lets all that it starts ignore Ctrl-C, and tests press it
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# tensors here are tiny: on a busy machine a second thread costs ten times what it saves
torch.set_num_threads(1)


def pytest_configure(config):
    # once for all workers of xdist, which are started later and inherit the environment
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            ensure_bfloat16()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name in ("slow", "browser"):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
