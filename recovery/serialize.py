"""Frozen records <-> plain JSON: decisions and what went into them are stored, replay reads them back.

``to_plain`` loses nothing that ``from_plain`` needs, given the type. Sets are sorted, so that equal values
have equal text.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any

from recovery.decide import SubjectState
from recovery.signals import Signal


def to_plain(value: Any) -> Any:
    """A value of the core as JSON types: dict, list, str, int, float, bool, None.

    Raises:
        TypeError: The value holds something that no record of the core may hold.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(content) for key, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(content) for content in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_plain(content) for content in value), key=repr)
    raise TypeError(f"{type(value).__name__} cannot be stored: records of the core hold plain values only")


def state_from_plain(plain: Mapping[str, Any]) -> SubjectState:
    """The state that ``to_plain`` wrote. Fields that an older version did not write take their defaults."""
    return from_plain(SubjectState, plain)


def signal_from_plain(plain: Mapping[str, Any]) -> Signal:
    """The signal that ``to_plain`` wrote."""
    return from_plain(Signal, plain)


def from_plain[T](kind: type[T], plain: Any) -> T:
    """A value of ``kind`` from what ``to_plain`` wrote.

    Raises:
        TypeError: ``plain`` does not fit ``kind``; the text says which field.
        ValueError: A word is none of its enumeration.
    """
    result: T = _read(kind, plain)
    return result


def _read(kind: Any, plain: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return plain
    if origin in (typing.Union, types.UnionType):
        return _read_union(typing.get_args(kind), plain)
    if origin in (tuple, list, frozenset, set):
        return _read_many(origin, typing.get_args(kind), plain)
    if origin is not None and issubclass(origin, Mapping):
        _, content = typing.get_args(kind)
        return {key: _read(content, value) for key, value in _expect(Mapping, plain).items()}
    if kind is datetime:
        return datetime.fromisoformat(_expect(str, plain))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if dataclasses.is_dataclass(kind):
        return _read_record(kind, _expect(Mapping, plain))
    if kind is float:
        return float(_expect((int, float), plain))
    return _expect(kind, plain)


def _read_union(kinds: tuple[Any, ...], plain: Any) -> Any:
    if plain is None and type(None) in kinds:
        return None
    present = [kind for kind in kinds if kind is not type(None)]
    if len(present) != 1:
        raise TypeError(f"{present} cannot be told apart in stored form")
    return _read(present[0], plain)


def _read_many(origin: Any, kinds: tuple[Any, ...], plain: Any) -> Any:
    items = _expect(list, plain)
    if origin is tuple and Ellipsis not in kinds:
        return tuple(_read(kind, item) for kind, item in zip(kinds, items, strict=True))
    return origin(_read(kinds[0], item) for item in items)


def _read_record(kind: Any, plain: Mapping[str, Any]) -> Any:
    hints = _hints(kind)
    try:
        return kind(**{name: _read(hints[name], value) for name, value in plain.items() if name in hints})
    except (TypeError, ValueError) as error:
        raise type(error)(f"{kind.__name__}: {error}") from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name in names}


def _expect(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, kind):
        raise TypeError(f"{plain!r} is not {kind}")
    return plain
