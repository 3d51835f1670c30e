"""A pytest fixture for code that waits: tests take no time, and a deadlock names its waits.

Opt in from the top `conftest.py`:

    pytest_plugins = ["rollart_flow.simulation.pytest_plugin"]
"""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import pytest

from rollart_flow.simulation.virtual_time import run

T = TypeVar("T")


class VirtualTime(Protocol):
    """Type of the fixture: `simulation.run`."""

    def __call__(self, main: Coroutine[Any, Any, T], *, seed: int = 0, shuffle: bool = False) -> T:
        """Run a coroutine to its end under virtual time."""


@pytest.fixture
def virtual_time() -> VirtualTime:
    """A function that runs a coroutine in its own loop, whose clock jumps to the next timer."""
    return run
