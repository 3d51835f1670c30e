"""AsyncController: drives each training step through the phases of its schedule.

ROLLART section 6.2 (weight synchronization protocol), ROLL Flash section 4.2. The invariants: at
most one batch is outstanding; weights change only while the engines are suspended, and only to a
published version; the scheduler is told of a version before the engines resume; interrupted and
repeated operations take effect once.

The next batch may be formed before the weights of the previous step are published. The batch is
then trained without delay, and the weights are exchanged concurrently once they can be read.
"""

import asyncio
from collections.abc import Iterable

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.protocols import Buffered, Emit
from rollart_flow.control.schedule.declarations import Overdue, Phase, Swap
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.training.progress import PhaseSeconds, Published, StepSeconds
from rollart_flow.errors import BlockOverError, RunFailedError
from rollart_flow.types import Batch, Event, EventKind


class AsyncController:
    """Provides batches for training and records finished steps.

    Args:
        buffered: source of the batches.
        engines: all inference workers.
        scheduler: notified of batches and versions.
        schedule: order of phases.
        emit: receives events for suspend, update and resume.
        batch_size: trajectories per step.
        steps: last step.
        first_step: next step to train: one above the newest recorded version.
        served: policy version that the engines hold.
        pending: batch of `first_step`, if it was formed before; its training may be in progress.
        published: newest version that is known to be readable; by default `first_step - 1`.
        suspended: whether an earlier controller left the engines suspended.
    """

    def __init__(
        self,
        buffered: Buffered,
        engines: EngineGroup,
        scheduler: RolloutScheduler,
        schedule: Schedule,
        emit: Emit,
        *,
        batch_size: int,
        steps: int,
        first_step: int = 1,
        served: int = 0,
        pending: Batch | None = None,
        published: int | None = None,
        suspended: bool = False,
    ) -> None:
        self._buffered = buffered
        self._engines = engines
        self._scheduler = scheduler
        self._schedule = schedule
        self._beside_training = schedule.swap is Swap.BESIDE
        self._emit = emit
        self._batch_size = batch_size
        self._steps = steps
        self._served = served
        self._pending = pending
        self._left_suspended = suspended
        self._batch: Batch | None = None
        self._trained = first_step - 1
        self._published = Published(first_step - 1 if published is None else published)
        self._announced = first_step - 1
        self._prefetched = (first_step - 1, True)
        self._settled = False
        self._seconds = StepSeconds()
        self._lock = asyncio.Lock()
        self._exchange: asyncio.Task[None] | None = None
        self._beside: tuple[int, Batch] | None = None
        """Step during whose training the weights are exchanged, and its batch."""
        self._step_ended = Signal()

    @property
    def served(self) -> int:
        """Policy version that the engines hold."""
        return self._served

    def phases(self, step: int) -> PhaseSeconds:
        """Return the seconds of a step's phases, complete once `trained(step)` has returned."""
        return self._seconds.of(step)

    async def next_batch(self, step: int) -> Batch | None:
        """The batch of a step, once the step before is trained; None after the last step.

        Raises:
            BlockOverError, RunFailedError: the step is over; the run cannot go on.
        """
        while self._trained < step - 1 and step <= self._steps:
            with waiting(f"trained(step={step - 1})"):
                await self._step_ended.wait()
        if step > self._steps:
            self._scheduler.stop()
            return None
        if step <= self._trained:
            raise BlockOverError(f"step {step} is over; the next one is {self._trained + 1}")
        async with self._lock:
            return await self._prepared(step)

    async def _prepared(self, step: int) -> Batch:
        """Return the outstanding batch of a step; after an interruption, call again."""
        if self._batch is not None and self._batch.step == step:
            return self._batch
        if self._pending is None or self._pending.step != step:
            await self._settle()
        self._batch = await self._prepare(step)
        return self._batch

    async def _settle(self) -> None:
        """Finish the previous step, which a restart may have interrupted after its training."""
        if self._settled:
            return
        after = self._schedule.after_training
        if self._trained > 0 and after:
            phases = dict.fromkeys((Phase.SUSPEND, *after))
            await self._run_all(phases, self._trained, self._trained)
        elif self._trained > 0 and (
            self._beside_training or self._left_suspended or self._served < self._trained - 1
        ):
            # Restarted engines may hold the newest weights already.
            version = max(self._served, self._trained - 1)
            await self._run_all(self._schedule.before_training, self._trained, version)
        self._settled = True

    async def _prepare(self, step: int) -> Batch:
        """Run the phases before training, or start them if they overlap training."""
        await self._exchanged()
        batch = await self._get_batch(step)
        await self._engines.to_training()
        if step == self._steps:
            self._scheduler.stop()
        if self._beside_training or self._published.newest < step - 1:
            self._beside = (step, batch)
            self._start_exchange(step, batch)
        else:
            await self._exchange_weights(step, batch)
        return batch

    def _start_exchange(self, step: int, batch: Batch) -> "asyncio.Task[None]":
        self._exchange = asyncio.create_task(self._exchange_weights(step, batch))
        return self._exchange

    async def _exchange_weights(self, step: int, batch: Batch) -> None:
        await self._published.wait(step - 1)  # rollout continues meanwhile
        await self._run_all(self._schedule.before_training, step, step - 1, batch)

    async def exchanged(self, step: int) -> None:
        """Return once no exchange overlaps a step's training; the version before is published."""
        self._note_published(step - 1, 0.0)
        async with self._lock:
            await self._exchanged()

    async def _exchanged(self) -> None:
        if self._beside is None:
            return
        task = self._exchange or self._start_exchange(*self._beside)
        try:
            with waiting("the exchange of weights"):
                await asyncio.shield(task)
        finally:
            if task.done():
                self._exchange = None
        self._beside = None

    async def close(self) -> None:
        """Cancel an exchange of weights that is in progress."""
        if self._exchange is not None:
            self._exchange.cancel()
            await asyncio.gather(self._exchange, return_exceptions=True)
            self._exchange = None

    async def _get_batch(self, step: int) -> Batch:
        started = asyncio.get_running_loop().time()
        if self._pending is not None and self._pending.step == step:
            batch = self._pending
        else:
            if not self._scheduler.batch_ready():
                await self._engines.to_rollout()
            batch = await self._batch_or_failure(step)
        seconds = PhaseSeconds(wait_s=asyncio.get_running_loop().time() - started)
        self._seconds.add(step, seconds)
        return batch

    async def _batch_or_failure(self, step: int) -> Batch:
        batch = asyncio.ensure_future(self._request(step))
        failure = asyncio.ensure_future(self._scheduler.failed())
        try:
            await asyncio.wait((batch, failure), return_when=asyncio.FIRST_COMPLETED)
            if batch.done():
                return batch.result()
            raise failure.result()
        finally:
            batch.cancel()
            failure.cancel()

    async def _request(self, step: int) -> Batch:
        """Request the batch; a schedule may first wait for attempts that would be too old."""
        if self._schedule.overdue is Overdue.AWAIT:
            await self._scheduler.settled(self._served + 1)
        return await self._buffered.get_batch(step, self._served, self._batch_size)

    async def trained(self, step: int, push_s: float | None = 0.0) -> PhaseSeconds:
        """Record a trained step, run the phases after training, and return the phase seconds.

        Args:
            step: trained step, equal to the new version.
            push_s: seconds of publishing; None if it continues.

        Raises:
            RunFailedError: this step has no batch yet.
        """
        async with self._lock:
            if step > self._trained:
                await self._check_formed(step)
                batch = await self._prepared(step)
                await self._exchanged()
                if push_s is not None:
                    self._note_published(step, push_s)
                if self._schedule.after_training:
                    await self._published.wait(step)
                    await self._run_all(self._schedule.after_training, step, step, batch)
                self._trained = step
                self._settled = True
                self._seconds.forget(step - 2)
                self._step_ended.notify()
                self._prefetch()
        return self.phases(step)

    def publishing(self, version: int) -> None:
        """Record that a version is being published."""
        self._announced = max(self._announced, version)
        self._prefetch()

    def published(self, version: int, push_s: float) -> None:
        """Record that a version is in the weight store, and the seconds of publishing it."""
        self._note_published(version, push_s)
        self._prefetch()

    def _note_published(self, version: int, push_s: float) -> None:
        if self._published.add(version):
            self._seconds.add(version + 1, PhaseSeconds(push_s=push_s))

    def _prefetch(self) -> None:
        """Have the engines read a version ahead of the swap to it, which alone suspends rollout.

        They read it while it is being published, once they hold the version before it (ROLLART
        section 6.3), or once it is recorded. A version that is never published has no effect.
        """
        ahead = self._prefetched
        if Phase.UPDATE in self._schedule.before_training:
            ahead = min(self._trained, self._published.newest), True
        if self._served >= self._announced - 1:
            ahead = max(ahead, (self._announced, False))
        if self._prefetched < ahead and ahead[0] < self._steps:
            self._prefetched = ahead
            self._engines.prefetch(ahead[0])

    async def _check_formed(self, step: int) -> None:
        """Raise if a step has no batch; the buffer may know one that was formed before restarts."""
        if not any(b is not None and b.step == step for b in (self._batch, self._pending)):
            self._pending = await self._buffered.formed(step)
            if self._pending is None:
                raise RunFailedError(f"step {step} has no batch, so it cannot be trained")

    async def _run_all(
        self, phases: Iterable[Phase], step: int, version: int, taken: Batch | None = None
    ) -> None:
        """Run phases in order; a taken batch keeps its credits until rollout is suspended."""
        for phase in phases:
            await self._run(phase, step, version)
            if phase is Phase.SUSPEND and taken is not None:
                self._scheduler.batch_taken(taken)

    async def _run(self, phase: Phase, step: int, version: int) -> None:
        started = asyncio.get_running_loop().time()
        with waiting(f"{phase}(step={step}, version={version})"):
            if phase is Phase.SUSPEND:
                await self._engines.suspend()
            elif phase is Phase.UPDATE:
                pull = await self._engines.update(version)
                read = PhaseSeconds(pull_s=pull.pull_s, exposed_pull_s=pull.exposed_s)
                self._seconds.add(step, read)
                self._served = version
                self._scheduler.version_updated(version)
            elif phase is Phase.RESUME:
                await self._engines.resume()
        seconds = asyncio.get_running_loop().time() - started
        self._seconds.add(step, PhaseSeconds.of_phase(phase, seconds))
        kind, detail = EventKind(phase), {"seconds": seconds}
        self._emit(Event(kind, str(version), policy_version=self._served, step=step, detail=detail))
