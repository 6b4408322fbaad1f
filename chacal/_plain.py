"""Frozen dataclasses as plain data and back, strictly: what run folders and tables are stored as.

An unknown, missing or ill-typed field is an error that names it, so a file never silently means
something else than it says. A class may still grow: a field that is `added` later says what all
that was stored before it meant (`before`). It is left out where it has that value, and read as that
value where it is missing, so old files stay readable and what is named by its content keeps its
name.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_NONE = object()


def added(before: Any, **more: Any) -> Any:
    """A field that is younger than stored files, in which its absence means `before`.

    Args:
        before: what files without the field mean; the default too, unless `default` says other.
        more: `default`, and metadata such as `help`.
    """
    default = more.pop("default", before)
    return dataclasses.field(default=default, metadata={"before": before, **more})


def to_plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists; what JSON has, as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(own)
            for field in dataclasses.fields(value)
            if (own := getattr(value, field.name)) != field.metadata.get("before", _NONE)
        }
    if isinstance(value, (tuple, list)):
        return [to_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    return value


def from_plain(cls: type[T], data: Any, where: str) -> T:
    """A dataclass from plain data; every field there, none besides, each of its type.

    Args:
        cls: the dataclass.
        data: what `to_plain` gave, or a file holds.
        where: how errors name the data, as in "task".
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {_short(data)}; expected an object")
    hints = typing.get_type_hints(cls)
    # cls is a dataclass, which a plain type variable cannot say
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in data:
        if name not in fields:
            raise ValueError(f"{where}.{name} is not a field of {cls.__name__}")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _typed(data[name], hints[name], f"{where}.{name}")
        elif "before" in field.metadata:
            values[name] = field.metadata["before"]
        else:
            raise ValueError(f"{where}.{name} is missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def member(data: Any, name: str, hint: Any, where: str) -> Any:
    """One field of plain data, of its type; whatever else there is does not matter.

    Args:
        data: an object.
        name: of the field.
        hint: its type, as a dataclass would declare it.
        where: how errors name the data: its file.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {_short(data)}; expected an object")
    if name not in data:
        raise ValueError(f"{where}: {name} is missing")
    return _typed(data[name], hint, f"{where}: {name}")


def _typed(value: Any, hint: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        kinds = [kind for kind in arguments if kind is not type(None)]
        # of several, the one that a value is already of; else the first says what was expected
        kind = next((k for k in kinds if type(value) is k), kinds[0])
        return _typed(value, kind, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where} is {_short(value)}; expected a list")
        return tuple(_typed(v, arguments[0], f"{where}[{i}]") for i, v in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {_short(value)}; expected an object")
        return {key: _typed(v, arguments[1], f"{where}.{key}") for key, v in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_plain(hint, value, where)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{where} is {_short(value)}; expected {hint.__name__}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
