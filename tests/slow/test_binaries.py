"""Every line of the kernels' table, compiled for its card: nothing spilled, and memory that it has.

In processes of their own: this one's kernels may be there to be interpreted.
"""

import os
import re
import sys

import pytest

from chacal.kernels.configs import TARGETS

pytest.importorskip("triton", reason="the kernels need Triton: pip install chacal[gpu]")

SPILLED = {
    "sm_90": {("forward", 4, 128): 8, ("adjoint", 4, 128): 8},
    "sm_100": {("adjoint", 4, 128): 8},
}
"""Float32 with 128 channels: two registers; no other choice that was tried had less."""

CODE = """
import sys
import torch
from chacal.kernels.aot import CARDS, KERNELS, compile_kernel
from chacal.kernels.configs import TABLE

target, options = sys.argv[1], eval(sys.argv[2])
for (kernel, itemsize, width), config in TABLE[target].items():
    if options and (itemsize, width) != (2, 64):
        continue
    if options and not set(options) <= set(KERNELS[kernel].arg_names):
        continue
    dtype = torch.bfloat16 if itemsize == 2 else torch.float32
    made = compile_kernel(kernel, target, dtype, width, config, **options)
    fits = made.shared <= CARDS[target].most_shared and made.programs >= 1
    print(kernel, itemsize, width, "spilled", made.spilled, "fits" if fits else "too large")
"""


@pytest.fixture
def compile_all(run):
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}

    def call(target, options):
        return run(sys.executable, "-c", CODE, target, repr(options), env=environment).splitlines()

    return call


@pytest.mark.parametrize("target", TARGETS)
def test_no_line_spills_and_all_fit(target, compile_all):
    lines = [
        line.split(" ", 5) for line in compile_all(target, {}) if re.search("fits|large", line)
    ]
    assert len(lines) == 20
    for kernel, itemsize, width, _, spilled, fits in lines:
        right = SPILLED.get(target, {}).get((kernel, int(itemsize), int(width)), 0)
        told = f"{target} {kernel} {itemsize} {width}"
        assert (told, int(spilled), fits) == (told, right, "fits")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("options", [{"WINDOW": True}, {"DROP": True}, {"SEQS": 16}], ids=str)
def test_every_option_compiles(target, options, compile_all):
    assert compile_all(target, options)
