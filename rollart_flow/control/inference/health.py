"""Health checks: an inference worker that does not answer is treated as dead.

A crashed process is detected by the process that started it; a hanging process would go unnoticed,
and its requests would wait forever. Each worker is therefore pinged. The invariant: a worker that
answers within the limit is left alone, however slow it is; a worker that does not answer is
restarted in place, or removed if it was restarted before, and either action is reported. A worker
whose node is gone is left out until it gets another node, and removed if none comes while no other
worker serves, so that the run ends instead of waiting for ever.
"""

import asyncio
from dataclasses import dataclass

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.protocols import Emit, EngineCommands
from rollart_flow.errors import EngineError, SettingsError, WorkerAwayError, WorkerLostError
from rollart_flow.timeouts import timeout
from rollart_flow.types import Event, EventKind, Reason


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """Time limits for the answers of a worker to pings.

    Raises:
        SettingsError: names the limit that is not positive.
    """

    answer_s: float = 60.0
    """Limit for a process that has answered before [s]."""
    start_s: float = 600.0
    """Limit for the first answer of a new process, which has to load the model [s]."""
    away_s: float = 900.0
    """Limit for a worker without a node, while no other worker serves [s]."""

    def __post_init__(self) -> None:
        for name in ("answer_s", "start_s", "away_s"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} is {getattr(self, name)}, but must be above 0 seconds")

    @property
    def every_s(self) -> float:
        """Time from an answer to the next ping [s]: a hang shows within 1.25 x `answer_s`."""
        return self.answer_s / 4


async def watch(engines: EngineGroup, emit: Emit, limits: HealthLimits) -> None:
    """Ping all workers of an engine group until none is left or the call is cancelled.

    Args:
        engines: engine group, whose workers have all answered once before they join.
        emit: receives events for restarts; the engine group reports removals.
        limits: time limits for the answers.
    """
    cursor = 0
    async with asyncio.TaskGroup() as watches:
        while True:
            cursor, workers = await engines.joined(cursor)
            if not workers:
                return
            for worker in workers:
                watches.create_task(_watch(worker, engines, emit, limits))


async def _watch(
    worker: EngineCommands, engines: EngineGroup, emit: Emit, limits: HealthLimits
) -> None:
    """Ping one worker until it is permanently lost."""
    limit_s = limits.answer_s
    loop = asyncio.get_running_loop()
    answered_s = loop.time()
    while True:
        await asyncio.sleep(limits.every_s)
        try:
            async with timeout(limit_s):
                await worker.ping()
            await engines.rejoin(worker.name)
            limit_s, answered_s = limits.answer_s, loop.time()
        except TimeoutError:
            _restart(worker, emit, limit_s)
            limit_s = limits.start_s
        except WorkerLostError as error:
            engines.remove(worker.name, error)
            return
        except WorkerAwayError as error:
            engines.leave(worker.name, error)
            if not engines.serving and loop.time() - answered_s > limits.away_s:
                said = f"{error}, nor had one for {limits.away_s:g} s"
                engines.remove(worker.name, WorkerLostError(said))
                return
            limit_s = limits.start_s
        except EngineError:
            limit_s = limits.start_s


def _restart(worker: EngineCommands, emit: Emit, limit_s: float) -> None:
    """Restart a hanging worker; its requests fail and continue on other workers."""
    worker.restart()
    detail = {"error": f"it hangs: no sign of life within {limit_s:g} s"}
    emit(Event(EventKind.CRASH, worker.name, reason=Reason.WORKER_LOST, detail=detail))
