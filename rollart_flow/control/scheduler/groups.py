"""Records of the RolloutScheduler: an attempt in flight, a group of attempts, a recorded group."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from rollart_flow.control.protocols import Cancellation
from rollart_flow.types import Assignment, Sample, Task


@dataclass(slots=True)
class Attempt:
    """One attempt that has not ended."""

    assignment: Assignment
    source: str | None = None
    """Source that took the attempt; None while the attempt is queued."""
    workers: dict[str, None] = field(default_factory=dict)
    """Rollout workers that run the attempt: none before its permission and after the loss of its
    rollout worker; more than one if a restarted scheduler assigned the attempt again."""
    again: bool = False
    """Whether the attempt may have run before, so that an earlier run may still commit its row."""
    version: int | None = None
    """Policy version of the first token; None before that token."""
    cancellation: Cancellation | None = None

    @property
    def trajectory_id(self) -> str:
        """Id of the attempt's trajectory."""
        return self.assignment.trajectory_id

    @property
    def queued(self) -> bool:
        """Whether no source and no rollout worker has the attempt yet."""
        return self.source is None and not self.workers


class GroupState(StrEnum):
    """State of a group, which holds a credit until it is closed."""

    OPEN = "open"
    """The group lacks members."""
    COMPLETE = "complete"
    """All members are committed; the group waits in the buffer or is in a batch."""
    CLOSED = "closed"
    """The group was trained on, evicted or abandoned; only its last attempts are awaited."""


@dataclass(slots=True)
class Group:
    """Attempts at one task whose rewards will be compared."""

    group_id: str
    task: Task
    position: int
    """Place in the order of admission, the same after a restart."""
    state: GroupState = GroupState.OPEN
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """Attempts in flight, by trajectory id."""
    members: dict[str, int] = field(default_factory=dict)
    """Policy version that started each committed trainable member, by trajectory id."""
    ended: set[str] = field(default_factory=set)
    """Trajectory ids of attempts that are committed."""
    used: set[int] = field(default_factory=set)
    """Assigned attempt indices."""
    restored: bool = False
    """Whether an earlier scheduler admitted the group, and may have launched its attempts."""

    @property
    def active(self) -> list[Attempt]:
        """Attempts in flight that were not cancelled."""
        return [a for a in self.attempts.values() if a.cancellation is None]

    @property
    def reach(self) -> int:
        """Number of members that the group would have if all active attempts succeeded."""
        return len(self.members) + len(self.active)

    def next_index(self) -> int:
        """Return the smallest unassigned attempt index."""
        index = len(self.used)
        if self.used and max(self.used) == index - 1:
            return index
        return next(i for i in range(index + 1) if i not in self.used)

    def stale_attempts(self, is_stale: Callable[[int], bool]) -> list[Attempt]:
        """Return the active attempts whose first token is too old."""
        return [a for a in self.active if a.version is not None and is_stale(a.version)]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Stored state of a group that was admitted and has not left."""

    group_id: str
    task: Task
    samples: tuple[Sample, ...] = ()
    """Committed trajectories of any outcome, in commit order."""
    dropped: frozenset[str] = frozenset()
    """Ids of trajectories that were dropped after their commit."""
    admitted: bool = True
    """Whether the group was admitted, and not only opened ahead of that."""
