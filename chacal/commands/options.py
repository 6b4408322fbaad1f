"""Command-line options from dataclass fields, and back: every config field, documented once."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from chacal._echo import shown
from chacal.operators import parse_operator, parse_operators
from chacal.training.transformers_model import MOST_LAYERS

T = TypeVar("T")


class NoneOr(click.ParamType):
    """A value of some type, or "none"."""

    def __init__(self, kind: type) -> None:
        self.inner = click.types.convert_type(kind)
        self.name = f"{self.inner.name}|none"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value, or None."""
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return self.inner.convert(value, param, ctx)


class Examples(click.ParamType):
    """A number of examples, or "all", which is 0."""

    name = "integer|all"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number."""
        if str(value).lower() == "all":
            return 0
        return int(click.IntRange(0).convert(value, param, ctx))


def options_of(
    cls: type, values: Any = None, skip: tuple[str, ...] = (), only: tuple[str, ...] = ()
) -> list[click.Parameter]:
    """An option per field of a dataclass; defaults from `values`, or from the class."""
    hints = typing.get_type_hints(cls)
    made: list[click.Parameter] = []
    for field in dataclasses.fields(cls):
        if field.name in skip or (only and field.name not in only):
            continue
        default = field.default if values is None else getattr(values, field.name)
        flag = field.name.replace("_", "-")
        text = field.metadata.get("help", "")
        # click shows a default itself, but for none at all and for what must be given
        shown = "none" if default is None else "required" if default == "" else True
        if hints[field.name] is bool:
            made.append(
                click.Option(
                    [f"--{flag}/--no-{flag}"], default=default, help=text, show_default=True
                )
            )
        else:
            made.append(
                click.Option(
                    [f"--{flag}"], default=default, help=text,
                    type=Examples() if flag.endswith("-examples") else _kind(hints[field.name]),
                    show_default=shown,
                )
            )  # fmt: skip
    return made


def collect(cls: type[T], values: dict[str, Any]) -> T:
    """The dataclass from parsed options; those of other classes are left alone."""
    # cls is a dataclass, which a plain type variable cannot say
    own = {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values}  # type: ignore[arg-type]
    return cls(**own)


def given_options(cls: type) -> list[str]:
    """The fields of a dataclass that were given on the command line."""
    context = click.get_current_context()
    return [
        field.name
        for field in dataclasses.fields(cls)
        if context.get_parameter_source(field.name) is ParameterSource.COMMANDLINE
    ]


def refuse_options(cls: type, reason: str) -> None:
    """Raise if an option of a dataclass was given on the command line."""
    given = [f"--{name.replace('_', '-')}" for name in given_options(cls)]
    if given:
        raise ValueError(f"{', '.join(given)} cannot be given here: {reason}")


def choose_operators(
    operators: str | None, operator: str | None, told: str | None, default: tuple[str, ...]
) -> tuple[str, ...]:
    """The operator of each layer from --operators, or from --operator and --layers."""
    # isdecimal, and short: int() refuses some digits, and a number of too many
    layers = int(told) if told is not None and told.isdecimal() and len(told) < 20 else 0
    if told is not None and not 1 <= layers <= MOST_LAYERS:
        raise ValueError(
            f"--layers is {shown(told)}; expected how many, at most {MOST_LAYERS}, or with "
            f"--pretrained which, as in 10+14"
        )
    if operator is not None and operators is not None:
        raise ValueError("operator and operators are both given; expected one of them")
    if operator is not None:
        return (str(parse_operator(operator)),) * (layers or len(default))
    chosen = default if operators is None else tuple(map(str, parse_operators(operators)))
    if layers not in (0, len(chosen)):
        raise ValueError(
            f"layers is {layers} and operators are {len(chosen)}; expected --operator OP with "
            f"--layers, or --operators with one for each layer"
        )
    return chosen


def _kind(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return NoneOr(next(h for h in hint.__args__ if h is not type(None)))
    return hint
