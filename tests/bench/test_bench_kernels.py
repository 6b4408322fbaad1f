"""What the kernels do, counted by hand where that is short, and held to what was promised."""

import pytest
import torch

from chacal.bench.kernels import against_flash, check_target, compile_table
from chacal.kernels import model
from chacal.kernels.configs import LINES, TABLE, TARGETS, WIDTHS, Config, find_config

PROMISED = {"n": 4096, "heads": 16, "batch": 4}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [64, 128])
def test_what_was_promised(target, width):
    forward, backward = against_flash(target, "bfloat16", width, **PROMISED)
    assert forward.launches == 1
    assert backward.launches == 2
    assert forward.work <= 1.25
    assert forward.memory <= 1.3
    assert backward.work <= 1.3


def test_an_inverse_by_hand():
    assert model.inverse_work(16) == 6 * 16**3
    # two squares of 16, merged by two products of 16
    assert model.inverse_work(32) == 2 * 6 * 16**3 + 2 * 16**3


def test_one_tile_by_hand():
    shape = model.Shape(n=32, pairs=3, d=16, d_v=64)
    cost = model.forward_cost(shape, Config(tile=32, warps=2), "bf16x3")
    scores, values = 32 * 32 * 16, 32 * 32 * 64
    # scores of the tile thrice: of itself twice, and of the tile before it twice, which is not
    # there for the first but is multiplied all the same
    assert cost.work == 3 * (3 * scores + values + 3 * (model.inverse_work(32) + values))
    # q and k, v, Z and Y in half precision, and a log-sum-exp
    assert cost.memory == 3 * 32 * (2 * (2 * 16 + 3 * 64) + 4)
    assert cost.chain == 1


def test_flash_attention_by_hand():
    shape = model.Shape(n=3, pairs=1, d=16, d_v=16)
    assert model.flash_forward(shape).work == 6 * 32  # six entries of A, two products
    assert model.flash_backward(shape).work == 6 * 80  # and five


def test_warps_that_repeat_others_count():
    shape = model.Shape(n=4096, pairs=1, d=64, d_v=64)
    once, twice = (
        model.forward_cost(shape, Config(tile=16, warps=4, repeats=times), "bf16x3").work
        for times in (1, 2)
    )
    scores = 4096 * (4096 + 16) / 2 + 2 * 4096 * 16  # whole tiles, and those of two again
    assert twice - once == scores * 64


def test_every_line_of_the_table_is_there():
    for target in TARGETS:
        for kernel in LINES:
            for itemsize in (2, 4):
                for width in WIDTHS:
                    config = TABLE[target][kernel, itemsize, width]
                    assert config.tile in (16, 32, 64, 128)


def test_a_variant_has_a_line_of_its_own_where_the_table_has_one():
    plain, windowed = (
        find_config("adjoint", "sm_90", torch.bfloat16, 50, variants)
        for variants in ([], ["packed", "window"])
    )
    assert plain == TABLE["sm_90"]["adjoint", 2, 64]
    assert windowed == TABLE["sm_90"]["window adjoint", 2, 64] != plain
    assert find_config("adjoint", "sm_90", torch.bfloat16, 50, ["packed"]) == plain


def test_an_unknown_target():
    with pytest.raises(ValueError, match="sm_80, sm_90, sm_100, gfx942"):
        check_target("sm_70")


def test_what_cannot_be_compiled_says_why():
    # without Triton, and where its kernels are interpreted, as in these tests
    with pytest.raises(ValueError, match=r"Triton is not installed|TRITON_INTERPRET is set"):
        list(compile_table("sm_90", "bfloat16", (64,)))
