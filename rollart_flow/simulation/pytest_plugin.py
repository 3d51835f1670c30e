"""A pytest fixture for code that waits: its tests take no time, and a deadlock fails by name.

Opt in from the top `conftest.py`:

    pytest_plugins = ["rollart_flow.simulation.pytest_plugin"]
"""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import pytest

from rollart_flow.simulation.loop.virtual_time import run

T = TypeVar("T")


class VirtualTime(Protocol):
    """What the fixture gives: `simulation.run`."""

    def __call__(self, main: Coroutine[Any, Any, T], *, seed: int = 0, shuffle: bool = False) -> T:
        """Run a coroutine to its end under virtual time; see `simulation.run`."""


@pytest.fixture
def virtual_time() -> VirtualTime:
    """Runs a coroutine in a loop of its own, whose clock jumps to the next timer."""
    return run
