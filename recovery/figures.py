"""A number and how it is known: measured, estimated or assumed. A result is as good as the weakest that went in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from recovery.errors import BadInput


class Basis(StrEnum):
    """How a figure is known, the strongest first."""

    MEASURED = "measured"  # read from this job, node or cluster
    ESTIMATED = "estimated"  # computed from measured figures by a model
    ASSUMED = "assumed"  # a default or a setting: nobody looked


_STRENGTH = {Basis.MEASURED: 2, Basis.ESTIMATED: 1, Basis.ASSUMED: 0}


@dataclass(frozen=True, slots=True)
class Figure:
    """A plain number (its unit stands in the name of the field that holds it), how it is known, and from where."""

    value: float
    basis: Basis
    source: str = ""


def measured(value: float, source: str = "") -> Figure:
    """A figure that was read."""
    return Figure(value, Basis.MEASURED, source)


def estimated(value: float, source: str = "") -> Figure:
    """A figure that a model gave."""
    return Figure(value, Basis.ESTIMATED, source)


def assumed(value: float, source: str = "") -> Figure:
    """A figure that nobody read."""
    return Figure(value, Basis.ASSUMED, source)


def hours_in_words(hours: float) -> str:
    """Hours with two digits that count and never with an exponent: ``0.017``, ``1.9``, ``120``, ``5,694,603``.

    Below a thousandth it says ``under 0.001``, and 0 is ``0``.
    """
    if 0 < hours < 0.001:
        return "under 0.001"
    return f"{hours:,.0f}" if hours >= 9.95 else f"{hours:.2g}"


def weakest(*bases: Basis) -> Basis:
    """The basis of what is computed from figures of these bases; measured when there are none."""
    return min(bases, key=lambda basis: _STRENGTH[basis], default=Basis.MEASURED)


def modelled(*bases: Basis) -> Basis:
    """The basis of a forecast made from such figures: at best an estimate."""
    return weakest(Basis.ESTIMATED, *bases)


def positive(name: str, value: float, meaning: str, advice: str) -> float:
    """The value, when it is a finite number above 0.

    Raises:
        BadInput: naming the field, its value, what it means and what to do.
    """
    if not math.isfinite(value) or value <= 0:
        raise BadInput(f"{name} is {value:g}, but {meaning} must be above 0: {advice}", field=name)
    return value


def not_negative(name: str, value: float, meaning: str, advice: str) -> float:
    """The value, when it is a finite number that is 0 or more; raises BadInput like ``positive``."""
    if not math.isfinite(value) or value < 0:
        raise BadInput(f"{name} is {value:g}, but {meaning} cannot be below 0: {advice}", field=name)
    return value


def share(name: str, value: float, meaning: str, advice: str) -> float:
    """The value, when it is in [0, 1]; raises BadInput like ``positive``."""
    if not 0 <= value <= 1:
        raise BadInput(f"{name} is {value:g}, but {meaning} lies between 0 and 1: {advice}", field=name)
    return value


def quantile(ordered: tuple[float, ...] | list[float], at: float) -> float:
    """The value below which the share ``at`` of sorted values lies, interpolated linearly between neighbors.

    Raises:
        BadInput: for no values.
    """
    if not ordered:
        raise BadInput("a quantile of no values: give at least one", field="ordered")
    place = at * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
