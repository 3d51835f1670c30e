"""The index of the SampleBuffer: pending trajectories by group, and what is known of the others.

The invariant: a trajectory is in at most one place (pending in one group, or gone), a group holds
at most `group_size` members, and ids that left are remembered up to a limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rollart_flow.control.ids import start_version
from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.control.schedule.selection import ReadyGroup
from rollart_flow.types import Reason, Sample


@dataclass(slots=True)
class PendingGroup:
    """A group with at least one trainable member in the buffer."""

    group_id: str
    samples: dict[str, Sample] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Policy version that started the oldest member: a group is as old as that."""
        return min(start_version(sample) for sample in self.samples.values())

    @property
    def in_order(self) -> list[Sample]:
        """Members by attempt."""
        return sorted(self.samples.values(), key=lambda sample: sample.attempt)


class PendingGroups:
    """Pending trajectories by group.

    Args:
        group_size: members that make a group complete.
        memory: ids of trajectories and of groups that left, remembered for late arrivals.
    """

    def __init__(self, group_size: int, memory: int) -> None:
        self._group_size = group_size
        self._groups: dict[str, PendingGroup] = {}
        self._ready: dict[str, ReadyGroup] = {}
        """Complete groups, in the order in which they became complete."""
        self._group_of: dict[str, str] = {}
        self._gone: BoundedDict[str, None] = BoundedDict(memory)
        self._closed: BoundedDict[str, Reason] = BoundedDict(memory)
        self._completed = 0

    def __len__(self) -> int:
        """Pending trajectories."""
        return len(self._group_of)

    @property
    def groups(self) -> Iterable[PendingGroup]:
        """Groups with pending trajectories."""
        return self._groups.values()

    def knows(self, trajectory_id: str) -> bool:
        """Whether the trajectory is pending, or gone and not yet forgotten."""
        return trajectory_id in self._group_of or trajectory_id in self._gone

    def refusal(self, group_id: str) -> Reason | None:
        """Why one more member of this group cannot be taken; None where it can."""
        if group_id in self._ready:
            return Reason.GROUP_COMPLETE
        return self._closed.get(group_id)

    def add(self, sample: Sample) -> PendingGroup:
        """Take a member; the group that has it now."""
        group = self._groups.setdefault(sample.group_id, PendingGroup(sample.group_id))
        group.samples[sample.trajectory_id] = sample
        self._group_of[sample.trajectory_id] = sample.group_id
        if len(group.samples) == self._group_size:
            self._ready[group.group_id] = ReadyGroup(group.group_id, group.start, self._completed)
            self._completed += 1
        return group

    def is_ready(self, group_id: str) -> bool:
        """Whether a group is pending and complete."""
        return group_id in self._ready

    def ready(self) -> list[ReadyGroup]:
        """Complete groups in the order in which they became complete."""
        return list(self._ready.values())

    def remove(self, trajectory_id: str) -> Sample | None:
        """Take one pending member out; None where it is not pending."""
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
        """Take a whole group out, by attempt; `late` is why later members are refused."""
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
        """Remember that a trajectory was here and is gone."""
        self._gone.add(trajectory_id, None)
