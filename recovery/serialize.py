"""Records as plain JSON and back, for stored decisions and replay. Exact: a round trip gives an equal value.

Enums become their words, times ISO 8601 with their offset, tuples lists, frozensets sorted lists. Mappings of
free content (``data``, ``verdict``) must hold JSON already.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Union

from recovery.errors import BadInput
from recovery.phases import JobState
from recovery.records import Decision, Policy, SubjectState
from recovery.signals import Signal

_PLAIN_TYPES = frozenset({type(None), bool, int, float, str})


def to_plain(value: Any) -> Any:
    """A record as dicts, lists, strings, numbers, booleans and None. Raises BadInput for anything else."""
    kind: type = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if (names := _field_names(kind)) is not None:
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted((to_plain(each) for each in value), key=repr)
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    raise BadInput(f"a {kind.__name__} cannot be stored as JSON")


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Fields of a record, None for what is none: a state of 1,000 workers asks for them 10,000 times."""
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None


def from_plain[T](kind: type[T], plain: Any) -> T:
    """The record of this type from ``to_plain``'s form.

    Fields that are not known are left out and missing ones take their default, so that decisions stored by an
    older version can be replayed. Raises BadInput when it cannot be one.
    """
    result: T = _read(kind, plain, kind.__name__)
    return result


def state_from_plain(plain: Any) -> SubjectState:
    """A stored state, for replay."""
    return from_plain(SubjectState, plain)


def signal_from_plain(plain: Any) -> Signal:
    """A stored signal, for replay."""
    return from_plain(Signal, plain)


def inbox_from_plain(plain: Any) -> tuple[Signal, ...]:
    """A stored inbox, for replay."""
    return tuple(signal_from_plain(each) for each in plain)


def job_from_plain(plain: Any) -> JobState:
    """A stored phase state."""
    return from_plain(JobState, plain)


def policy_from_plain(plain: Any) -> Policy:
    """A stored policy."""
    return from_plain(Policy, plain)


def fingerprint(policy: Policy) -> str:
    """Version of a policy by its values alone: equal values, equal version."""
    values = {name: value for name, value in to_plain(policy).items() if name != "version"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def decision_from_plain(plain: Any) -> Decision:
    """A stored decision."""
    return from_plain(Decision, plain)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, plain: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return plain
    if origin in (Union, types.UnionType):
        return _read_union(typing.get_args(kind), plain, where)
    if origin is tuple:
        return _read_tuple(typing.get_args(kind), plain, where)
    if origin is frozenset:
        (of,) = typing.get_args(kind)
        return frozenset(_read(of, each, where) for each in _list(plain, where))
    if origin is not None and issubclass(origin, Mapping):
        _, of = typing.get_args(kind)
        if not isinstance(plain, dict):
            raise BadInput(f"{where} is no object", field=where)
        return {key: _read(of, each, f"{where}.{key}") for key, each in plain.items()}
    return _read_plain(kind, plain, where)


def _read_plain(kind: Any, plain: Any, where: str) -> Any:
    try:
        if is_dataclass(kind):
            return _read_record(typing.cast("type", kind), plain, where)
        if issubclass(kind, Enum):
            return kind(plain)
        if kind is datetime:
            return datetime.fromisoformat(plain)
        if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
            return float(plain)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{where}: {plain!r} is no {kind.__name__}", field=where) from error
    if not isinstance(plain, kind) or (kind is not bool and isinstance(plain, bool)):
        raise BadInput(f"{where}: {plain!r} is no {kind.__name__}", field=where)
    return plain


def _read_record(kind: type, plain: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise BadInput(f"{where} is no object", field=where)
    hints = _hints(kind)
    known = {
        each.name: _read(hints[each.name], plain[each.name], f"{where}.{each.name}")
        for each in fields(kind)
        if each.name in plain
    }
    return kind(**known)


def _read_union(kinds: tuple[Any, ...], plain: Any, where: str) -> Any:
    if plain is None and types.NoneType in kinds:
        return None
    (kind,) = [each for each in kinds if each is not types.NoneType]
    return _read(kind, plain, where)


def _read_tuple(kinds: tuple[Any, ...], plain: Any, where: str) -> Any:
    values = _list(plain, where)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], each, f"{where}[{n}]") for n, each in enumerate(values))
    if len(kinds) != len(values):
        raise BadInput(f"{where} has {len(values)} parts, not {len(kinds)}", field=where)
    return tuple(_read(kind, each, where) for kind, each in zip(kinds, values, strict=True))


def _list(plain: Any, where: str) -> list[Any]:
    if not isinstance(plain, list):
        raise BadInput(f"{where} is no list", field=where)
    return plain
