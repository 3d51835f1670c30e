"""The tables of a simulated run, whose rows outlive every process.

The invariant: a commit is all or nothing, counts once under its transaction id, and is all that a
resumed run knows. Events become durable with the next commit, as in a real run.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from rollart_flow.control.recovery import RecoveredControl, recover
from rollart_flow.episodes import whole
from rollart_flow.errors import StoreError
from rollart_flow.types import Batch, Event, EventKind, Sample, Trajectory
from tests.dst.plans import Faults

_COMMIT_S = 0.02
_SLOWEST_S = 1.0


def by_episode(rows: Iterable[Trajectory]) -> list[tuple[Trajectory, ...]]:
    """The branches of each episode, which are adjacent and begin with branch 0."""
    found: list[tuple[Trajectory, ...]] = []
    for row in rows:
        if row.branch == 0:
            found.append((row,))
        else:
            found[-1] = (*found[-1], row)
    return found


def sample_of(branches: Sequence[Trajectory]) -> Sample:
    """The sample of a committed episode, for the buffer's index."""
    tokens = sum(len(branch.token_ids) for branch in branches)
    return Sample.of(whole(branches), scored=branches[0].reward is not None, tokens=tokens)


@dataclass(frozen=True, slots=True)
class Commit:
    """Rows that are written together."""

    transaction: str
    rows: tuple[Trajectory, ...] = ()
    batch: Batch | None = None
    step: int | None = None
    """A trained step; its version may not be published yet."""


@dataclass
class Tables:
    """The rows of all tables."""

    trajectories: list[Trajectory] = field(default_factory=list)
    rows: dict[str, Trajectory] = field(default_factory=dict)
    """Rows by id: the first commit of each."""
    branches: dict[str, tuple[Trajectory, ...]] = field(default_factory=dict)
    """Rows by episode: the first commit of each."""
    manifests: list[Batch] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    durable_events: int = 0
    transactions: set[str] = field(default_factory=set)

    @property
    def batches(self) -> dict[int, Batch]:
        """Batches by step."""
        return {batch.step: batch for batch in self.manifests}

    @property
    def published(self) -> int:
        """The newest version whose step is recorded."""
        return self.trained[-1] if self.trained else 0

    def of(self, *kinds: EventKind) -> list[Event]:
        """Events of these kinds."""
        return [event for event in self.events if event.kind in kinds]

    def apply(self, commit: Commit) -> bool:
        """Write a commit; False if its transaction was written before."""
        if commit.transaction in self.transactions:
            return False
        self.transactions.add(commit.transaction)
        self.durable_events = len(self.events)
        for row in commit.rows:
            self.trajectories.append(row)
            self.rows.setdefault(row.trajectory_id, row)
        for branches in by_episode(commit.rows):
            self.branches.setdefault(branches[0].episode_id, branches)
        if commit.batch is not None:
            self.manifests.append(commit.batch)
        if commit.step is not None:
            self.trained.append(commit.step)
        return True

    def lose(self, events: Iterable[Event]) -> list[Event]:
        """Lose those of the events that no commit has included, and return them."""
        dead = {id(event) for event in events}
        unwritten = self.events[self.durable_events :]
        self.events[self.durable_events :] = [e for e in unwritten if id(e) not in dead]
        return [event for event in unwritten if id(event) in dead]

    def lose_unwritten(self) -> None:
        """Lose the events that no commit has included, after everything died."""
        del self.events[self.durable_events :]

    def recovered(self) -> RecoveredControl:
        """The state that a restart recovers from the tables."""
        samples = list(map(sample_of, by_episode(self.rows.values())))
        trained = {
            trajectory_id: group_id
            for batch in self.manifests
            for trajectory_id, group_id in zip(batch.trajectory_ids, batch.group_ids, strict=True)
        }
        return recover(self.events, samples, trained)


class Writer:
    """Writes to the tables in one life, which takes time and may fail before or after the effect.

    Args:
        on_written: called with each commit that took effect.
    """

    def __init__(
        self, tables: Tables, chance: Random, faults: Faults, on_written: Callable[[Commit], None]
    ) -> None:
        self._tables = tables
        self._on_written = on_written
        self._chance = chance
        self._faults = faults
        self._ended = False

    def end(self) -> None:
        """Let nothing more take effect, as if all processes of this writer had died."""
        self._ended = True

    async def write(self, commit: Commit) -> None:
        """Write a commit, unless its transaction was written before.

        Raises:
            StoreError: the commit may have been written, or not.
            asyncio.CancelledError: the life has ended, in which nobody may try again.
        """
        chance, faults = self._chance, self._faults
        await self._pause()
        if self._ended:
            raise asyncio.CancelledError
        if chance.random() < faults.commit_fails_before:
            raise StoreError("the commit failed; nothing was written")
        if self._tables.apply(commit):
            self._on_written(commit)
        await self._pause()
        if chance.random() < faults.commit_fails_after:
            raise StoreError("the commit failed; it was written all the same")

    async def _pause(self) -> None:
        seconds = self._chance.expovariate(1 / _COMMIT_S)
        if self._chance.random() < self._faults.commit_slow:
            seconds += self._chance.uniform(0.0, _SLOWEST_S)
        await asyncio.sleep(seconds)
