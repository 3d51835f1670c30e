"""The monitor's view of groups: credits, departures, surplus attempts, trajectories in the buffer.

It is derived from events and commits alone, independent of the scheduler's own registry.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.types import Batch, Event, EventKind, Reason, Sample
from tests.dst.invariants import is_good, oldest
from tests.dst.log import Log
from tests.dst.plans import Plan
from tests.dst.serving import Violated
from tests.dst.tables import Tables


class GroupMonitor:
    """Checks the life of each group and of each departure."""

    def __init__(self, plan: Plan, log: Log, violated: Violated) -> None:
        self._plan = plan
        self._log = log
        self._violated = violated
        self._held: dict[str, None] = {}
        """Groups that must hold a credit."""
        self._prepared: dict[str, None] = {}
        """Groups that were opened ahead of their admission."""
        self._admitted_s: dict[str, float] = {}
        """Times of this life at which groups that were opened ahead were admitted, or left."""
        self._starts: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """Start versions of indexed good members, by group and trajectory."""
        self._departed: dict[str, Reason] = {}
        self._again: set[str] = set()
        """Trajectories whose departure died with the buffer, so that they are pending again."""
        self._trained: dict[str, int] = {}
        self._over_s: dict[str, float] = {}
        """Times at which groups were complete, evicted or abandoned; attempts are surplus then."""
        self._abandoned: dict[str, None] = {}
        self._version = 0
        """Policy version that the engines serve."""
        self._served_s: dict[int, float] = {}
        """Times at which versions were served first."""
        self.disturbed_s = 0.0
        """Time at which the last outage ended."""

    def restore(self, tables: Tables) -> None:
        """Rebuild the state from the tables, after everything died."""
        self._held.clear()
        self._prepared.clear()
        self._again.update(self._departed)
        self._departed.clear()
        self._trained.clear()
        self._starts.clear()
        self._over_s.clear()
        self._abandoned.clear()
        self.disturbed_s = self._log.now_s
        for event in tables.events:
            self._note(event)
        for batch in tables.manifests:
            self.taken(batch)

    def event(self, event: Event) -> None:
        """Check an event, and apply it."""
        if event.kind in (EventKind.DROP, EventKind.EVICT):
            self._check_departure(event)
        self._note(event)
        if event.kind is EventKind.ADMIT and len(self._held) > self._plan.credits:
            held = ", ".join(self._held)
            self._violated("credits", f"{len(self._held)} of {self._plan.credits} held: {held}")
        if event.kind is EventKind.PREPARE and len(self._prepared) > self._plan.groups_ahead:
            ahead = ", ".join(self._prepared)
            self._violated("credits", f"more than {self._plan.groups_ahead} groups ahead: {ahead}")

    def lost(self, events: Iterable[Event]) -> None:
        """Forget departures that died with the buffer; the scheduler may know of them."""
        for event in events:
            if event.kind in (EventKind.DROP, EventKind.EVICT):
                self._departed.pop(event.subject, None)
                self._again.add(event.subject)

    def _check_departure(self, event: Event) -> None:
        subject = event.subject
        if not isinstance(event.reason, Reason):
            self._violated("departures", f"{subject} left without a reason")
        if subject in self._departed:
            reasons = f"{self._departed[subject]} and {event.reason}"
            self._violated("departures", f"{subject} left twice: {reasons}")
        if subject in self._trained:
            step = self._trained[subject]
            self._violated("departures", f"{subject} left, but is in the batch of step {step}")

    def _note(self, event: Event) -> None:
        if event.kind in (EventKind.DROP, EventKind.EVICT):
            self._again.discard(event.subject)
        match event.kind:
            case EventKind.PREPARE:
                self._prepared[event.subject] = None
            case EventKind.ADMIT:
                self._end_wait(event.subject)
                self._held[event.subject] = None
            case EventKind.ABANDON:
                self._leave(event.subject)
                self._abandoned[event.subject] = None
            case EventKind.EVICT:
                self._departed[event.subject] = event.reason or Reason.GROUP_EVICTED
                self._leave(str(event.detail["group_id"]))
            case EventKind.DROP:
                self._departed[event.subject] = event.reason or Reason.FILTERED
                self._lack(str(event.detail["group_id"]), event.subject)
            case _:
                pass

    def _leave(self, group_id: str) -> None:
        self._held.pop(group_id, None)
        self._end_wait(group_id)
        self._over_s.setdefault(group_id, self._log.now_s)

    def _end_wait(self, group_id: str) -> None:
        if group_id in self._prepared:
            del self._prepared[group_id]
            self._admitted_s[group_id] = self._log.now_s - self._log.began_s

    def _lack(self, group_id: str, trajectory_id: str) -> None:
        """Remove a member; the group may be incomplete again."""
        members = self._starts[group_id]
        members.pop(trajectory_id, None)
        if len(members) < self._plan.group_size and group_id in self._held:
            self._over_s.pop(group_id, None)

    def indexed(self, sample: Sample, pending: int) -> None:
        """Check the index of the buffer after it added a committed trajectory."""
        if sample.trainable and sample.policy_version_start is not None:
            members = self._starts[sample.group_id]
            if sample.trajectory_id not in self._departed:
                members[sample.trajectory_id] = sample.policy_version_start
                if self._plan.schedule.bound.is_stale(self._version, sample.policy_version_start):
                    self._leave(sample.group_id)
            if len(members) >= self._plan.group_size:
                self._over_s.setdefault(sample.group_id, self._log.now_s)
        # As many trajectories again as credits allow may wait for their eviction at the next batch,
        # and with them those whose eviction died with the buffer.
        limit = 2 * self._plan.credits * self._plan.group_size + len(self._again)
        if pending > limit:
            self._violated("bounded memory", f"{pending} trajectories are pending, of {limit}")

    def taken(self, batch: Batch) -> None:
        """Apply a batch that is in the tables: its groups return their credits."""
        self.returned(batch.group_ids)
        for trajectory_id in batch.trajectory_ids:
            if (before := self._trained.get(trajectory_id)) is not None:
                steps = f"{before} and {batch.step}"
                self._violated(
                    "trained once", f"{trajectory_id} is in the batches of steps {steps}"
                )
            if trajectory_id in self._departed:
                reason = self._departed[trajectory_id]
                self._violated("trained once", f"{trajectory_id} left before: {reason}")
            self._trained[trajectory_id] = batch.step

    def returned(self, group_ids: Iterable[str]) -> None:
        """Apply that groups return their credits."""
        for group_id in group_ids:
            self._leave(group_id)

    def served(self, version: int) -> None:
        """Apply a served version: groups that are now too old return their credits."""
        self._version = version
        self._served_s.setdefault(version, self._log.now_s)
        bound = self._plan.schedule.bound
        for group_id in list(self._held):
            if any(bound.is_stale(version, start) for start in self._starts[group_id].values()):
                self._leave(group_id)

    def generates(self, group_id: str, trajectory_id: str, start: int, patience_s: float) -> None:
        """Check an attempt for which an engine sampled tokens.

        Its group was admitted and still needs it, and the next batch may still hold a trajectory of
        its start.
        """
        if group_id in self._prepared:
            self._violated("credits", f"{trajectory_id} generates before its group is admitted")
        if (late_s := self._late_s(self._over_s.get(group_id))) > patience_s:
            self._violated(
                "surplus is cancelled",
                f"{trajectory_id} generates {late_s:.3f} s after its group needs no more",
            )
        most = oldest(self._plan.schedule.bound)
        if most is None:
            return
        if (late_s := self._late_s(self._served_s.get(start + most + 1))) > patience_s:
            self._violated(
                "too old is aborted",
                f"{trajectory_id} generates {late_s:.3f} s after no batch may hold it",
            )

    def admitted_s(self, group_id: str) -> float | None:
        """Time of this life at which a group that was opened ahead was admitted or left; infinite
        if it waits, and None for all others."""
        return math.inf if group_id in self._prepared else self._admitted_s.get(group_id)

    def _late_s(self, since_s: float | None) -> float:
        """Time since a moment or since the last outage; 0 if the moment has not come."""
        return 0.0 if since_s is None else self._log.now_s - max(since_s, self.disturbed_s)

    def outlived(self, version: int, pending: Iterable[str]) -> None:
        """Check that trajectories of abandoned groups are held no longer than the bound allows."""
        bound = self._plan.schedule.bound
        oldest = math.ceil(bound.alpha) + 1 if isinstance(bound, StalenessPolicy) else 0
        for trajectory_id in sorted(pending):
            group_id = trajectory_id.rsplit("-", 1)[0]
            start = self._starts[group_id].get(trajectory_id, version)
            if group_id in self._abandoned and version - start > oldest:
                self._violated(
                    "bounded memory",
                    f"{trajectory_id} of version {start} is held at version {version}, "
                    "though its group was abandoned",
                )

    def finished(self, tables: Tables, pending: frozenset[str]) -> None:
        """Check that each good row was trained on, has left with one event, or is pending."""
        good = {name for name, branches in tables.branches.items() if is_good(branches)}
        for name in (*self._departed, *self._trained):
            if name not in good:
                self._violated("departures", f"{name} left or was trained on, but is no good row")
        unexplained = good - self._departed.keys() - self._trained.keys()
        if unexplained != pending:
            wrong = ", ".join(sorted(unexplained ^ pending))
            self._violated("departures", f"neither trained on nor departed nor pending: {wrong}")
