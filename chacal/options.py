"""Command-line options from dataclass fields, and back: every config field, documented once."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

import click

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


def options_of(cls: type, values: Any = None, skip: tuple[str, ...] = ()) -> list[click.Parameter]:
    """An option per field of a dataclass; defaults from `values`, or from the class."""
    hints = typing.get_type_hints(cls)
    made: list[click.Parameter] = []
    for field in dataclasses.fields(cls):
        if field.name in skip:
            continue
        default = field.default if values is None else getattr(values, field.name)
        flag = field.name.replace("_", "-")
        text = field.metadata.get("help", "")
        shown = "none" if default is None else default
        if hints[field.name] is bool:
            made.append(
                click.Option(
                    [f"--{flag}/--no-{flag}"], default=default, help=text, show_default=True
                )
            )
        else:
            made.append(
                click.Option(
                    [f"--{flag}"], type=_kind(hints[field.name]), default=default, help=text,
                    show_default=str(shown) if shown != "" else "required",
                )
            )  # fmt: skip
    return made


def collect(cls: type[T], values: dict[str, Any]) -> T:
    """The dataclass from parsed options; those of other classes are left alone."""
    own = {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values}  # type: ignore[arg-type]
    return cls(**own)


def _kind(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return NoneOr(next(h for h in hint.__args__ if h is not type(None)))
    return hint
