"""The interface of a kind of sandbox, which makes the boxes that a setting names."""

from abc import ABC, abstractmethod
from typing import ClassVar

from rollart_flow.registry import Requirement
from rollart_flow.sandbox.base import Sandbox, SandboxSnapshot, SandboxSpec


class SandboxVariant(ABC):
    """A kind of sandbox that a setting can name."""

    requirements: ClassVar[tuple[Requirement, ...]] = ()
    shows_host_files: ClassVar[bool] = True
    """Whether boxes take `mounts` and `socket`, as agents that are programs need."""

    def version(self) -> str | None:
        """Return the version of what makes the boxes; None where it is not installed."""
        return None

    @abstractmethod
    def problem(self) -> str:
        """Return why this machine cannot create such boxes, with a remedy; empty if it can."""

    @abstractmethod
    async def create(self, spec: SandboxSpec, snapshot: SandboxSnapshot | None) -> Sandbox:
        """Start a box and wait until it answers.

        Raises:
            SettingsError: the spec names what this variant does not support or the host lacks.
            SandboxError: the box could not be started.
        """

    def sweep(self) -> int:
        """End what processes that died have left of their boxes here; return how many boxes.

        A box ends with its holder by itself; what cannot, such as a control group or a container
        of a daemon, is found by its label (`owner`) and removed.
        """
        return 0
