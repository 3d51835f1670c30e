"""What tests of several trainers share: processes of two ranks, whose start takes seconds."""

from collections.abc import Iterator

import pytest

from tests.trainers.gang import Gang, gang


@pytest.fixture(scope="session")
def ranks() -> Iterator[Gang]:
    """Two processes for the tests of all trainers of several ranks."""
    with gang() as started:
        yield started
