"""Every test of what the library computes, with every kind of it."""

import ctypes

import pytest

from chacal.native import build, resolvent

COMPILER = build.find_compiler()
QUICK = ("-O1", *build.OPTIONS[1:], "-DPOISON")
"""Compiled in a second, and buffers start as NaN: what nobody wrote must not be read."""

KINDS = {
    "as it is used": build.OPTIONS,
    "poisoned": QUICK,
    "AVX2": (*QUICK, "-mno-avx512f"),
    "SSE": (*QUICK, "-mno-avx"),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    """A kind of the library in the place of the one in use, for inputs of any length."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    try:
        path = build.compiled(COMPILER, KINDS[request.param])
    except ValueError as error:
        pytest.skip(f"{request.param}: {error}")
    made = ctypes.CDLL(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolvent, "library", lambda: made)
        patch.setattr(resolvent, "LEAST", 1)
        yield request.param
