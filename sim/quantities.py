"""Kubernetes quantities ("500m", "64Gi", "8") as exact integers of thousandths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


def thousandths(quantity: str | float) -> int:
    """The quantity times 1000, rounded up.

    Raises:
        ValueError: Not a quantity.
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None or match.group(2) not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is not a quantity")
    exact = Decimal(match.group(1)) * _SUFFIXES[match.group(2)] * 1000
    return int(exact.to_integral_value(rounding="ROUND_CEILING"))


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod asks for, in thousandths: the containers' sum, or one init container's if that is more."""
    total: dict[str, int] = {}
    for container in spec.get("containers") or []:
        for name, quantity in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, 0) + thousandths(quantity)
    for container in spec.get("initContainers") or []:
        for name, quantity in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, 0), thousandths(quantity))
    total["pods"] = 1000
    return total
