"""No output depends on a later token, through q, k or v; or it does, and the operator says so.

`.causal` means what is measured here: the Jacobian above the diagonal is exactly zero.
"""

import dataclasses
import typing

import pytest
import torch
from cases import CAUSAL, LEAF_CROSSING, LEAKY, draw_qkv, far, leaves

import chacal
from chacal.operators import OPERATORS
from chacal.ops.blockwise import BRANCHES, VALUES
from chacal.ops.delta import READS
from chacal.ops.pattern import PATTERNS
from chacal.ops.resolvent import DIAGONALS, PRUNINGS
from chacal.ops.routing import SCORES
from chacal.ops.samplers import COLUMNS, ROWS


def largest_from_the_future(text: str, n: int = 7) -> list[float]:
    """max |∂Y_t/∂x_s| over s > t, for x = q, k, v."""
    operator = chacal.parse_operator(text)
    inputs = leaves(*draw_qkv(n=n, d=2, d_v=3))
    Y = operator(*inputs)
    largest = [0.0, 0.0, 0.0]
    for t in range(n):
        for j in range(Y.shape[-1]):
            grads = torch.autograd.grad(Y[t, j], inputs, retain_graph=True)
            for i, grad in enumerate(grads):
                if t + 1 < n:
                    largest[i] = max(largest[i], float(grad[t + 1 :].abs().max()))
            assert all(grad.isfinite().all() for grad in grads)
    return largest


@pytest.mark.parametrize("text", CAUSAL)
def test_causal_operators_do_not_see_the_future(text):
    assert chacal.parse_operator(text).causal
    assert largest_from_the_future(text) == [0, 0, 0]


@pytest.mark.parametrize("text", LEAKY)
def test_leaky_operators_leak_through_attention_and_say_so(text):
    assert not chacal.parse_operator(text).causal
    through_q, through_k, through_v = largest_from_the_future(text)
    assert through_q > 1e-5
    assert through_k > 1e-5
    # values alone would not show it, which is how the paper's check could miss it
    assert through_v == 0


@pytest.mark.parametrize("d_v", [3, 5])
@pytest.mark.parametrize(
    "text",
    [
        "dense",
        "dense,top_k=9",
        "local@20",
        "bigbird@9",
        "chacal",
        "chacal,diagonal=drop",
        "chacal,top_k=9",
        "window@40",
        "window@40,diagonal=drop",
        "pooled",
        "pooled@16,near=0",
        "routed@16",
        "routed@8,near=0,routes=3,score=bound",
        "pattern",
        "pattern,offsets=squares",
        "pattern,offsets=1+70",
        "delta",
        "delta,beta=0.5,read=keys",
        "block@70",
        "block@13,columns=mean",
        "block@13,values=rows",
        "block@40,rows=mean,branches=local",
        "block/3,branches=residual",
    ],
)
def test_the_future_may_change_and_the_past_stays_bit_for_bit(text, d_v):
    operator = chacal.parse_operator(text)
    inputs = draw_qkv(1, 2, n=LEAF_CROSSING, d_v=d_v)
    Y = operator(*inputs)
    for t in (1, 63, 64, 65, 100, 129):
        for i in range(3):
            changed = [x.clone() for x in inputs]
            changed[i][..., t:, :] = changed[i][..., t:, :].flip(-2) * 3 + 1
            Y_changed = operator(*changed)
            assert torch.equal(Y_changed[..., :t, :], Y[..., :t, :])
            if t == 1:
                assert far(Y_changed, Y) > 1e-6


@pytest.mark.parametrize(
    "text",
    [
        *("chacal", "window@40", "pooled@16", "routed@16", "block@70", "block@13,values=rows"),
        *("delta", "delta,read=keys"),
    ],
)
@pytest.mark.parametrize("d_v", [3, 5])
def test_gradients_across_tiles_do_not_come_from_the_future(text, d_v):
    inputs = leaves(*draw_qkv(n=LEAF_CROSSING, d_v=d_v))
    Y = chacal.parse_operator(text)(*inputs)
    for t in (0, 62, 63, 64, 127, 128):
        for grad in torch.autograd.grad(Y[t].sum(), inputs, retain_graph=True):
            assert bool((grad[t + 1 :] == 0).all())


def test_every_operator_and_option_is_covered():
    operators = [chacal.parse_operator(text) for text in CAUSAL + LEAKY]
    assert {type(operator) for operator in operators} == set(OPERATORS.values())
    choices = {"rows": ROWS, "columns": COLUMNS, "branches": BRANCHES, "diagonal": DIAGONALS,
               "score": SCORES, "prune": PRUNINGS, "values": VALUES, "read": READS}  # fmt: skip
    for cls in OPERATORS.values():
        mine = [operator for operator in operators if type(operator) is cls]
        for field in dataclasses.fields(cls):
            seen = {getattr(operator, field.name) for operator in mine}
            if field.name in choices:
                assert seen == set(choices[field.name])
            else:
                assert typing.get_type_hints(cls)[field.name] is not str, (
                    f"{field.name}: its choices?"
                )
                assert len(seen) > 1, f"{cls.__name__}.{field.name} is never varied"
    named = {o.offsets for o in operators if type(o) is OPERATORS["pattern"]}
    assert set(PATTERNS) < named
    # all combinations of Algorithm 1's options
    block = {
        (o.rows, o.columns, o.branches, o.values)
        for o in operators if type(o) is OPERATORS["block"]
    }  # fmt: skip
    # the local branch alone has neither rows nor values to choose
    combinations = {
        (r, c, b, v) for r in ROWS for c in COLUMNS for b in BRANCHES for v in VALUES
        if b != "local" or (r, v) == ("first", "mean")
    }  # fmt: skip
    assert combinations <= block
