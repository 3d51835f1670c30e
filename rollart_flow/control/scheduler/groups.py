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
    """Who took it; None while it is queued."""
    hosts: dict[str, None] = field(default_factory=dict)
    """Who runs it: nobody before its permission and after its host was lost; more than one where
    a restarted scheduler handed it out again."""
    again: bool = False
    """It may have run before, so that a row of it may be on its way while it runs once more."""
    version: int | None = None
    """Policy version of its first token; None before that."""
    cancellation: Cancellation | None = None

    @property
    def trajectory_id(self) -> str:
        """Id of the trajectory that it becomes."""
        return self.assignment.trajectory_id

    @property
    def queued(self) -> bool:
        """Nobody has it yet."""
        return self.source is None and not self.hosts


class GroupState(StrEnum):
    """A group holds a credit until it is closed."""

    OPEN = "open"
    """Members are missing."""
    COMPLETE = "complete"
    """All members are committed; waits in the buffer or is in a batch."""
    CLOSED = "closed"
    """Trained on, evicted or abandoned; only its last attempts are awaited."""


@dataclass(slots=True)
class Group:
    """Attempts at one task whose rewards will be compared."""

    group_id: str
    task: Task
    position: int
    """Place in the order of admission, the same after a restart."""
    state: GroupState = GroupState.OPEN
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """In flight, by trajectory id."""
    members: dict[str, int] = field(default_factory=dict)
    """Policy version that started each committed trainable member, by trajectory id."""
    ended: set[str] = field(default_factory=set)
    """Trajectory ids of attempts that are committed."""
    used: set[int] = field(default_factory=set)
    """Attempt indices that were given out."""

    @property
    def active(self) -> list[Attempt]:
        """Attempts in flight that are not cancelled."""
        return [a for a in self.attempts.values() if a.cancellation is None]

    @property
    def reach(self) -> int:
        """Members that it would have if all active attempts succeeded."""
        return len(self.members) + len(self.active)

    def next_index(self) -> int:
        """The smallest attempt index that was not given out."""
        index = len(self.used)
        if self.used and max(self.used) == index - 1:
            return index
        return next(i for i in range(index + 1) if i not in self.used)

    def stale_attempts(self, is_stale: Callable[[int], bool]) -> list[Attempt]:
        """Active attempts whose first token is too old."""
        return [a for a in self.active if a.version is not None and is_stale(a.version)]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What the tables know of a group that was admitted and has not left."""

    group_id: str
    task: Task
    samples: tuple[Sample, ...] = ()
    """Its committed trajectories of whatever outcome, in the order of their commits."""
    dropped: frozenset[str] = frozenset()
    """Those that were dropped after their commit."""
