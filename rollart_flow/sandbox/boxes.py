"""The source of an environment's boxes: made in its own process, or leased from a pool.

An environment asks `self.boxes` and does not know which. What its domain says with `Domain.box` is
what a pool starts ahead of time.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from rollart_flow.sandbox.base import Sandbox, SandboxSnapshot, SandboxSpec

P = ParamSpec("P")
T = TypeVar("T")

VARIANT_VARIABLE = "ROLLART_SANDBOX"
"""Environment variable with the variant of the boxes that processes make themselves."""
DEFAULT_VARIANT = "bubblewrap"


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


class Boxes(ABC):
    """A source of boxes for one environment at a time."""

    @abstractmethod
    def open(
        self, spec: SandboxSpec | None = None, *, snapshot: SandboxSnapshot | None = None
    ) -> Box:
        """Return a new box that nobody else uses; the caller closes it.

        Args:
            spec: contents and limits; by default the snapshot's, or an empty box on the host's
                `/usr`.
            snapshot: files that the box begins with.

        Raises:
            SettingsError: this machine cannot make such boxes, or the spec names what is not there.
            SandboxError: the box could not be started.
        """

    def close(self) -> None:  # noqa: B027  those of a pool end with their attempt
        """End the boxes that were left open."""


@contextmanager
def closed_on_error(box: Box) -> Iterator[None]:
    """Close a box whose preparation in the body fails, since nobody else knows it yet."""
    try:
        yield
    except BaseException:
        box.close()
        raise


def default_variant() -> str:
    """Return the kind of boxes where no setting names one."""
    return os.environ.get(VARIANT_VARIABLE) or DEFAULT_VARIANT


class LocalBoxes(Boxes):
    """Boxes that this process makes itself.

    Args:
        variant: name in `registry.SANDBOXES`; by default the variable `ROLLART_SANDBOX` names it,
            and bubblewrap is taken where it is not set.
    """

    def __init__(self, variant: str | None = None) -> None:
        self._variant = variant or default_variant()
        self._opened: list[Box] = []

    def open(
        self, spec: SandboxSpec | None = None, *, snapshot: SandboxSnapshot | None = None
    ) -> Box:
        """Start a box; see `Boxes.open`."""
        from rollart_flow.sandbox.blocking import BlockingSandbox

        self._end([box for box in self._opened if not box.alive])
        box = BlockingSandbox(spec, variant=self._variant, snapshot=snapshot)
        self._opened.append(box)
        return box

    def close(self) -> None:
        """End the boxes that were left open."""
        self._end(list(self._opened))

    def _end(self, boxes: Sequence[Box]) -> None:
        for box in boxes:
            self._opened.remove(box)
            box.close()
