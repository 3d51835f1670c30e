"""The Megatron-core trainer on two gloo ranks: all promises, with split layers and split rows."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from tests.trainers.gang import Gang, gang
from tests.trainers.ranked import RankedConformance, RankedParity


@pytest.fixture(scope="module")
def ranks() -> Iterator[Gang]:
    """Two processes for all tests of the module."""
    with gang() as started:
        yield started


class TestTensorParallel(RankedConformance):
    """Two ranks split each layer."""

    settings: ClassVar[Mapping[str, Any]] = {
        "backend": "megatron",
        "ranks": 2,
        "tensor_parallel": 2,
    }


class TestDataParallel(RankedParity):
    """Two ranks split the rows."""

    settings: ClassVar[Mapping[str, Any]] = {"backend": "megatron", "ranks": 2}
