"""Gamma, chi-square and Poisson probabilities in plain Python, exact to about 1e-12.

Sources: NIST Digital Library of Mathematical Functions, 8.11.4 (series), 8.9.2 (continued fraction, evaluated
by Lentz's method); Wilson and Hilferty 1931 for the start of the quantile's search.
"""

from __future__ import annotations

import math
from functools import lru_cache

_PRECISION = 1e-15
_TINY = 1e-300
_MOST_TERMS = 100_000


def gamma_share_below(shape: float, x: float) -> float:
    """Probability that a gamma variable with this shape (> 0) and rate 1 is at most ``x`` (>= 0)."""
    if x <= 0:
        return 0.0
    if x < shape + 1:
        return _series(shape, x)
    return 1.0 - _continued_fraction(shape, x)


def gamma_share_above(shape: float, x: float) -> float:
    """Probability that it is more than ``x``, without the loss of ``1 - below`` far out in the tail."""
    if x <= 0:
        return 1.0
    if x < shape + 1:
        return 1.0 - _series(shape, x)
    return _continued_fraction(shape, x)


def _scale(shape: float, x: float) -> float:
    """x^shape · e^-x / Γ(shape), in logarithms: each factor alone overflows."""
    return math.exp(shape * math.log(x) - x - math.lgamma(shape))


def _series(shape: float, x: float) -> float:
    term = total = 1.0 / shape
    for n in range(1, _MOST_TERMS):
        term *= x / (shape + n)
        total += term
        if term < total * _PRECISION:
            break
    return min(1.0, total * _scale(shape, x))


def _continued_fraction(shape: float, x: float) -> float:
    b = x + 1 - shape
    c = 1 / _TINY
    d = 1 / b
    value = d
    for n in range(1, _MOST_TERMS):
        a = -n * (n - shape)
        b += 2
        d = 1 / _away_from_zero(a * d + b)
        c = _away_from_zero(b + a / c)
        factor = c * d
        value *= factor
        if abs(factor - 1) < _PRECISION:
            break
    return min(1.0, value * _scale(shape, x))


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


@lru_cache(maxsize=4096)
def gamma_quantile(shape: float, below: float) -> float:
    """The x below which a gamma variable with this shape and rate 1 lies with probability ``below``.

    Newton's method inside a bracket that bisection narrows, so it cannot run away.

    Args:
        shape: At least 0.5 (one degree of freedom); far below that the answer underflows.
        below: In [0, 1); 0 gives 0.
    Raises:
        ValueError: outside of that.
    """
    if not shape >= 0.5 or not 0 <= below < 1:
        raise ValueError(f"no gamma quantile for shape {shape} at {below}")
    if below == 0:
        return 0.0
    low, high = 0.0, shape + 1
    while gamma_share_below(shape, high) < below:
        low, high = high, high * 2
    x = _wilson_hilferty(shape, below)
    if not low < x < high:
        x = (low + high) / 2
    for _ in range(200):
        excess = gamma_share_below(shape, x) - below
        if excess > 0:
            high = x
        else:
            low = x
        density = _scale(shape, x) / x
        step = excess / density if density > 0 else math.inf
        candidate = x - step
        if not low < candidate < high:
            candidate = (low + high) / 2
        if abs(candidate - x) <= 1e-13 * candidate:
            return candidate
        x = candidate
    return x


def _wilson_hilferty(shape: float, below: float) -> float:
    """The cube root of a gamma variable is nearly normal; good enough to begin from."""
    z = _normal_quantile(below)
    root = 1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))
    return shape * root**3 if root > 0 else math.exp((math.log(below) + math.lgamma(shape + 1)) / shape)


def _normal_quantile(below: float) -> float:
    """Roughly: Hastings' rational form (Abramowitz and Stegun 26.2.23), error below 4.5e-4."""
    tail = min(below, 1 - below)
    t = math.sqrt(-2 * math.log(max(tail, _TINY)))
    z = t - (2.515517 + 0.802853 * t + 0.010328 * t * t) / (
        1 + 1.432788 * t + 0.189269 * t * t + 0.001308 * t**3
    )
    return -z if below < 0.5 else z


def chi_square_quantile(below: float, degrees: float) -> float:
    """The value below which a chi-square variable with so many degrees of freedom lies with this probability."""
    return 2 * gamma_quantile(degrees / 2, below)


def chi_square_share_above(value: float, degrees: float) -> float:
    """Probability that a chi-square variable is more than ``value``."""
    return gamma_share_above(degrees / 2, value / 2)


def poisson_share_at_most(count: int, mean: float) -> float:
    """Probability of at most ``count`` events where ``mean`` (>= 0) are expected."""
    if count < 0:
        return 0.0
    return gamma_share_above(count + 1, mean)


def normal_share_above(z: float) -> float:
    """Probability that a standard normal variable is more than ``z``."""
    return 0.5 * math.erfc(z / math.sqrt(2))
