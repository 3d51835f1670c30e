"""Recovery of the state of the scheduler and the buffer from the tables of a run.

The functions are pure. The invariant: a group is continued if it was opened and neither trained
on, nor evicted, nor abandoned; a committed trajectory counts once and is never attempted again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.protocols import Change
from rollart_flow.control.scheduler.groups import GroupRecord
from rollart_flow.types import Event, EventKind, Reason, Sample, Task

_RECENT_GROUPS = 1_000
_RECENT_SCORED = 20_000


@dataclass(frozen=True, slots=True)
class RecoveredControl:
    """Arguments of `RolloutScheduler.restore` and `SampleBuffer.restore`."""

    next_cursor: int
    """Cursor at which the tasks continue."""
    groups: tuple[GroupRecord, ...]
    """Groups to continue, the oldest first."""
    pending: tuple[Sample, ...]
    """Trajectories that the buffer holds, and those of closed groups whose removal was not recorded
    before the restart, which the buffer drops when it is restored."""
    known: tuple[str, ...]
    """Ids of the other given trajectories, the oldest first."""
    closed: Mapping[str, Reason]
    """Groups that left the buffer or were abandoned, with the reason for which late members are
    dropped."""
    scored: tuple[Sample, ...]
    """Newest trajectories with a known success or failure at their task, in commit order."""
    changes: tuple[Change, ...]
    """Changes of the newest groups, for a scheduler that outlived the buffer."""
    quarantined: frozenset[str] = frozenset()
    """Ids of the tasks that are attempted no more."""


class _Ledger:
    """Index of the rows of events, trajectories and batches by group."""

    def __init__(
        self,
        events: Iterable[Event],
        samples: tuple[Sample, ...],
        trained: Mapping[str, str],
        closed: Mapping[str, Reason],
    ) -> None:
        self.opened: dict[str, Task] = {}
        self.admitted: set[str] = set()
        self.left: dict[str, Reason | None] = {}
        self.trained = trained
        self.closed = {**closed, **dict.fromkeys(trained.values(), Reason.GROUP_COMPLETE)}
        self.samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            self.samples[sample.group_id].append(sample)
        for event in events:
            self._note(event)

    def _note(self, event: Event) -> None:
        if event.kind in (EventKind.ADMIT, EventKind.PREPARE):
            self.opened[event.subject] = _task(event)
            if event.kind is EventKind.ADMIT:
                self.admitted.add(event.subject)
        elif event.kind is EventKind.ABANDON:
            self.closed.setdefault(event.subject, Reason.GROUP_EVICTED)
        elif event.kind in (EventKind.DROP, EventKind.EVICT):
            self.left[event.subject] = event.reason
        if event.kind is EventKind.EVICT:
            self.closed.setdefault(str(event.detail["group_id"]), Reason.GROUP_EVICTED)

    def in_order(self) -> list[str]:
        """Return all recorded groups in the order of admission."""
        return sorted({*self.opened, *self.samples}, key=group_cursor)

    def pending(self, sample: Sample) -> bool:
        """Whether the buffer holds a trajectory or has yet to report its removal."""
        gone = sample.trajectory_id in self.left or sample.trajectory_id in self.trained
        return sample.trainable and not gone

    def record(self, group_id: str) -> GroupRecord:
        """Return the record of a group that is continued."""
        samples = tuple(self.samples[group_id])
        dropped = frozenset(s.trajectory_id for s in samples if s.trajectory_id in self.left)
        admitted = group_id in self.admitted
        return GroupRecord(group_id, self.opened[group_id], samples, dropped, admitted)

    def changes(self, group_id: str) -> Iterator[Change]:
        """Yield the changes that the buffer would have reported for a group."""
        for sample in self.samples[group_id]:
            yield Change(committed=sample)
            reason = self.left.get(sample.trajectory_id)
            if reason is not None and group_id not in self.closed:
                yield Change(dropped=(sample.trajectory_id, reason))
        if self.closed.get(group_id) is Reason.GROUP_COMPLETE:
            yield Change(consumed=group_id)
        elif group_id in self.closed:
            yield Change(evicted=(group_id, Reason.STALENESS_BOUND))


def recover(
    events: Iterable[Event],
    samples: Iterable[Sample],
    trained: Mapping[str, str],
    closed: Mapping[str, Reason] | None = None,
) -> RecoveredControl:
    """Derive the state of the scheduler and the buffer from the recorded rows.

    A scheduler that restarts while the buffer runs takes `SampleBuffer.cursor` before it reads the
    tables, and reads changes from that cursor; duplicate changes have no effect.

    The rows are those of all groups that have not left, of the newest trajectories, and the event
    of the newest group; further rows change no state that is continued.

    Args:
        events: rows of `events`, in the order of their commits.
        samples: rows of `trajectories` of the training split, in the order of their commits.
        trained: group id by trajectory id, of rows of `batches`.
        closed: groups that left, as far as the other rows do not tell.
    """
    samples = tuple(samples)
    ledger = _Ledger(events, samples, trained, closed or {})
    groups = ledger.in_order()
    over = ledger.closed
    return RecoveredControl(
        next_cursor=group_cursor(groups[-1]) + 1 if groups else 0,
        groups=tuple(ledger.record(g) for g in groups if g in ledger.opened and g not in over),
        pending=tuple(s for s in samples if ledger.pending(s)),
        known=tuple(s.trajectory_id for s in samples if not ledger.pending(s)),
        closed=ledger.closed,
        scored=tuple(s for s in samples if s.solved is not None)[-_RECENT_SCORED:],
        changes=tuple(c for g in groups[-_RECENT_GROUPS:] for c in ledger.changes(g)),
    )


def _task(event: Event) -> Task:
    return Task(
        task_id=str(event.detail["task_id"]),
        domain=event.domain or "",
        payload=str(event.detail["payload"]),
    )
