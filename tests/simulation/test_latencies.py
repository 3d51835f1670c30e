"""Distributions: values stay in their range and have the mean of the formula."""

import math
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.simulation.latencies import (
    Distribution,
    FixedLatency,
    Gaussian,
    LatencyMixture,
    LogNormal,
    Uniform,
)

GAUSSIAN = st.builds(Gaussian, st.floats(-5, 20), st.floats(0, 10))
LOG_NORMAL = st.builds(
    LogNormal, st.floats(0.1, 100), st.floats(0, 1.2), most=st.floats(0.05, 500) | st.just(math.inf)
)
SIMPLE = st.one_of(
    st.builds(FixedLatency, st.floats(0, 50)),
    st.builds(lambda low, width: Uniform(low, low + width), st.floats(0, 50), st.floats(0, 50)),
    GAUSSIAN,
    LOG_NORMAL,
)
MIXTURE = st.builds(
    lambda parts: LatencyMixture(tuple(parts)),
    st.lists(st.tuples(st.floats(0.05, 1), SIMPLE), min_size=1, max_size=3),
)


def drawn(distribution: Distribution, count: int, seed: int = 0) -> list[float]:
    chance = Random(seed)
    return [distribution.draw(chance) for _ in range(count)]


@settings(max_examples=60)
@given(SIMPLE | MIXTURE)
def test_values_are_never_negative(distribution: Distribution) -> None:
    assert min(drawn(distribution, 1_000)) >= 0


@settings(max_examples=30)
@given(LOG_NORMAL)
def test_a_log_normal_is_cut_and_its_median_is_the_one_that_was_asked_for(
    distribution: LogNormal,
) -> None:
    values = sorted(drawn(distribution, 2_001))
    assert values[-1] <= distribution.most
    median = min(distribution.median, distribution.most)
    assert values[1_000] == pytest.approx(median, rel=0.05 + 0.1 * distribution.sigma)


@given(SIMPLE | MIXTURE, st.integers(0, 1_000))
def test_all_chance_comes_from_the_source(distribution: Distribution, seed: int) -> None:
    assert drawn(distribution, 5, seed) == drawn(distribution, 5, seed)


@pytest.mark.parametrize(
    ("distribution", "mean"),
    [
        (Gaussian(10, 1), 10.0),
        (Gaussian(0, 1), 1 / math.sqrt(2 * math.pi)),
        (Gaussian(-3, 0), 0.0),
        (LogNormal(1, 1), math.exp(0.5)),
        (LogNormal(4, 0, most=3), 3.0),
        (LogNormal(1, 0.8, most=1), 1 - 0.5 + 0.5 * math.exp(0.32) * math.erfc(0.8 / 2**0.5)),
        (Uniform(30, 50), 40.0),
        (LatencyMixture(((1.0, FixedLatency(2)), (3.0, FixedLatency(6)))), 5.0),
    ],
)
def test_means_are_those_of_the_formulas(distribution: Distribution, mean: float) -> None:
    values = drawn(distribution, 10_000)
    error = math.sqrt(fmean((value - mean) ** 2 for value in values) / len(values))
    assert fmean(values) == pytest.approx(mean, abs=4 * error + 1e-9)


def test_the_cut_at_zero_lifts_the_mean_of_the_widest_gaussian_of_section_7_3() -> None:
    assert 10.5 < fmean(drawn(Gaussian(10, 10), 10_000)) < 11.2
