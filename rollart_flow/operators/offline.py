"""The coordinator and the source of batches of an offline run, which trains on what is stored.

Nothing is rolled out: no engine serves, no attempt is admitted, and a batch is drawn as soon as the
preceding one is trained. What is left of a run is its progress.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.training.progress import PhaseSeconds
from rollart_flow.errors import BlockOverError
from rollart_flow.operators.recovery import RecoveredRun
from rollart_flow.operators.run_coordinator import RunCoordinator
from rollart_flow.operators.sources import batch_block
from rollart_flow.resources import Remote, register
from rollart_flow.resources.blocking import report_waits
from rollart_flow.rows import to_ipc
from rollart_flow.store import Run
from rollart_flow.types import Batch

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.stored_rows import StoredSource


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    """Settings of the pipeline that the coordinator of an offline run needs."""

    run: str
    """Address of the run."""
    steps: int
    evaluate_every: int | None
    """Number of versions between evaluations, or None if the run has no evaluation."""


class OfflineCoordinator(RunCoordinator):
    """Actor that lets an offline run take one step after the other."""

    def __init__(self, settings: OfflineSettings, buffer: "Remote[BufferActor]") -> None:
        super().__init__(settings.steps, settings.evaluate_every)
        self._run = settings.run
        self._buffer = buffer
        self._waited: dict[int, float] = {}
        """Seconds that the step waited for its batch, for the steps under way."""
        self._push_s = 0.0

    @register("rank_zero")
    async def start(self, recovered: RecoveredRun) -> None:
        if self._replaces:
            await self._succeeded()
        else:
            self._begun(recovered)

    async def _succeed(self) -> None:
        recovered, _ = await self._buffer.call.succeed.aio("coordinator")
        self._begun(recovered)

    def _begun(self, recovered: RecoveredRun) -> None:
        report_waits(self._run, "coordinator")
        self._recover(recovered)
        self._free_s = asyncio.get_running_loop().time()

    @register("rank_zero")
    async def next_batch(self, step: int) -> Batch | None:
        """Return the batch of a step, without rows, once the step before is trained.

        Raises:
            BlockOverError: the step is over.
        """
        await self._succeeded()
        while self._recorded < step - 1 and step <= self._steps and not self._stopped:
            with waiting(f"trained(step={step - 1})"):
                await self._changed.wait()
        if self._stopped or step > self._steps:
            return None
        if step <= self._recorded:
            raise BlockOverError(f"step {step} is over; the next one is {self._recorded + 1}")
        return Batch(step, step - 1, step - 1, (), (), ())

    @register("rank_zero")
    async def drawn(self, step: int) -> None:
        """Mark the batch of a step as drawn, which ends the wait for it."""
        await self._succeeded()
        self._waited = {step: asyncio.get_running_loop().time() - self._free_s}

    @register("rank_zero")
    async def phases(self, step: int) -> dict[str, float]:
        await self._succeeded()
        return asdict(PhaseSeconds(wait_s=self._waited.get(step, 0.0), push_s=self._push_s))

    @register("rank_zero")
    async def trained(self, step: int, push_s: float | None) -> frozenset[int]:
        await self._succeeded()
        self._free_s = asyncio.get_running_loop().time()
        if push_s is not None:
            self._push_s = push_s
        self._record(step)
        return frozenset(self._unevaluated)

    @register("rank_zero")
    async def publishing(self, version: int) -> None:
        await self._succeeded()  # only evaluation reads versions, after their step is recorded

    @register("rank_zero")
    async def published(self, version: int, push_s: float) -> None:
        await self._succeeded()
        self._push_s = push_s or self._push_s

    @register("rank_zero")
    async def failed(self) -> str | None:
        await self._succeeded()
        await self._wait_until_stopped()
        return None

    @register("rank_zero")
    async def stop(self) -> None:
        await self._succeeded()
        self._stopped = True
        self._changed.notify()


class StoredBatches:
    """Function that returns the rows of the batch source of an offline run, as `sources.Batches`.

    A batch whose manifest was written before the processes of the run were replaced is the recorded
    one; any other is drawn, while the step before it trains.

    Args:
        coordinator: handle of the coordinator.
        uri: address of the run.
        source: what is drawn from.
        first_step: first step of these processes.
    """

    def __init__(
        self,
        coordinator: Remote[OfflineCoordinator],
        uri: str,
        source: "StoredSource",
        first_step: int,
    ) -> None:
        self._coordinator = coordinator
        self._uri = uri
        self._source = source
        self._first_step = first_step
        self._draw: Callable[[int], pa.Table] | None = None
        self._thread: ThreadPoolExecutor
        self._ahead: tuple[int, Future[pa.Table]]
        """The step whose rows the thread draws, and these rows."""

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for the preceding step and return the batch of step `first_step + index`."""
        step = self._first_step + index
        try:
            batch = self._coordinator.call.next_batch(step)
        except BlockOverError:
            return batch_block(None)
        if batch is None:
            return None
        rows = self._rows(step)
        self._coordinator.call.drawn(step)
        return batch_block(batch, to_ipc(rows))

    def _rows(self, step: int) -> pa.Table:
        if self._draw is None:
            self._draw, self._thread = self._drawing(), ThreadPoolExecutor(1, "stored")
            recorded = self._recorded(step)
            rows = self._draw(step) if recorded is None else recorded
        else:
            drawn, ahead = self._ahead
            wait([ahead])
            rows = ahead.result() if drawn == step else self._draw(step)
        self._ahead = step + 1, self._thread.submit(self._draw, step + 1)
        return rows

    def _drawing(self) -> Callable[[int], pa.Table]:
        """Return a function that draws the rows of a step."""
        from rollart_flow.operators.stored_rows import StoredRows

        stored = StoredRows(self._uri, self._source)
        return lambda step: stored.rows(step, (step - 1, step - 1))

    def _recorded(self, step: int) -> pa.Table | None:
        """Return the rows of a step whose manifest was written, if it was."""
        run = Run(self._uri)
        if run.batches.filter(pl.col("step") == step).head(1).collect().is_empty():
            return None
        return run.batch(step)
