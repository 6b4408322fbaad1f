"""Operators as values and as text."""

import copy
import dataclasses
import inspect
import pickle

import pytest
import torch

import chacal
from chacal.operators import (
    OPERATORS,
    BigBird,
    BlockResolvent,
    Delta,
    Dense,
    Learn,
    Local,
    PatternResolvent,
    PooledResolvent,
    Resolvent,
    RoutedResolvent,
    TPost,
    TPre,
    WindowResolvent,
    former_text,
    spelled_out,
)

# text, the operator it names, and the text that prints, where it is another
TEXTS = [
    ("dense", Dense(), None),
    ("dense,top_k=4", Dense(top_k=4), None),
    ("dense,top_k=None", Dense(), "dense"),
    ("local", Local(), None),
    ("local@8", Local(window=8), None),
    ("local,window=8", Local(window=8), "local@8"),
    ("local@32", Local(), "local"),
    ("bigbird", BigBird(), None),
    ("bigbird@8,links=0,seed=3", BigBird(window=8, links=0, seed=3), None),
    ("chacal", Resolvent(), None),
    ("chacal,gamma=0.8", Resolvent(gamma=0.8), None),
    ("chacal,gamma=0.80", Resolvent(gamma=0.8), "chacal,gamma=0.8"),
    ("chacal,gamma=1e-3", Resolvent(gamma=0.001), "chacal,gamma=0.001"),
    ("chacal,gamma=0.9,diagonal=keep", Resolvent(), "chacal"),
    ("chacal,diagonal=drop,gamma=0.8", Resolvent(gamma=0.8, diagonal="drop"),
     "chacal,gamma=0.8,diagonal=drop"),
    ("chacal,top_k=3", Resolvent(top_k=3), None),
    ("chacal,gamma=learn", Resolvent(gamma=Learn()), None),
    ("chacal,gamma=learn:0", Resolvent(gamma=Learn()), "chacal,gamma=learn"),
    ("window@7,gamma=learn:0.50", WindowResolvent(window=7, gamma=Learn(0.5)),
     "window@7,gamma=learn:0.5"),
    ("block/3", BlockResolvent(divisor=3), None),
    ("block@64", BlockResolvent(block_size=64), None),
    ("block,divisor=3", BlockResolvent(divisor=3), "block/3"),
    ("block/3,values=rows", BlockResolvent(divisor=3, values="rows"), None),
    ("block/3,values=mean", BlockResolvent(divisor=3), "block/3"),
    ("block/3,rows=mean,branches=local",
     BlockResolvent(divisor=3, rows="mean", branches="local"), None),
    ("block@64,gamma=0.5,rows=last,columns=mean,branches=residual",
     BlockResolvent(block_size=64, gamma=0.5, rows="last", columns="mean", branches="residual"),
     None),
    ("window", WindowResolvent(), "window@64"),
    ("window@64", WindowResolvent(window=64), None),
    ("window@7,gamma=0,diagonal=drop", WindowResolvent(window=7, gamma=0, diagonal="drop"),
     "window@7,gamma=0.0,diagonal=drop"),
    ("pooled", PooledResolvent(), None),
    ("pooled@16,near=0", PooledResolvent(block_size=16, near=0), None),
    ("t_post,top_k=2", TPost(top_k=2), None),
    ("t_pre,top_k=1,prune=inside", TPre(top_k=1, prune="inside"), None),
    ("routed", RoutedResolvent(), None),
    ("routed@64,near=1,routes=1", RoutedResolvent(block_size=64), "routed@64"),
    ("routed@9,near=0,routes=2,parts=3,score=bound",
     RoutedResolvent(block_size=9, near=0, routes=2, parts=3, score="bound"), None),
    ("pattern", PatternResolvent(), None),
    ("pattern,offsets=powers", PatternResolvent(), "pattern"),
    ("pattern,offsets=squares,gamma=0.5", PatternResolvent(offsets="squares", gamma=0.5), None),
    ("pattern,gamma=0.5,offsets=1+2+5", PatternResolvent(offsets=(1, 2, 5), gamma=0.5),
     "pattern,offsets=1+2+5,gamma=0.5"),
    ("pattern,offsets=5+1+2", PatternResolvent(offsets=(5, 1, 2)), None),
    ("pattern,offsets=7", PatternResolvent(offsets=(7,)), None),
    ("delta", Delta(), None),
    ("delta,read=queries", Delta(), "delta"),
    ("delta,read=keys,beta=0.5", Delta(beta=0.5, read="keys"), "delta,beta=0.5,read=keys"),
    ("delta,beta=None", Delta(), "delta"),
    (" block/3 , rows=mean ", BlockResolvent(divisor=3, rows="mean"), "block/3,rows=mean"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "operator", "printed"), TEXTS)
def test_text_to_operator_and_back(text, operator, printed):
    parsed = chacal.parse_operator(text)
    assert type(parsed) is type(operator)
    assert parsed == operator
    assert hash(parsed) == hash(operator)
    assert str(parsed) == (printed or text)
    assert chacal.parse_operator(str(parsed)) == parsed


def test_every_operator_has_a_text():
    assert {type(operator) for _, operator, _ in TEXTS} == set(OPERATORS.values())


def test_equal_only_if_every_field_is():
    operators = {chacal.parse_operator(text) for text, _, _ in TEXTS}
    assert len(operators) == len({str(operator) for operator in operators})
    assert chacal.parse_operator("block/3") != chacal.parse_operator("block@3")
    assert chacal.parse_operator("local@64") != chacal.parse_operator("window@64")


@pytest.mark.parametrize(("text", "operator", "printed"), TEXTS)
def test_operators_are_frozen_and_can_be_copied(text, operator, printed):
    for field in dataclasses.fields(operator):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(operator, field.name, 1)
    assert copy.deepcopy(operator) == operator
    assert pickle.loads(pickle.dumps(operator)) == operator
    assert dataclasses.replace(operator) == operator


@pytest.mark.parametrize("cls", OPERATORS.values())
def test_a_function_and_its_operator_have_the_same_options_and_defaults(cls):
    function = cls.of_weights if issubclass(cls, TPost) else cls.function
    tensors = {"q", "k", "v", "A", "V", "scale", "mask", "cu_seqlens"}
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in tensors
    }
    if issubclass(cls, TPost):
        del defaults["gamma"]  # the operators of Section 3.4 have γ = 1
    fields = {field.name: field.default for field in dataclasses.fields(cls)}
    if cls in (Dense, Resolvent):
        assert fields.pop("top_k") is None  # another function, that forms A
    assert fields == defaults
    for name, default in fields.items():
        assert type(default) is type(defaults[name])


def test_operators_take_their_options_by_name_only():
    with pytest.raises(TypeError):
        Local(8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "operator is ''; expected a text such as"),
        ("  ", "operator is '  '"),
        (None, "operator is None"),
        (3, "operator is 3"),
        ("chacl", r"operator 'chacl' names 'chacl' \(did you mean 'chacal'\?\); expected one of"),
        ("Dense", "operator 'Dense' names 'Dense'"),
        ("flash", "names 'flash'; expected one of dense, local, bigbird, chacal, block"),
        ("dense@3", "operator 'dense@3' has the size '@3'; dense takes none"),
        ("chacal/3", "has the size '/3'; chacal takes none"),
        ("window/3", "has the size '/3'; window takes 'window@SIZE'"),
        ("block#3", "names 'block#3'"),
        ("block", "operator 'block': block_size is None and divisor is None.*'block@64'"),
        ("block/3,block_size=4", "block_size is 4 and divisor is 3; expected exactly one"),
        ("block/3,divisor=4", "operator 'block/3,divisor=4' gives divisor twice"),
        ("chacal,gamma=0.8,gamma=0.8", "gives gamma twice"),
        ("block/", "operator 'block/' gives divisor as ''; expected a whole number"),
        ("block/x", "gives divisor as 'x'; expected a whole number"),
        ("block@2.5", "gives block_size as '2.5'; expected a whole number"),
        ("block/0", "operator 'block/0': divisor is 0; expected a whole number of at least 1"),
        ("block@-1", "block_size is -1"),
        ("window@0", "operator 'window@0': window is 0"),
        ("pooled@0", "block_size is 0"),
        ("routed@0", "block_size is 0"),
        ("routed,routes=0", "routes is 0; expected a whole number of at least 1"),
        ("routed,parts=0", "parts is 0; expected a whole number of at least 1"),
        ("routed,score=best", "score is 'best'; expected one of 'mean', 'bound'"),
        ("pooled,near=-1", "near is -1; expected a whole number of at least 0"),
        ("local@0", "window is 0"),
        ("pattern@3", "has the size '@3'; pattern takes none"),
        ("pattern,offsets=", "offsets is ''; expected one of 'powers', 'squares', or a tuple"),
        ("pattern,offsets=cubes", "operator 'pattern,offsets=cubes': offsets is 'cubes'"),
        ("pattern,offsets=1+x", r"offsets is '1\+x'; expected .*as text, 1\+2\+5"),
        ("pattern,offsets=1++2", r"offsets is '1\+\+2'"),
        ("pattern,offsets=1+0", r"offsets is \(1, 0\); expected"),
        ("pattern,offsets=1+-2", r"offsets is \(1, -2\); expected"),
        ("pattern,offsets=1+1", r"offsets is \(1, 1\); expected .*different"),
        ("pattern,offsets=1,2", "has the option '2'; pattern takes offsets=..., gamma=..."),
        ("delta,beta=2", r"operator 'delta,beta=2': beta is 2.0; expected a number in \[-1, 1\]"),
        ("delta,beta=nan", "beta is nan"),
        ("delta,read=values", "read is 'values'; expected one of 'queries', 'keys'"),
        ("bigbird,links=-1", "links is -1"),
        ("dense,top_k=0", "operator 'dense,top_k=0': top_k is 0"),
        ("chacal,gamma=1", r"operator 'chacal,gamma=1': gamma is 1.0; expected .*\[0, 1\)"),
        ("chacal,gamma=-0.1", r"gamma is -0.1"),
        ("chacal,gamma=nan", "gamma is nan"),
        ("chacal,gamma=high", "gives gamma as 'high'; expected a number"),
        ("chacal,diagonal=none", "diagonal is 'none'; expected one of 'keep', 'drop'"),
        ("block/3,rows=median", "operator 'block/3,rows=median': rows is 'median'.*'first'"),
        ("block/3,columns=max", "columns is 'max'.*'sum', 'mean'"),
        ("block/3,branches=none", "branches is 'none'.*'both', 'local', 'residual'"),
        ("t_pre,prune=left", "prune is 'left'; expected one of 'both', 'outside', 'inside'"),
        ("dense,gamma=0.5", "has the option 'gamma=0.5'; dense takes top_k=..."),
        ("chacal,gama=0.5", "operator 'chacal,gama=0.5' has the option 'gama=0.5'; chacal takes"),
        ("chacal,drop", "has the option 'drop'"),
        ("chacal,", "operator 'chacal,' has the option ''"),
    ],
)  # fmt: skip
def test_bad_text_is_quoted(text, message):
    with pytest.raises(ValueError, match=message):
        chacal.parse_operator(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Local(window=0), "window is 0"),
        (lambda: Local(window=2.0), "window is 2.0"),
        (lambda: Resolvent(gamma=1), "gamma is 1;"),
        (lambda: Resolvent(gamma="0.5"), "gamma is '0.5'"),
        (lambda: Resolvent(diagonal=None), "diagonal is None"),
        (lambda: BlockResolvent(), "block_size is None and divisor is None"),
        (lambda: BlockResolvent(block_size=2, divisor=2), "block_size is 2 and divisor is 2"),
        (lambda: BlockResolvent(block_size=True), "block_size is True"),
        (lambda: PooledResolvent(near=None), "near is None"),
        (lambda: PatternResolvent(offsets=()), r"offsets is \(\)"),
        (lambda: PatternResolvent(offsets=[1, 2]), r"offsets is \[1, 2\]; expected .*a tuple"),
        (lambda: PatternResolvent(gamma=1), "gamma is 1;"),
        (lambda: BigBird(seed=-1), "seed is -1"),
    ],
)
def test_bad_fields_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_list_keeps_options_with_their_operator():
    texts = ["dense", "block/3,rows=mean,columns=mean", "chacal,gamma=0.8", "window@4", "local"]
    texts += ["pattern,offsets=1+2", "dense"]
    expected = tuple(map(chacal.parse_operator, texts))
    assert chacal.parse_operators(",".join(texts)) == expected
    assert chacal.parse_operators(", ".join(texts)) == expected
    assert chacal.parse_operators("chacal") == (Resolvent(),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "operator is ''"),
        ("dense,,chacal", "operator is ''"),
        ("dense,flash", "names 'flash'"),
        ("gamma=0.8,chacal", "operator 'gamma=0.8'"),
        ("dense,chacal,gamma=2", "operator 'chacal,gamma=2': gamma is 2.0"),
    ],
)
def test_bad_lists_quote_the_part(text, message):
    with pytest.raises(ValueError, match=message):
        chacal.parse_operators(text)


def inputs(n: int = 13) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, n, 4, generator=generator, dtype=torch.float64) for _ in range(3)]


def pruned(q, k, v, gamma, diagonal):
    return chacal.resolvent(chacal.top_k(chacal.attention_weights(q, k), 3), v, gamma, diagonal)


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("dense", chacal.dense_attention),
        ("dense,top_k=3", lambda q, k, v: chacal.t_raw(chacal.attention_weights(q, k), v, 3)),
        ("local@4", lambda *x: chacal.local_attention(*x, window=4)),
        ("local", lambda *x: chacal.local_attention(*x, window=32)),
        ("bigbird@4,links=2,seed=5",
         lambda *x: chacal.bigbird_attention(*x, window=4, links=2, seed=5)),
        ("chacal", lambda *x: chacal.resolvent_attention(*x, gamma=0.9)),
        ("chacal,gamma=0.3,diagonal=drop",
         lambda *x: chacal.resolvent_attention(*x, gamma=0.3, diagonal="drop")),
        ("chacal,top_k=3", lambda *x: pruned(*x, 0.9, "keep")),
        ("chacal,gamma=0.3,top_k=3,diagonal=drop", lambda *x: pruned(*x, 0.3, "drop")),
        ("block/3,gamma=0.3",
         lambda *x: chacal.block_resolvent_attention(*x, divisor=3, gamma=0.3)),
        ("block@4,rows=mean,columns=mean,branches=residual",
         lambda *x: chacal.block_resolvent_attention(
             *x, block_size=4, rows="mean", columns="mean", branches="residual")),
        ("window@4,gamma=0.3,diagonal=drop",
         lambda *x: chacal.window_resolvent_attention(*x, window=4, gamma=0.3, diagonal="drop")),
        ("pooled", chacal.pooled_resolvent_attention),
        ("t_post,top_k=2,prune=inside",
         lambda q, k, v: chacal.t_post(chacal.attention_weights(q, k), v, 2, "inside")),
        ("t_pre,top_k=2,prune=outside",
         lambda q, k, v: chacal.t_pre(chacal.attention_weights(q, k), v, 2, "outside")),
        ("routed@2,near=0,routes=2,parts=2,score=bound,gamma=0.3",
         lambda *x: chacal.routed_resolvent_attention(
             *x, block_size=2, near=0, routes=2, parts=2, score="bound", gamma=0.3)),
        ("pooled@2,near=2,gamma=0.3",
         lambda *x: chacal.pooled_resolvent_attention(*x, block_size=2, near=2, gamma=0.3)),
        ("delta", chacal.delta_attention),
        ("delta,beta=0.3,read=keys",
         lambda *x: chacal.delta_attention(*x, beta=0.3, read="keys")),
        ("pattern", chacal.pattern_resolvent_attention),
        ("pattern,offsets=1+3,gamma=0.3",
         lambda *x: chacal.pattern_resolvent_attention(*x, offsets=(1, 3), gamma=0.3)),
    ],
)  # fmt: skip
def test_an_operator_is_its_function(text, function):
    assert torch.equal(chacal.parse_operator(text)(*inputs()), function(*inputs()))


@pytest.mark.parametrize(
    "text", ["chacal", "chacal,top_k=3", "block/3", "window@4", "pooled", "routed@2", "pattern"]
)
def test_a_given_gamma_stands_in_for_the_operators_own(text):
    operator = chacal.parse_operator(text)
    assert operator.has_gamma
    other = dataclasses.replace(operator, gamma=0.25)
    assert torch.equal(operator(*inputs(), gamma=0.25), other(*inputs()))
    assert not torch.equal(operator(*inputs()), other(*inputs()))
    learned = torch.full((3,), 0.25, dtype=torch.float64, requires_grad=True)
    Y = operator(*inputs(), gamma=learned)
    assert torch.allclose(Y, other(*inputs()), rtol=0, atol=1e-12)
    assert bool((torch.autograd.grad(Y.square().sum(), learned)[0] != 0).all())


@pytest.mark.parametrize("text", ["dense", "dense,top_k=3", "local", "bigbird"])
def test_operators_without_a_gamma_refuse_one(text):
    operator = chacal.parse_operator(text)
    assert not operator.has_gamma
    with pytest.raises(ValueError, match=f"gamma was given to {text}; expected a resolvent"):
        operator(*inputs(), gamma=0.5)


def test_scale_and_mask_reach_the_function():
    q, k, v = inputs()
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[0, :3] = False
    for text, _, _ in TEXTS:
        operator = chacal.parse_operator(text)
        # keys too, for they may be what searches
        smaller = operator(q * 0.4**0.5, k * 0.4**0.5, v)
        assert torch.allclose(operator(q, k, v, scale=0.2), smaller, atol=1e-12)
        masked = operator(q, k, v, mask=mask)
        assert bool((masked[0, :, :3] == 0).all())
        assert torch.allclose(
            masked[:1, :, 3:], operator(q[:1, :, 3:], k[:1, :, 3:], v[:1, :, 3:]), atol=1e-12
        )


@pytest.mark.parametrize(
    ("text", "told", "stored", "former"),
    [
        # before there was `values`, Algorithm 1 took the block's rows
        ("block/3", "block/3,values=mean", "block/3,values=rows", "block/3,values=mean"),
        ("block/3,values=rows", "block/3,values=rows", "block/3,values=rows", "block/3"),
        ("block@8,rows=mean", "block@8,rows=mean,values=mean", "block@8,rows=mean,values=rows",
         "block@8,rows=mean,values=mean"),
        ("block@{},values=rows", "block@{},values=rows", "block@{},values=rows", "block@{}"),
        ("block/3,values=rows,rows=last", "block/3,values=rows,rows=last",
         "block/3,values=rows,rows=last", "block/3,rows=last"),
        ("chacal,gamma=0.5", "chacal,gamma=0.5", "chacal,gamma=0.5", "chacal,gamma=0.5"),
        ("pattern,offsets=powers", "pattern,offsets=powers", "pattern,offsets=powers",
         "pattern,offsets=powers"),
        ("formed", "formed", "formed", "formed"),
    ],
)  # fmt: skip
def test_a_stored_text_means_the_same_for_good(text, told, stored, former):
    assert spelled_out(text) == told
    assert spelled_out(text, stored=True) == stored
    assert former_text(text) == former
    assert spelled_out(told, stored=True) == told


def test_a_learned_gamma_is_asked_for_in_the_text():
    assert chacal.parse_operator("block@4,gamma=learn:0.25").learn == Learn(0.25)
    assert Resolvent().learn is None
    assert Dense().learn is None
    learned = chacal.parse_operators("dense,chacal,gamma=learn,window@8")
    assert [op.own_gamma for op in learned] == [0.0, 0.0, 0.9]
    # by itself, it has the γ that learning starts with, in parallel and one by one
    q, k, v = torch.randn(3, 1, 2, 7, 4, dtype=torch.float64)
    operator = chacal.parse_operator("chacal,gamma=learn:0.5")
    expected = Resolvent(gamma=0.5)(q, k, v)
    assert torch.equal(operator(q, k, v), expected)
    torch.testing.assert_close(operator.decoder().extend(q, k, v), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("value", ["learn:1", "learn:", "learn:x", "learn:-0.1", "learned"])
def test_a_bad_start_says_what_is_expected(value):
    with pytest.raises(ValueError, match=rf"'chacal,gamma={value}'.*expected .*learn:0\.5"):
        chacal.parse_operator(f"chacal,gamma={value}")


@pytest.mark.parametrize("text", [
    "chacal", "chacal,diagonal=drop", "chacal,top_k=3", "block@4", "block/3,rows=mean", "window@5",
    "pooled@4", "routed@4", "pattern",
])  # fmt: skip
def test_the_gradient_in_gamma_is_right_at_0(text):
    # γ = 0 is a border: the difference quotient is taken from inside, to second order
    torch.manual_seed(0)
    operator = chacal.parse_operator(text)
    q, k, v, weight = torch.randn(4, 2, 3, 13, 4, dtype=torch.float64)
    gamma = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (operator(q, k, v, gamma=gamma) * weight).sum().backward()
    h = 1e-5
    zero, one, two = (
        (operator(q, k, v, gamma=torch.full((3,), g, dtype=torch.float64)) * weight).sum((0, 2, 3))
        for g in (0.0, h, 2 * h)
    )
    expected = (4 * one - 3 * zero - two) / (2 * h)
    assert expected.abs().min() > 1e-2
    torch.testing.assert_close(gamma.grad, expected, atol=1e-8, rtol=0)
