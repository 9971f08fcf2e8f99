"""Label and field selectors: the query strings and the LabelSelector of objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sim.errors import BadRequest

Labels = Mapping[str, str]
Predicate = Callable[[Labels], bool]

_SET = re.compile(r"^\s*(?P<key>[^\s,=!()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)\s*$")
_COMPARE = re.compile(r"^\s*(?P<key>[^\s,=!<>()]+)\s*(?P<op>==|=|!=|>|<)\s*(?P<value>[^\s,=!<>()]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[^\s,=!<>()]+)\s*$")


def _everything(_labels: Labels) -> bool:
    return True


def _split(text: str) -> list[str]:
    """Requirements of a selector; commas inside parentheses belong to a value list."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return parts


def _membership(key: str, values: frozenset[str], *, negate: bool) -> Predicate:
    if negate:
        return lambda labels: labels.get(key) not in values
    return lambda labels: labels.get(key) in values


def _presence(key: str, *, negate: bool) -> Predicate:
    if negate:
        return lambda labels: key not in labels
    return lambda labels: key in labels


def _order(key: str, bound: int, *, greater: bool) -> Predicate:
    def compare(labels: Labels) -> bool:
        try:
            number = int(labels[key])
        except (KeyError, ValueError):
            return False
        return number > bound if greater else number < bound

    return compare


def _all(parts: list[Predicate]) -> Predicate:
    if not parts:
        return _everything
    if len(parts) == 1:
        return parts[0]
    return lambda labels: all(part(labels) for part in parts)


def parse_labels(text: str | None) -> Predicate:
    """The labelSelector query: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`, `a>1`, `a<9`.

    As in Kubernetes `!=` and `notin` also take objects without the label. Raises BadRequest.
    """
    if text is None or not text.strip():
        return _everything
    parts: list[Predicate] = []
    for part in _split(text):
        if found := _SET.match(part):
            values = frozenset(value.strip() for value in found["values"].split(","))
            parts.append(_membership(found["key"], values, negate=found["op"] == "notin"))
        elif found := _COMPARE.match(part):
            if found["op"] in "<>":
                try:
                    parts.append(_order(found["key"], int(found["value"]), greater=found["op"] == ">"))
                except ValueError:
                    raise BadRequest(
                        f"unable to parse requirement: {found['value']!r} is no integer"
                    ) from None
            else:
                parts.append(
                    _membership(found["key"], frozenset([found["value"]]), negate=found["op"] == "!=")
                )
        elif found := _EXISTS.match(part):
            parts.append(_presence(found["key"], negate=bool(found["not"])))
        else:
            raise BadRequest(f"unable to parse requirement: {part.strip()!r} in label selector {text!r}")
    return _all(parts)


def parse_fields(text: str | None, known: frozenset[str]) -> Predicate:
    """The fieldSelector query: `path=value`, `==`, `!=`, comma for "and". Only `known` paths; raises BadRequest."""
    if text is None or not text.strip():
        return _everything
    parts: list[Predicate] = []
    for part in text.split(","):
        if not part.strip():
            continue
        found = re.match(r"^\s*(?P<key>[A-Za-z.]+)\s*(?P<op>==|!=|=)(?P<value>.*)$", part)
        if found is None:
            raise BadRequest(f'invalid selector: "{part}"; can\'t understand "{part}"')
        if found["key"] not in known:
            raise BadRequest(f'field label not supported: "{found["key"]}"')
        value = re.sub(r"\\([\\,=])", r"\1", found["value"])
        key, negate = found["key"], found["op"] == "!="
        parts.append(_field(key, value, negate=negate))
    return _all(parts)


def _field(key: str, value: str, *, negate: bool) -> Predicate:
    if negate:
        return lambda fields: fields.get(key, "") != value
    return lambda fields: fields.get(key, "") == value


def from_object(selector: Mapping[str, Any] | None) -> Predicate:
    """A LabelSelector (matchLabels, matchExpressions). None selects nothing, the empty one everything."""
    if selector is None:
        return lambda _labels: False
    parts = [
        _membership(key, frozenset([value]), negate=False)
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for expression in selector.get("matchExpressions") or []:
        key, operator = expression["key"], expression["operator"]
        values = frozenset(expression.get("values") or [])
        if operator in ("In", "NotIn"):
            parts.append(_membership(key, values, negate=operator == "NotIn"))
        elif operator in ("Exists", "DoesNotExist"):
            parts.append(_presence(key, negate=operator == "DoesNotExist"))
        else:
            raise BadRequest(f'"{operator}" is not a valid label selector operator')
    return _all(parts)
