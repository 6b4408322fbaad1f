"""Operators as text: "dense", "block/3,rows=mean", "window@64".

A text is a name, a size where the operator has one ("/3" divides n, "@64" is absolute), and
options after commas; where one takes several numbers, plus signs join them ("offsets=1+2+5"). An
operator prints back as the shortest text that makes it again. `gamma=learn` asks the layer for a
learned γ per head that starts at 0, and `gamma=learn:0.5` for one that starts at 0.5.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import types
import typing
from typing import Any

from chacal._echo import shown
from chacal.operators.base import LEARN, Learn, Operator
from chacal.operators.family import OPERATORS

EXAMPLES = "'dense', 'chacal,gamma=0.8', 'block/3' or 'window@64'"


def parse_operator(text: str) -> Operator:
    """The operator that a text such as "block/3,rows=mean" names.

    Args:
        text: name, size if any, and `,option=value` for each option.

    Returns:
        a frozen dataclass, callable with q, k, v; `str` gives the text back.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"operator is {shown(text)}; expected a text such as {EXAMPLES}")
    head, *options = (part.strip() for part in text.split(","))
    mark = next((c for c in head if c in "@/"), "")
    name, _, size = head.partition(mark) if mark else (head, "", "")
    if name not in OPERATORS:
        close = difflib.get_close_matches(name, OPERATORS, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"operator {shown(text)} names {shown(name)}{hint}; expected one of "
            f"{', '.join(OPERATORS)}"
        )
    cls = OPERATORS[name]
    given: dict[str, Any] = {}
    if mark:
        if mark not in cls.sizes:
            raise ValueError(
                f"operator {shown(text)} has the size {shown(mark + size)}; {name} takes "
                + (" or ".join(f"'{name}{m}SIZE'" for m in cls.sizes) or "none")
            )
        given[cls.sizes[mark]] = _value(text, cls, cls.sizes[mark], size)
    for option in options:
        key, equals, value = option.partition("=")
        known = [f.name for f in dataclasses.fields(cls)]
        if not equals or key not in known:
            raise ValueError(
                f"operator {shown(text)} has the option {shown(option)}; {name} takes "
                + (", ".join(f"{k}=..." for k in known) or "none")
            )
        if key in given:
            raise ValueError(f"operator {shown(text)} gives {key} twice; expected it once")
        given[key] = _value(text, cls, key, value)
    try:
        return cls(**given)
    except ValueError as error:
        raise ValueError(f"operator {shown(text)}: {error}") from None


def parse_operators(text: str) -> tuple[Operator, ...]:
    """A list such as "dense,block/3,rows=mean,chacal"; a part with "=" goes with the one before."""
    return tuple(map(parse_operator, split_operators(text)))


def split_operators(text: str) -> list[str]:
    """The texts of such a list, as they stand."""
    if not isinstance(text, str):
        raise ValueError(f"operators are {shown(text)}; expected a text such as 'dense,chacal'")
    texts: list[str] = []
    for part in text.split(","):
        if "=" in part and texts:
            texts[-1] += "," + part
        else:
            texts.append(part)
    return texts


def spelled_out(text: str, *, stored: bool = False) -> str:
    """A text that means the same for good: with every option that its operator was given later on.

    Where an option was `added` to an operator, texts without it are there already, in files. In
    those it has the meaning that the operator had then; from a user, its default of today.

    Args:
        text: of an operator, which may have "{}" for a size.
        stored: whether it comes from a file.
    """
    parts = text.split(",")
    given = {part.partition("=")[0].strip() for part in parts}
    missing = [
        f"{field.name}={field.metadata['before'] if stored else field.default}"
        for field in _added_options(text)
        if field.name not in given
    ]
    return ",".join([*parts, *missing])


def former_text(text: str) -> str:
    """The text as it stood before its operator was given options: older folders are named by it."""
    before = {f"{field.name}={field.metadata['before']}" for field in _added_options(text)}
    parts = spelled_out(text).split(",")
    return ",".join(part for part in parts if part.strip() not in before)


def _added_options(text: str) -> list[dataclasses.Field[Any]]:
    """Options of the operator that a text names which it did not always have."""
    cls = OPERATORS.get(re.split("[@/,]", text.strip(), maxsplit=1)[0].strip())
    return [f for f in dataclasses.fields(cls) if "before" in f.metadata] if cls else []


def _value(text: str, cls: type[Operator], field: str, value: str) -> Any:
    """`value` as the type of `field`."""
    kind = typing.get_type_hints(cls)[field]
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in options and value == "None":
        return None
    if Learn in options:
        if value.startswith(LEARN):
            return _learn(text, value)
        options = tuple(kind for kind in options if kind is not Learn)
    if tuple[int, ...] in options:
        with contextlib.suppress(ValueError):  # no numbers: a name, then
            return tuple(int(number) for number in value.split("+"))
    for kind in options:
        if kind is type(None):
            continue
        try:
            return kind(value)
        except ValueError:
            what = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
            raise ValueError(
                f"operator {shown(text)} gives {field} as {shown(value)}; expected {what}"
            ) from None
    raise TypeError(f"{cls.__name__}.{field} has no type that a text can give")


def _learn(text: str, value: str) -> Learn:
    """ "learn" or "learn:0.5"."""
    _, _, start = value.partition(f"{LEARN}:")
    try:
        return Learn() if value == LEARN else Learn(float(start))
    except ValueError:
        raise ValueError(
            f"operator {shown(text)} gives gamma as {shown(value)}; expected {LEARN}, or with a "
            f"start in [0, 1) {LEARN}:0.5"
        ) from None
