"""A box for code that waits: the methods of `Sandbox`, without coroutines."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from rollart_flow.sandbox.base import Sandbox

P = ParamSpec("P")
T = TypeVar("T")


class BoxWait(Protocol):
    """Runs a coroutine of a box to its end."""

    def __call__(self, call: Coroutine[Any, Any, T], /) -> T:
        """Return the result of the coroutine, or raise its error."""


def waiting(
    method: Callable[Concatenate[Sandbox, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Box", P], T]:
    """Return the form of a method of `Sandbox` that waits, with its parameters and its help."""
    name = method.__name__

    @wraps(method)
    def call(box: "Box", /, *args: P.args, **named: P.kwargs) -> T:
        found: T = box._wait(getattr(box._box, name)(*args, **named))
        return found

    return call


class Box:
    """A box whose methods wait; they are those of `Sandbox`, with the same errors.

    Args:
        box: the box.
        wait: runs its coroutines.
    """

    def __init__(self, box: Sandbox, wait: BoxWait) -> None:
        self._box = box
        self._wait = wait

    @property
    def alive(self) -> bool:
        """Whether the box can be used, as far as its last call saw."""
        return self._box.alive

    exec = waiting(Sandbox.exec)
    read = waiting(Sandbox.read)
    write = waiting(Sandbox.write)
    upload = waiting(Sandbox.upload)
    download = waiting(Sandbox.download)
    snapshot = waiting(Sandbox.snapshot)
    processes = waiting(Sandbox.processes)
    kill_all = waiting(Sandbox.kill_all)
    close = waiting(Sandbox.close)
