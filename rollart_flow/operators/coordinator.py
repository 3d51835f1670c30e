"""The coordinator: the ControlPlane of a run in one Ray actor, without token data.

All parts of a run exchange small messages with it: the task source requests attempts, rollout
workers request permission and orders, the batch source requests batches, the train operator
reports steps, and the evaluation source asks which version is due.

If its process dies, Ray starts another one and repeats the calls that were not answered. The new
process rebuilds its state from the tables (`operators.recovery`), the buffer and the engines, and
asks the task source and the rollout workers what is in flight, which goes on meanwhile.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rollart_flow.control.plane import ControlPlane
from rollart_flow.control.protocols import Clearance, Order, Permission, RunningAttempt
from rollart_flow.control.schedule.declarations import Phase
from rollart_flow.engines.worker import EngineWorker
from rollart_flow.operators.recovery import RecoveredRun
from rollart_flow.operators.run_coordinator import RunCoordinator
from rollart_flow.operators.run_plane import CoordinatorSettings, RunPlane
from rollart_flow.resources import Remote, TypedCluster, WorkerHandle, register
from rollart_flow.types import Assignment, Batch

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor


class CoordinatorActor(RunCoordinator):
    """Actor that exposes the scheduler and the controller to the operators."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        buffer: "Remote[BufferActor]",
        engines: TypedCluster[EngineWorker],
    ) -> None:
        super().__init__(settings.steps, settings.evaluate_every)
        self._settings = settings
        self._run = RunPlane(settings, buffer, engines)
        self._all_admitted = False

    @register("rank_zero")
    async def start(self, recovered: RecoveredRun) -> None:
        """Build the control plane at the state that was recovered from the tables."""
        if self._replaces:
            await self._serving()
        else:
            self._begun(recovered, self._run.begin(recovered))

    async def _serving(self) -> ControlPlane:
        """Return the control plane; a process that replaces a lost one rebuilds it first."""
        await self._succeeded()
        return self._plane

    async def _succeed(self) -> None:
        self._begun(*await self._run.succeed())

    def _begun(self, recovered: RecoveredRun, plane: ControlPlane) -> None:
        self._plane = plane
        self._scheduler, self._controller = plane.scheduler, plane.controller
        self._recover(recovered)

    # Admission.

    @register("rank_zero")
    async def admit(self, source: str, index: int, most: int) -> tuple[Assignment, ...]:
        """Wait for and return the index-th block of a source; it is empty if the run ends."""
        plane = await self._serving()
        assignments = await plane.scheduler.admit(source, index, most)
        self._all_admitted |= not assignments
        # The admissions must outlive this process, as the attempts do.
        await self._run.events.received()
        return assignments

    @register("rank_zero")
    async def adopt(self, source: str, blocks: Sequence[Sequence[str]]) -> None:
        """Learn which attempts a source has received; see `control.protocols.Admission`."""
        await (await self._serving()).scheduler.adopt(source, blocks)

    @register("rank_zero")
    async def permit(
        self, worker: str, asked: Sequence[str], started: Sequence[tuple[str, int]]
    ) -> list[Permission]:
        """Exchange the messages that a rollout worker has gathered.

        Args:
            worker: name of the rollout worker.
            asked: attempts that are about to start.
            started: attempts that have their first token, and the policy version of that token.

        Returns:
            The permission of each attempt of `asked`.
        """
        scheduler = (await self._serving()).scheduler
        for trajectory_id, version in started:
            await scheduler.started(trajectory_id, version)
        found = [await scheduler.permit(trajectory_id, worker) for trajectory_id in asked]
        await self._told_of_groups_ahead()
        return found

    @register("rank_zero")
    async def orders(self, worker: str, after: int) -> tuple[int, tuple[Order, ...]]:
        """Wait for a rollout worker's orders past a cursor; there may be none yet."""
        cursor, orders = await (await self._serving()).polls.orders(worker, after)
        if any(isinstance(each, Clearance) for each in orders):
            await self._told_of_groups_ahead()
        return cursor, orders

    @register("rank_zero")
    async def announce(
        self, worker: str, running: Sequence[RunningAttempt]
    ) -> tuple[int, tuple[Order, ...]]:
        """Learn which attempts a rollout worker runs; see `control.protocols.Admission`."""
        answer = await (await self._serving()).scheduler.announce(worker, running)
        await self._told_of_groups_ahead()
        return answer

    async def _told_of_groups_ahead(self) -> None:
        """Return once the buffer knows the groups that were opened ahead and then admitted.

        `admit` waited for its groups before. What lets an attempt of a group that was opened ahead
        generate must not leave before the event of its admission, which outlives this process.
        """
        if self._settings.schedule.resets_ahead:
            await self._run.events.received()

    @register("rank_zero")
    async def quarantine(self, task_id: str, why: str) -> None:
        """Attempt a task no more, whose boxes fail."""
        (await self._serving()).scheduler.quarantine(task_id, why)

    @register("rank_zero")
    async def revive(self, worker: str) -> tuple[WorkerHandle[EngineWorker], ...]:
        """Wait for the replacements of a lost engine worker: itself, others, or none ever."""
        names = await (await self._serving()).revive(worker)
        return tuple(self._run.handles[name] for name in names)

    # Training.

    @register("rank_zero")
    async def next_batch(self, step: int) -> Batch | None:
        """Return the batch of a step, or None after the last step or once the run stops.

        See `control.training.controller.AsyncController.next_batch`.
        """
        await self._serving()
        if self._stopped:
            return None
        batch = asyncio.ensure_future(self._controller.next_batch(step))
        stop = asyncio.ensure_future(self._wait_until_stopped())
        await asyncio.wait((batch, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not batch.done() or self._scheduler.failure is not None:
            batch.cancel()
            await asyncio.wait((batch,))
            return None
        return batch.result()

    @register("rank_zero")
    async def phases(self, step: int) -> dict[str, float]:
        """Return the seconds of the phases that led to a step.

        The phases are the wait for the batch, and publishing, reading, and the swap to the weights
        of the preceding step, which the caller has published. The call waits for a swap that is
        under way. If the schedule swaps after training, the swap is the one that followed the
        preceding step.
        """
        await self._serving()
        await self._controller.exchanged(step)
        now = self._controller.phases(step)
        ahead = self._settings.schedule.before_training
        if Phase.UPDATE not in ahead:
            before = self._controller.phases(step - 1)
            suspend_s = (now if Phase.SUSPEND in ahead else before).suspend_s
            now = replace(before, wait_s=now.wait_s, suspend_s=suspend_s, push_s=now.push_s)
        return asdict(now)

    @register("rank_zero")
    async def trained(self, step: int, push_s: float | None) -> frozenset[int]:
        """Mark a step as recorded, and return the versions that evaluation still needs.

        See `control.training.controller.AsyncController.trained`.
        """
        await self._serving()
        self._record(step)
        await self._controller.trained(step, push_s)
        return frozenset(self._unevaluated)

    @register("rank_zero")
    async def publishing(self, version: int) -> None:
        """Mark a version as being published."""
        await self._serving()
        self._controller.publishing(version)

    @register("rank_zero")
    async def published(self, version: int, push_s: float) -> None:
        """Mark a version as readable from the weight store; publishing took `push_s` seconds."""
        await self._serving()
        self._controller.published(version, push_s)

    # End of the run.

    @register("rank_zero")
    async def admits(self) -> bool:
        """Return whether more attempts may be admitted."""
        await self._serving()
        return not (self._stopped or self._all_admitted)

    @register("rank_zero")
    async def failed(self) -> str | None:
        """Wait until the run fails or is stopped; return the failure message if it failed."""
        await self._serving()
        failure = asyncio.ensure_future(self._scheduler.failed())
        stop = asyncio.ensure_future(self._wait_until_stopped())
        await asyncio.wait((failure, stop), return_when=asyncio.FIRST_COMPLETED)
        failure.cancel()
        stop.cancel()
        return None if self._scheduler.failure is None else self._scheduler.failure.message

    @register("rank_zero")
    async def stop(self) -> None:
        """Stop admission and cancel all attempts in flight."""
        await self._serving()
        self._stopped = True
        self._changed.notify()
        self._scheduler.stop()
        self._run.stop()
        self._plane.polls.close()
        await self._controller.close()
