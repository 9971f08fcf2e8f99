from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.distributions import (
    chi_square_quantile,
    chi_square_share_above,
    gamma_quantile,
    gamma_share_above,
    gamma_share_below,
    normal_share_above,
    poisson_share_at_most,
)


@pytest.mark.parametrize(
    ("below", "degrees", "printed"),
    [
        (0.95, 1, 3.841), (0.99, 1, 6.635), (0.05, 2, 0.103), (0.975, 2, 7.378), (0.025, 10, 3.247),
        (0.95, 10, 18.307), (0.975, 20, 34.170), (0.005, 30, 13.787), (0.95, 50, 67.505), (0.01, 100, 70.065),
        (0.99, 100, 135.807),
    ],
)  # fmt: skip
def test_chi_square_quantile_is_the_one_in_printed_tables(below: float, degrees: int, printed: float) -> None:
    assert chi_square_quantile(below, degrees) == pytest.approx(printed, abs=5.1e-4)


@pytest.mark.parametrize(("degrees", "exact"), [(2, -2 * math.log(0.05)), (1, 3.841458820694124)])
def test_chi_square_quantile_is_exact_where_it_is_known(degrees: int, exact: float) -> None:
    assert chi_square_quantile(0.95, degrees) == pytest.approx(exact, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.5, 1e5), st.floats(1e-6, 1 - 1e-6))
def test_quantile_and_share_undo_each_other(shape: float, below: float) -> None:
    x = gamma_quantile(shape, below)
    assert gamma_share_below(shape, x) == pytest.approx(below, rel=1e-8)
    assert gamma_share_below(shape, x) + gamma_share_above(shape, x) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("mean", [0.0, 0.3, 2.0, 50.0])
def test_poisson_share_is_the_sum_of_its_terms(mean: float) -> None:
    for count in range(60):
        terms = math.fsum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))
        assert poisson_share_at_most(count, mean) == pytest.approx(terms, rel=1e-10)
    assert poisson_share_at_most(-1, mean) == 0


def test_tails_are_not_rounded_away() -> None:
    assert chi_square_share_above(200, 2) == pytest.approx(math.exp(-100), rel=1e-10)
    assert normal_share_above(1.959963984540054) == pytest.approx(0.025, rel=1e-9)


@pytest.mark.parametrize(("shape", "below"), [(0.1, 0.5), (0, 0.5), (1, 1), (1, -0.1), (1, math.nan)])
def test_no_quantile_outside_of_what_is_computed(shape: float, below: float) -> None:
    with pytest.raises(ValueError, match="no gamma quantile"):
        gamma_quantile(shape, below)
