"""Names of what the threads of this process wait for; `resources.blocking` reports them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_open: dict[object, tuple[object, float]] = {}
"""Name and start of each wait of a thread."""


@contextmanager
def blocking(name: object) -> Iterator[None]:
    """Name the wait of this thread for the duration of the block.

    Args:
        name: a text, or an object whose text is taken whenever the wait is reported.
    """
    key = object()
    _open[key] = (name, time.monotonic())
    try:
        yield
    finally:
        del _open[key]


def blocked() -> list[tuple[str, float]]:
    """Name and seconds of each open wait of a thread."""
    now = time.monotonic()
    return [(str(name), now - since) for name, since in list(_open.values())]
