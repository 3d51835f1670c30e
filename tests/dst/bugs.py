"""Bugs that tests plant on purpose, each in one method of a real class, for the fuzzer to find.

The invariant: a method is replaced only within `planted`.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rollart_flow.control.buffer.buffer_service import BufferService
from rollart_flow.control.buffer.pending import PendingGroup, PendingGroups
from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.inference.generation_builder import GenerationBuilder
from rollart_flow.control.loop.replayable_queue import ReplayableQueue
from rollart_flow.control.protocols import Cancellation, PullStats
from rollart_flow.control.schedule.declarations import Phase
from rollart_flow.control.schedule.selection import ReadyGroup
from rollart_flow.control.schedule.staleness import LagBound
from rollart_flow.control.scheduler.group_opener import GroupOpener
from rollart_flow.control.scheduler.group_registry import GroupRegistry
from rollart_flow.control.scheduler.groups import Group
from rollart_flow.control.scheduler.lifecycle import GroupLifecycle
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.training.controller import AsyncController
from rollart_flow.errors import SettingsError
from rollart_flow.operators.sink import BufferSink
from rollart_flow.store.pins import PinnedTables
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.types import Chunk, Reason, Sample, Trajectory
from tests.dst.agent_bugs import AGENT_BUGS
from tests.dst.bug import Bug
from tests.dst.dialogue_bugs import DIALOGUE_BUGS
from tests.dst.process import FaultyCommitter
from tests.dst.tables import Commit


def _skip_eviction(self: SampleBuffer, groups: Iterable[PendingGroup]) -> None:
    return None


def _count_from_the_version_before(self: LagBound, served: int, trained: int) -> int:
    return trained - 1


async def _acknowledge_first(self: BufferService[Any], rows: Any) -> None:
    asyncio.ensure_future(_put(self, rows))  # noqa: RUF006  the bug: nothing awaits the commit


async def _resume_with_old_weights(self: EngineGroup, version: int) -> PullStats:
    return PullStats()


def _forget_the_surplus(self: GroupLifecycle, group: Group, *_: object) -> None:
    return None


def _even_if_failed(self: Sample) -> bool:
    return self.policy_version_start is not None


def _return_two_credits(self: GroupRegistry, group: Group) -> None:
    _close(self, group)
    self.credits.discard(next(iter(sorted(self.credits)), ""))


async def _forget_what_was_sent(
    self: ReplayableQueue[Any], after: int
) -> tuple[int, tuple[Any, ...]]:
    cursor, items = await _read(self, after)
    self._acknowledge(cursor)
    return cursor, items


def _incomplete_is_ready(self: PendingGroups) -> list[ReadyGroup]:
    groups = [group for group in self._groups.values() if group.samples]
    return [ReadyGroup(g.group_id, g.start, place) for place, g in enumerate(groups)]


async def _update_while_generating(
    self: AsyncController, phase: Phase, step: int, version: int
) -> None:
    if phase is not Phase.SUSPEND:
        await _run(self, phase, step, version)


def _append_all(self: GenerationBuilder, chunk: Chunk) -> None:
    _add(self, replace(chunk, offset=len(self) - self._base))


def _new_transaction(self: FaultyCommitter, commit: Commit) -> Commit:
    self._transactions += 1
    return replace(commit, transaction=f"{self._incarnation}.{self._transactions}")


def _evict_in_silence(self: SampleBuffer, group_id: str, *_: object) -> bool:
    return bool(self._pending.close(group_id, Reason.GROUP_EVICTED))


def _first_branch_only(self: BufferSink, branches: Sequence[Trajectory]) -> asyncio.Future[None]:
    return _send_rows(self, branches[:1])


def _draw_what_came_later(self: PinnedTables) -> Snapshot:
    return self._watch.snapshot()


async def _generate_ahead(
    self: RolloutScheduler, trajectory_id: str, worker: str
) -> Cancellation | None:
    permission = await _permit(self, trajectory_id, worker)
    return permission if isinstance(permission, Cancellation) else None


def _never_admit(self: GroupOpener) -> None:
    return None


_close, _read, _run = GroupRegistry.close, ReplayableQueue.read, AsyncController._run
_add, _put = GenerationBuilder.add, BufferService.put
_send_rows, _permit = BufferSink.put, RolloutScheduler.permit

BUGS: Mapping[str, Bug] = {
    "skip-eviction": Bug(SampleBuffer, "_evict_stale", _skip_eviction, ("whole fresh batches",)),
    "lag-of-the-version-before": Bug(
        LagBound,
        "reference",
        _count_from_the_version_before,
        ("whole fresh batches",),
        seeds=range(190, 194),
    ),
    "draw-what-came-later": Bug(
        PinnedTables, "_opened", _draw_what_came_later, ("drawn rows",), seeds=range(19, 20)
    ),
    "acknowledge-before-commit": Bug(BufferService, "put", _acknowledge_first, ("durability",)),
    "resume-old-weights": Bug(EngineGroup, "update", _resume_with_old_weights, ("atomic weights",)),
    "keep-surplus": Bug(
        GroupLifecycle, "_cancel_all", _forget_the_surplus, ("surplus is cancelled",)
    ),
    "train-on-failed": Bug(
        Sample, "trainable", property(_even_if_failed), ("whole fresh batches",)
    ),
    "return-two-credits": Bug(GroupRegistry, "close", _return_two_credits, ("credits",)),
    "forget-unacknowledged": Bug(
        ReplayableQueue,
        "read",
        _forget_what_was_sent,
        ("progress", "credits"),
        seeds=range(15, 22),
    ),
    "incomplete-group": Bug(PendingGroups, "ready", _incomplete_is_ready, ("whole fresh batches",)),
    "update-while-generating": Bug(
        AsyncController, "_run", _update_while_generating, ("atomic weights",)
    ),
    "append-repeated-chunk": Bug(GenerationBuilder, "add", _append_all, ("token fidelity",)),
    "write-twice": Bug(
        FaultyCommitter, "_sent", _new_transaction, ("durability", "one batch per step")
    ),
    "branch-alone": Bug(BufferSink, "put", _first_branch_only, ("token fidelity",)),
    "evict-in-silence": Bug(SampleBuffer, "evict", _evict_in_silence, ("departures",)),
    "generate-ahead": Bug(
        RolloutScheduler, "permit", _generate_ahead, ("credits",), seeds=range(8, 10)
    ),
    "never-admit": Bug(GroupOpener, "admit", _never_admit, ("progress",), seeds=range(8, 10)),
    **AGENT_BUGS,
    **DIALOGUE_BUGS,
}
"""Bugs by name."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the block runs.

    Raises:
        SettingsError: there is no bug with this name.
    """
    if name not in BUGS:
        raise SettingsError(f"there is no bug {name!r}; the bugs are {', '.join(BUGS)}")
    bug = BUGS[name]
    before = getattr(bug.owner, bug.method)
    setattr(bug.owner, bug.method, bug.instead)
    try:
        yield
    finally:
        setattr(bug.owner, bug.method, before)
