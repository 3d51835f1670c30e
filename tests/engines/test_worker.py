"""`EngineWorker`: what its clients learn when it is told to leave."""

import asyncio
from pathlib import Path

from rollart_flow.engines.base import EngineFailure
from rollart_flow.engines.worker import EngineWorker
from rollart_flow.errors import WorkerLeftError
from rollart_flow.models.policy import Policy
from rollart_flow.resources import CPU, ActorGenCls, Placement
from rollart_flow.types import FinishReason, Sampling
from tests.engines.conformance import CONTEXT, ask, folders, one_thread, prompt

__all__ = ["folders", "one_thread"]  # fixtures

LONG = CONTEXT - 20


class Client:
    """Sends requests to a worker and reads what comes of each."""

    def __init__(self, name: str, worker: EngineWorker) -> None:
        self.name = name
        self._worker = worker
        self._cursor = 0
        self._sent = 0

    async def send(self, most: int = 2) -> str:
        """Send a request of at most so many tokens; its id."""
        self._sent += 1
        request = ask(f"{self.name}-{self._sent}", prompt(self._sent, 8), Sampling(max_tokens=most))
        here = await self._worker.connect()
        await self._worker.submit(self.name, here, (request,))
        return request.request_id

    async def end(self, request_id: str) -> FinishReason | EngineFailure:
        """How a request ended."""
        here = await self._worker.connect()
        while True:
            _, self._cursor, deliveries = await self._worker.poll(self.name, here, self._cursor)
            for each in deliveries:
                if isinstance(each, EngineFailure):
                    return each
                if each.request_id == request_id and each.finish_reason is not None:
                    return each.finish_reason

    async def asked(self) -> FinishReason | EngineFailure:
        """How a short request ended."""
        return await self.end(await self.send())


def has_left(end: FinishReason | EngineFailure) -> bool:
    return isinstance(end, EngineFailure) and isinstance(end.error, WorkerLeftError)


def test_each_client_learns_once_that_it_has_left(folders: tuple[Path, Path]) -> None:
    """Whether or not it had a request in flight, or had ever asked."""
    policy = Policy.tiny(hidden=32, heads=2, max_context=CONTEXT)
    placement = Placement("engine-cpu-0", ActorGenCls.role, CPU, ())

    async def scenario() -> None:
        worker = EngineWorker(
            placement, run="/nowhere", policy=policy, folder=str(folders[0]), weights="local",
            weights_uri="", seed=0,
        )  # fmt: skip
        await worker.serve(0)
        idle, busy, late = (Client(name, worker) for name in ("idle", "busy", "late"))
        assert await idle.asked() is FinishReason.LENGTH
        in_flight = await busy.send(LONG)
        await worker.leave()
        await worker.serve(0)
        assert has_left(await busy.end(in_flight))
        assert await busy.asked() is FinishReason.LENGTH
        for client in (idle, late):
            assert has_left(await client.asked())
            assert await client.asked() is FinishReason.LENGTH
        await worker.end()

    asyncio.run(scenario())
