"""The file of the lease of a run, and what it says; a module for each kind of store implements it.

`store.lease` has the rules.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollart_flow.store.owner import Owner

EXPIRES_S = 60.0
"""Time without a renewal after which a lease has run out."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """The right of one process to drive a run."""

    owner: Owner
    term: int
    """Number of the holder: the fencing token."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """State of a lease at one moment."""

    tenure: Tenure
    token: str
    """Unique for each holder."""
    released: bool
    """Whether the holder has given the lease back."""
    age_s: float
    """Time since the last renewal, by the clock of the store."""
    tag: str
    """Names the content, for `LeaseFile`."""
    alive: bool | None
    """Whether the holder runs; None if that cannot be seen from here."""

    @property
    def expired(self) -> bool:
        """Whether the lease was not renewed in time."""
        return self.age_s > EXPIRES_S

    @property
    def held(self) -> bool:
        """Whether a process drives the run, as far as can be known."""
        if self.released:
            return False
        return not self.expired if self.alive is None else self.alive


class LeaseFile(ABC):
    """The file of a lease. Every method raises OSError if storage fails."""

    @abstractmethod
    def look(self) -> LeaseState | None:
        """The state of the lease, or None if there never was one."""

    @abstractmethod
    def claim(self, said: Mapping[str, Any], after: LeaseState | None) -> str | None:
        """Write the lease of a new holder after a state; its tag, or None if another was first."""

    @abstractmethod
    def renew(self, said: Mapping[str, Any], tag: str) -> str | None:
        """Renew the lease with a tag; its new tag, or None if another process has it now."""

    @abstractmethod
    def release(self, said: Mapping[str, Any], tag: str) -> None:
        """Give the lease with a tag back, unless another process has it now."""

    @abstractmethod
    def age_of_run_s(self) -> float:
        """Time since `run.json` was written."""


def state(said: Mapping[str, Any], age_s: float, tag: str, alive: bool | None) -> LeaseState:
    """The state that the content of a lease describes.

    Raises:
        KeyError, TypeError: the content is damaged.
    """
    owner = Owner(**said["owner"])
    return LeaseState(
        tenure=Tenure(owner, said.get("term", 0)),
        token=said.get("token", ""),
        released=said.get("released", False),
        age_s=age_s,
        tag=tag,
        alive=not owner.gone if owner.here else alive,
    )
