"""Every line of the kernels' table, compiled for its card: nothing spilled, and memory that it has.

In processes of their own: this one's kernels may be there to be interpreted.
"""

import os
import sys

import pytest

from chacal.kernels.configs import LINES, TABLE, TARGETS, WIDTHS

pytest.importorskip("triton", reason="the kernels need Triton: pip install chacal[gpu]")

CODE = """
import sys
import torch
from chacal.kernels.aot import CARDS, compile_kernel
from chacal.kernels.configs import find_config

target = sys.argv[1]
for line in sys.argv[2:]:
    name, itemsize, width = line.split("/")
    dtype = torch.bfloat16 if itemsize == "2" else torch.float32
    variant, _, kernel = name.rpartition(" ")
    config = find_config(kernel, target, dtype, int(width), [variant])
    made = compile_kernel(name, target, dtype, int(width), config)
    fits = made.shared <= CARDS[target].most_shared and made.programs >= 1
    right = made.repeats == config.repeats
    print(line, "spilled", made.spilled, "fits" if fits else "too large",
          "" if right else f"repeats {made.repeats}", sep="|")
"""


@pytest.fixture
def compile_lines(run):
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}

    def call(target, lines):
        found = run(sys.executable, "-c", CODE, target, *lines, env=environment).splitlines()
        return [line for line in found if "|" in line]

    return call


def right(lines):
    return [f"{line}|spilled|0|fits|" for line in lines]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_no_line_spills_and_all_fit(target, itemsize, compile_lines):
    lines = [f"{name}/{itemsize}/{width}" for width in WIDTHS for name in LINES]
    assert len(lines) == 21
    assert compile_lines(target, lines) == right(lines)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", ["window", "drop", "packed"])
def test_no_variant_spills(target, variant, compile_lines):
    kernels = ("forward", "adjoint", "gradient")
    lines = [f"{variant} {kernel}/2/{width}" for width in (64, 128) for kernel in kernels]
    assert compile_lines(target, lines) == right(lines)


def test_a_line_that_the_table_has_is_compiled_here():
    compiled = {*LINES, *(f"{x} {y}" for x in ("window", "drop", "packed") for y in LINES)}
    for target in TARGETS:
        assert {name for name, _, _ in TABLE[target]} <= compiled
