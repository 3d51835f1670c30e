"""Index of the SampleBuffer: pending trajectories by group, and ids of removed ones.

The invariant: a trajectory is in at most one place (pending in one group, or gone), a group holds
at most `group_size` members, and ids that left are remembered up to a limit.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rollart_flow.control.ids import start_version
from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.control.schedule.selection import ReadyGroup
from rollart_flow.types import Event, EventKind, Reason, Sample


def drop_event(
    kind: EventKind,
    sample: Sample,
    reason: Reason,
    version: int | None = None,
    by: str | None = None,
) -> Event:
    """Return the event for a committed trajectory that will not be trained on.

    Args:
        kind: DROP if the trajectory left alone, EVICT if its group left.
        sample: the trajectory.
        reason: reason for the removal.
        version: policy version for which the trajectory is too old.
        by: name of the filter that refused the trajectory.
    """
    detail: dict[str, object] = {
        "group_id": sample.group_id,
        "policy_version_start": sample.policy_version_start,
    }
    if by is not None:
        detail["filter"] = by
    return Event(
        kind,
        subject=sample.trajectory_id,
        reason=reason,
        domain=sample.domain,
        policy_version=version,
        detail=detail,
    )


@dataclass(slots=True)
class PendingGroup:
    """A group with at least one trainable member in the buffer."""

    group_id: str
    samples: dict[str, Sample] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Policy version that started the oldest member, which defines the age of the group."""
        return min(start_version(sample) for sample in self.samples.values())

    @property
    def in_order(self) -> list[Sample]:
        """Members, sorted by attempt."""
        return sorted(self.samples.values(), key=lambda sample: sample.attempt)


class PendingGroups:
    """Pending trajectories by group.

    Args:
        group_size: number of members of a complete group.
        memory: number of removed trajectories and groups whose ids are kept for late arrivals.
        left: called with the id of each trajectory that is not pending, or not any more.
    """

    def __init__(self, group_size: int, memory: int, left: Callable[[str], object]) -> None:
        self._group_size = group_size
        self._left = left
        self._groups: dict[str, PendingGroup] = {}
        self._ready: dict[str, ReadyGroup] = {}
        """Complete groups, in the order in which they became complete."""
        self._group_of: dict[str, str] = {}
        self._gone: BoundedDict[str, None] = BoundedDict(memory)
        self._closed: BoundedDict[str, Reason] = BoundedDict(memory)
        self._completed = 0

    def __len__(self) -> int:
        """Number of pending trajectories."""
        return len(self._group_of)

    @property
    def groups(self) -> Iterable[PendingGroup]:
        """Groups with pending trajectories."""
        return self._groups.values()

    def knows(self, trajectory_id: str) -> bool:
        """Whether the trajectory is pending, or was removed and its id is still kept."""
        return trajectory_id in self._group_of or trajectory_id in self._gone

    def refusal(self, group_id: str) -> Reason | None:
        """Return the reason for refusing another member of a group, or None to accept it."""
        if group_id in self._ready:
            return Reason.GROUP_COMPLETE
        return self._closed.get(group_id)

    def add(self, sample: Sample) -> PendingGroup:
        """Add a member and return its group."""
        group = self._groups.setdefault(sample.group_id, PendingGroup(sample.group_id))
        group.samples[sample.trajectory_id] = sample
        self._group_of[sample.trajectory_id] = sample.group_id
        if len(group.samples) == self._group_size:
            self._ready[group.group_id] = ReadyGroup(group.group_id, group.start, self._completed)
            self._completed += 1
        return group

    @property
    def complete(self) -> int:
        """Number of groups that have all members."""
        return len(self._ready)

    def is_ready(self, group_id: str) -> bool:
        """Whether a group is pending and complete."""
        return group_id in self._ready

    def ready(self) -> list[ReadyGroup]:
        """Return the complete groups in the order in which they became complete."""
        return list(self._ready.values())

    def remove(self, trajectory_id: str) -> Sample | None:
        """Remove and return a pending member, or return None if it is not pending."""
        group_id = self._group_of.pop(trajectory_id, None)
        if group_id is None:
            return None
        group = self._groups[group_id]
        sample = group.samples.pop(trajectory_id)
        self._ready.pop(group_id, None)
        if not group.samples:
            del self._groups[group_id]
        self.forget(trajectory_id)
        return sample

    def close(self, group_id: str, late: Reason) -> list[Sample]:
        """Remove a group and return its members by attempt; `late` is the reason for refusing
        later members."""
        self._closed.add(group_id, late)
        group = self._groups.pop(group_id, None)
        if group is None:
            return []
        self._ready.pop(group_id, None)
        for trajectory_id in group.samples:
            del self._group_of[trajectory_id]
            self.forget(trajectory_id)
        return group.in_order

    def forget(self, trajectory_id: str) -> None:
        """Keep the id of a trajectory that is no longer pending."""
        self._gone.add(trajectory_id, None)
        self._left(trajectory_id)
