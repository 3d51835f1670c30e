"""Scalars of NumPy become Python values; nothing else is touched."""

import numpy as np
import pytest

from rollart_flow.types.scalars import python_scalar


@pytest.mark.parametrize("value", [np.bool_(True), np.float32(0.5), np.int64(3), np.array(2.0)])
def test_a_scalar_of_numpy_becomes_a_python_value(value: object) -> None:
    found = python_scalar(value)
    assert type(found) in (bool, float, int)
    assert found == value


def test_other_values_are_returned_as_they_are() -> None:
    for value in (True, 1, 0.5, None, "text", [1], np.array([2.0])):
        assert python_scalar(value) is value
