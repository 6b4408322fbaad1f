"""A run that is done, for tests of what can happen to one."""

import pytest
from called import TINY, chacal


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    done = chacal(*TINY, "--out", out)
    assert done.returncode == 0, done.stderr
    return out
