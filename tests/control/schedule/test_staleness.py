"""The bound is one pure function."""

from fractions import Fraction

import pytest

from rollart_flow.control.schedule.staleness import LagBound, StalenessPolicy
from rollart_flow.errors import SettingsError


@pytest.mark.parametrize(
    ("alpha", "bound", "capacity"),
    [
        (0, 0, 100),
        (0.5, 1, 150),
        (1, 1, 200),
        (1.25, 2, 225),
        (2, 2, 300),
        (Fraction(1, 3), 1, 133),
    ],
)
def test_bound_and_capacity(alpha: float | Fraction, bound: int, capacity: int) -> None:
    policy = StalenessPolicy(alpha)
    assert policy.bound == bound
    assert policy.capacity(100) == capacity


def test_capacity_is_exact_for_decimal_fractions() -> None:
    assert [StalenessPolicy(a / 10).capacity(10) for a in range(11)] == list(range(10, 21))
    assert StalenessPolicy(0.29).capacity(100) == 129


@pytest.mark.parametrize("alpha", [0, 0.5, 1, 3])
def test_stale_is_older_than_the_bound_and_no_sooner(alpha: float) -> None:
    policy = StalenessPolicy(alpha)
    assert not policy.is_stale(10, 10 - policy.bound)
    assert policy.is_stale(10, 10 - policy.bound - 1)


def test_staleness_counts_from_the_served_version_and_lag_from_the_trained_one() -> None:
    assert StalenessPolicy(2).reference(served=3, trained=4) == 3
    assert LagBound(2).reference(served=3, trained=4) == 4
    assert LagBound(2) != StalenessPolicy(2)


@pytest.mark.parametrize("alpha", [-1, -0.001, float("nan"), float("inf"), True, "1", None])
def test_an_alpha_that_means_nothing_is_refused(alpha: float) -> None:
    with pytest.raises(SettingsError, match=r"alpha is .*must be"):
        StalenessPolicy(alpha)
