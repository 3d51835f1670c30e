"""Signals of the driver: Ctrl-C and SIGTERM end a run in the same way, as interrupted.

Both reach the main thread only; in any other thread the functions of this module do nothing.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM too, for the duration of the block.

    Ray sets a handler of its own when it starts: use this again after that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Defer both signals to the end of the block: a thread interrupted at its start is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = threading.Event()
    handlers = [signal.signal(number, lambda *_: interrupted.set()) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
    if interrupted.is_set():
        raise KeyboardInterrupt
