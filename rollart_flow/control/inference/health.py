"""Health checks: an inference worker that answers nothing is treated as one that died.

A process that crashes is noticed by whoever started it; one that hangs is noticed by nobody, and
its requests wait for ever. So each worker is asked for a sign of life. The invariant: a worker that
answers within the limit is left alone, however slow it is; one that does not is restarted in place,
or removed where that has happened before, and each is an event. One whose node is gone is left
out until there is another.
"""

import asyncio
from dataclasses import dataclass

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.protocols import Emit, EngineCommands
from rollart_flow.errors import EngineError, SettingsError, WorkerAwayError, WorkerLostError
from rollart_flow.types import Event, EventKind, Reason


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """How long a worker may be silent.

    Raises:
        SettingsError: names the limit that is not positive.
    """

    answer_s: float = 60.0
    """For a sign of life of a process that has given one before [s]."""
    start_s: float = 600.0
    """For the first one of a new process, which has a model to load [s]."""

    def __post_init__(self) -> None:
        for name in ("answer_s", "start_s"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} is {getattr(self, name)}, but must be above 0 seconds")

    @property
    def every_s(self) -> float:
        """From a sign of life to the next question [s]: hangs show within 1.25 x `answer_s`."""
        return self.answer_s / 4


async def watch(fleet: EngineGroup, emit: Emit, limits: HealthLimits) -> None:
    """Ask all workers of a fleet for signs of life until none is left, or it is cancelled.

    Args:
        fleet: its workers have given signs of life already, and so have those that join it.
        emit: where restarts are reported; the fleet reports removals.
        limits: how long each may be silent.
    """
    cursor = 0
    async with asyncio.TaskGroup() as watches:
        while True:
            cursor, workers = await fleet.joined(cursor)
            if not workers:
                return
            for worker in workers:
                watches.create_task(_watch(worker, fleet, emit, limits))


async def _watch(
    worker: EngineCommands, fleet: EngineGroup, emit: Emit, limits: HealthLimits
) -> None:
    """Ask one worker until it is lost for good."""
    limit_s = limits.answer_s
    while True:
        await asyncio.sleep(limits.every_s)
        try:
            async with asyncio.timeout(limit_s):
                await worker.ping()
            await fleet.rejoin(worker.name)
            limit_s = limits.answer_s
        except TimeoutError:
            _restart(worker, emit, limit_s)
            limit_s = limits.start_s
        except WorkerLostError as error:
            fleet.remove(worker.name, error)
            return
        except WorkerAwayError as error:
            fleet.leave(worker.name, error)
            limit_s = limits.start_s
        except EngineError:
            limit_s = limits.start_s


def _restart(worker: EngineCommands, emit: Emit, limit_s: float) -> None:
    """End the process of a worker that hangs. Its requests fail with it and go on elsewhere."""
    worker.restart()
    detail = {"error": f"it hangs: no sign of life within {limit_s:g} s"}
    emit(Event(EventKind.CRASH, worker.name, reason=Reason.WORKER_LOST, detail=detail))
