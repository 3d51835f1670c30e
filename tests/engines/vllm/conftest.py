"""Fixtures of the tests of vLLM."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def restored_environment() -> Iterator[None]:
    """Environment variables, which vLLM sets for its whole process, are restored at the end."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
