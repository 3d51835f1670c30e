"""Resets with injected failures, as `bench_images` plays many of them."""

import os

import pytest

from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from tests.benchmarks.bench_images import in_own_mounts

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())


@pytest.mark.skipif(os.geteuid() != 0, reason="views are mounted by root")
def test_resets_with_failing_pulls_and_starts_succeed_and_leave_nothing() -> None:
    soaked = in_own_mounts("views", 600)
    assert (soaked.failed, soaked.left) == (0, ())
    assert soaked.start_failures > 0
    assert soaked.evictions > 0
    assert soaked.pulls > soaked.evictions


def test_resets_of_boxes_succeed_and_leave_nothing() -> None:
    soaked = in_own_mounts("boxes", 40)
    assert (soaked.failed, soaked.left) == (0, ())
