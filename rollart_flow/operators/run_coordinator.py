"""RunCoordinator: what every coordinator of a run keeps, whatever its batches are made of.

It is the progress that the train operator reports, the evaluations that are due, and the end of the
run. If its process dies, Ray starts another one, which rebuilds the rest from the tables.
"""

import asyncio
from abc import ABC, abstractmethod

from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.operators.recovery import RecoveredRun
from rollart_flow.resources import register
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.resources.nodes import restarted
from rollart_flow.types import Batch


class RunCoordinator(ABC):
    """Base of the actors that drive a run.

    Args:
        steps: number of training steps.
        evaluate_every: number of versions between evaluations, or None if the run has none.
    """

    def __init__(self, steps: int, evaluate_every: int | None) -> None:
        self._steps = steps
        self._evaluate_every = evaluate_every
        self._replaces = restarted()
        self._opening: asyncio.Future[None] | None = None
        self._stopped = False
        self._changed = Signal()

    @abstractmethod
    async def _succeed(self) -> None:
        """Rebuild the state in a process that replaces a lost one."""

    async def _succeeded(self) -> None:
        """Return once the state is that of the run; a process that replaces one rebuilds it."""
        if self._replaces:
            self._opening = self._opening or asyncio.ensure_future(self._succeed())
            await asyncio.shield(self._opening)

    def _recover(self, recovered: RecoveredRun) -> None:
        """Take over the progress that was recovered from the tables."""
        self._recorded = recovered.version
        self._unevaluated = set(recovered.due_versions(self._steps, self._evaluate_every))
        freeze_heap()

    def _record(self, step: int) -> None:
        """Mark a step as recorded."""
        self._recorded = max(self._recorded, step)
        self._changed.notify()

    @register("rank_zero")
    @abstractmethod
    async def start(self, recovered: RecoveredRun) -> None:
        """Begin at the state that was recovered from the tables."""

    @register("rank_zero")
    @abstractmethod
    async def next_batch(self, step: int) -> Batch | None:
        """Return the batch of a step, or None after the last step or once the run stops."""

    @register("rank_zero")
    @abstractmethod
    async def phases(self, step: int) -> dict[str, float]:
        """Return the seconds of the phases that led to a step, by their columns of `steps`."""

    @register("rank_zero")
    @abstractmethod
    async def trained(self, step: int, push_s: float | None) -> frozenset[int]:
        """Mark a step as recorded, and return the versions that evaluation still needs."""

    @register("rank_zero")
    @abstractmethod
    async def publishing(self, version: int) -> None:
        """Mark a version as being published."""

    @register("rank_zero")
    @abstractmethod
    async def published(self, version: int, push_s: float) -> None:
        """Mark a version as readable from the weight store; publishing took `push_s` seconds."""

    @register("rank_zero")
    async def recorded(self, version: int) -> bool:
        """Wait until a version's step is recorded; return False if the run stops.

        The weights of a version that is evaluated are published before that.
        """
        await self._succeeded()
        while self._recorded < version and not self._stopped:
            with waiting(f"version {version}"):
                await self._changed.wait()
        return not self._stopped

    @register("rank_zero")
    async def evaluated(self, version: int) -> None:
        """Mark a version's scores as recorded."""
        await self._succeeded()
        self._unevaluated.discard(version)

    @register("rank_zero")
    @abstractmethod
    async def failed(self) -> str | None:
        """Wait until the run fails or is stopped; return the failure message if it failed."""

    @register("rank_zero")
    @abstractmethod
    async def stop(self) -> None:
        """Stop the run."""

    @register("rank_zero")
    async def keep_stopped(self) -> None:
        """Stop, and never return, so that the call stops a process that replaces this one, too."""
        await self.stop()
        await asyncio.get_running_loop().create_future()

    async def _wait_until_stopped(self) -> None:
        while not self._stopped:
            await self._changed.wait()
