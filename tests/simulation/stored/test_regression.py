"""Least squares for times that were measured on a shared machine."""

import numpy as np
import pytest

from rollart_flow.simulation.stored.regression import (
    nonnegative,
    open_intervals,
    outside,
    slowed,
    stretch_of_waits,
    stretched,
)


def test_open_intervals_are_counted_over_time() -> None:
    area = open_intervals(np.array([0.0, 1.0]), np.array([2.0, 4.0]))
    at = area(np.array([0.0, 1.0, 2.0, 4.0, 9.0]))
    assert at.tolist() == [0.0, 1.0, 3.0, 5.0, 5.0]


def test_open_intervals_are_counted_up_to_most() -> None:
    area = open_intervals(np.array([0.0, 1.0]), np.array([2.0, 4.0]), most=1)
    assert area(np.array([4.0])).tolist() == [4.0]


def test_no_interval_has_no_area() -> None:
    assert open_intervals(np.array([]), np.array([]))(np.array([3.0])).tolist() == [0.0]


def test_outside_returns_the_parts_that_are_not_excluded() -> None:
    excluded = np.array([1.0, 5.0]), np.array([2.0, 6.0])
    starts, ends = outside(np.array([0.0, 3.0]), np.array([2.5, 4.0]), excluded)
    assert list(zip(starts, ends, strict=True)) == [(0.0, 1.0), (2.0, 2.5), (3.0, 4.0)]


def test_a_weight_is_never_negative() -> None:
    work = np.array([1.0, 2.0, 3.0, 4.0])
    weights = nonnegative(np.column_stack((np.ones(4), work)), 10 - work)
    assert weights.tolist() == pytest.approx([7.5, 0.0])


def test_a_stretch_is_found_where_samples_tell() -> None:
    chance = np.random.default_rng(0)
    work, shared = chance.uniform(1, 3, 50), chance.uniform(0, 1, 50)
    times = (0.5 + 2 * work) * (1 + 1.5 * shared)
    weights, stretch = stretched(np.column_stack((np.ones(50), work)), times, shared)
    assert stretch == pytest.approx(1.5)
    assert weights.tolist() == pytest.approx([0.5, 2.0])


def test_no_stretch_is_made_up_where_all_samples_are_alike() -> None:
    times = np.array([2.0, 3.0, 4.0])
    weights, stretch = stretched(np.ones((3, 1)), times, np.array([0.9, 1.0, 1.0]))
    assert stretch == 0.0
    assert weights.tolist() == pytest.approx([3.0])


def test_a_thread_that_waits_for_others_is_stretched_by_what_it_did_not_compute() -> None:
    computed, shared = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.7, 0.9])
    took = computed * (1 + 1.2 * shared)
    assert stretch_of_waits(computed, took, shared) == pytest.approx(1.2)
    assert stretch_of_waits(computed, computed - 0.1, shared) == 0.0


def test_more_cpu_time_beside_others_is_told_from_waits() -> None:
    chance = np.random.default_rng(0)
    work, shared = chance.uniform(1, 3, 50), chance.uniform(0, 1, 50)
    computed = 2 * work * (1 + 0.4 * shared)
    weights, found = slowed(work[:, None], computed, computed * (1 + shared), shared)
    assert weights.tolist() == pytest.approx([2.0])
    assert found is not None
    assert (found.growth, found.waits) == pytest.approx((0.4, 1.0))
    assert found.stretch == pytest.approx(1.8)


def test_a_computation_beside_which_nobody_worked_tells_no_slowdown() -> None:
    work = np.array([1.0, 2.0, 3.0])
    weights, found = slowed(work[:, None], 2 * work, 2 * work, np.array([0.0, 0.05, 0.0]))
    assert weights.tolist() == pytest.approx([2.0])
    assert found is None
