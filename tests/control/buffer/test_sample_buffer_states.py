"""SampleBuffer as a state machine: whatever the order of calls, its promises hold."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.protocols import Change
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.simulation import VirtualTimeLoop
from rollart_flow.types import Batch, EventKind, Outcome, Reason, Sample
from tests.builders import sample
from tests.dst.log import EventLog

GROUP_SIZE = 2
ALPHA = 1


class BufferMachine(RuleBasedStateMachine):
    """Puts, drops, evictions and batches in any order, against a plain record of them."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.log = EventLog()
        self.buffer = SampleBuffer(StalenessPolicy(ALPHA), GROUP_SIZE, self.log)
        self.committed: dict[str, Sample] = {}
        self.batches: list[Batch] = []
        self.version = 0
        self.cursor = 0
        self.changes: list[Change] = []

    @rule(
        group=st.integers(0, 7),
        attempt=st.integers(0, 4),
        age=st.integers(0, 2),
        outcome=st.sampled_from([Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.FAILED]),
    )
    def put(self, group: int, attempt: int, age: int, outcome: Outcome) -> None:
        one = sample(f"g{group}", attempt, start=max(0, self.version - age), outcome=outcome)
        new = one.trajectory_id not in self.committed
        assert self.buffer.knows(one.trajectory_id) != new
        assert self.buffer.put(one) == new
        self.committed.setdefault(one.trajectory_id, one)

    @rule(group=st.integers(0, 7), attempt=st.integers(0, 4))
    def drop(self, group: int, attempt: int) -> None:
        before = len(self.buffer)
        dropped = self.buffer.drop(f"g{group}-{attempt:02d}", Reason.FILTERED)
        assert before - len(self.buffer) == dropped

    @rule(group=st.integers(0, 7))
    def evict(self, group: int) -> None:
        self.buffer.evict(f"g{group}", Reason.GROUP_ABANDONED)
        assert all(s.group_id != f"g{group}" for s in self.pending())

    @rule(advance=st.booleans(), groups=st.integers(1, 2))
    def get_batch(self, advance: bool, groups: int) -> None:
        self.version += advance
        step = len(self.batches) + 1

        async def ask() -> Batch | None:
            try:
                async with asyncio.timeout(1):
                    return await self.buffer.get_batch(step, self.version, groups * GROUP_SIZE)
            except TimeoutError:
                return None

        batch = self.loop.run_until_complete(ask())
        if batch is not None:
            assert len(batch.trajectory_ids) == groups * GROUP_SIZE
            self.batches.append(batch)
        assert all(self.version - (s.policy_version_start or 0) <= ALPHA for s in self.pending())

    @precondition(lambda self: self.batches)
    @rule()
    def ask_again(self) -> None:
        last = self.batches[-1]
        again = self.buffer.get_batch(last.step, self.version, len(last.trajectory_ids))
        assert self.loop.run_until_complete(again) is last

    @rule()
    def read_changes(self) -> None:
        if self.buffer.cursor > self.cursor:
            read = self.buffer.changes(self.cursor)
            self.cursor, changes = self.loop.run_until_complete(read)
            self.changes += changes

    def pending(self) -> list[Sample]:
        """Trainable trajectories that neither left nor are in a batch."""
        gone = {e.subject for e in self.log.events}
        gone |= {t for batch in self.batches for t in batch.trajectory_ids}
        return [s for t, s in self.committed.items() if s.trainable and t not in gone]

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.buffer) == len(self.pending())

    @invariant()
    def nothing_is_trained_on_twice_nor_after_it_left(self) -> None:
        trained = [t for batch in self.batches for t in batch.trajectory_ids]
        left = [e.subject for e in self.log.events]
        assert len(trained + left) == len(set(trained + left))

    @invariant()
    def batches_keep_the_bound_and_hold_whole_groups(self) -> None:
        for batch in self.batches:
            for trajectory_id, age in zip(batch.trajectory_ids, batch.staleness, strict=True):
                start = self.committed[trajectory_id].policy_version_start
                assert start is not None
                assert batch.policy_version - start == age <= ALPHA
            assert all(batch.group_ids.count(g) == GROUP_SIZE for g in batch.group_ids)

    @invariant()
    def no_group_is_trained_on_twice(self) -> None:
        groups = [g for batch in self.batches for g in dict.fromkeys(batch.group_ids)]
        assert len(groups) == len(set(groups))

    @invariant()
    def every_drop_has_a_reason_and_a_committed_row(self) -> None:
        for event in self.log.events:
            assert event.kind in (EventKind.DROP, EventKind.EVICT)
            assert event.reason is not None
            assert event.subject in self.committed

    def teardown(self) -> None:
        """The changes tell the whole story: each commit once, each departure once."""
        self.read_changes()
        told = [c.committed.trajectory_id for c in self.changes if c.committed is not None]
        assert told == list(self.committed)
        dropped = {c.dropped[0] for c in self.changes if c.dropped is not None}
        assert dropped == {e.subject for e in self.log.of(EventKind.DROP)}
        evicted = {c.evicted[0] for c in self.changes if c.evicted is not None}
        assert evicted == {str(e.detail["group_id"]) for e in self.log.of(EventKind.EVICT)}
        consumed = [c.consumed for c in self.changes if c.consumed is not None]
        assert consumed == [g for b in self.batches for g in dict.fromkeys(b.group_ids)]
        self.loop.close()


TestBuffer = BufferMachine.TestCase
TestBuffer.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
