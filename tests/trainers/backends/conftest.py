"""What tests of several trainers share: processes of two ranks, whose start takes seconds."""

import pytest

from tests.trainers.gang import SHARED_GANG, Gang


@pytest.fixture(scope="module")
def ranks() -> Gang:
    """Two processes for the tests of all trainers of several ranks."""
    return SHARED_GANG.start()
