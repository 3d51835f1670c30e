"""The source of an environment's boxes: made in its own process, or leased from a pool.

An environment asks `self.boxes` and does not know which. What its domain says with `Domain.box` is
what a pool starts ahead of time.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.blocking import BlockingSandbox
from rollart_flow.sandbox.box import Box

VARIANT_VARIABLE = "ROLLART_SANDBOX"
"""Environment variable with the variant of the boxes that processes make themselves."""
DEFAULT_VARIANT = "bubblewrap"


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
