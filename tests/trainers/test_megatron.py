"""The Megatron-core trainer on two gloo ranks: all promises, with split layers and split rows."""

from collections.abc import Iterator

import pytest

from tests.trainers.gang import Gang, gang
from tests.trainers.ranked import RankedConformance


@pytest.fixture(scope="module")
def ranks() -> Iterator[Gang]:
    """Two processes for all tests of the module."""
    with gang() as started:
        yield started


class TestTensorParallel(RankedConformance):
    """Two ranks split each layer."""

    settings = {"backend": "megatron", "ranks": 2, "tensor_parallel": 2}


class TestDataParallel(RankedConformance):
    """Two ranks split the rows."""

    settings = {"backend": "megatron", "ranks": 2}
