"""`EngineWorker`: one inference engine as a Ray actor; `engines.remote` is its client.

Its commands are those of ROLL Flash section 4.2: ADD (`submit`), ABORT, and the callback, which is
a read with a cursor (`poll`). Every message is idempotent: a request id that arrives twice is
started once, a read that is repeated answers again.

A worker that was restarted holds the initial weights, and one whose engine has failed for good
ends, so that another is started in its place. The invariant: it takes no request before it
was told which version to serve (`serve`), and a message that was meant for the process before it
is answered with the name of this one, so that its sender learns what is lost.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

import ray

from rollart_flow.control.loop.replayable_queue import ReplayableQueue
from rollart_flow.control.protocols import PullStats
from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.engines.registry import build_engine
from rollart_flow.engines.remote import Delivery, EngineFailure
from rollart_flow.engines.vllm.receiver import Sent
from rollart_flow.engines.weight_prefetcher import WeightPrefetcher
from rollart_flow.errors import EngineError, WorkerLeftError
from rollart_flow.models.policy import Policy
from rollart_flow.resources import CPU, ActorGen, Placement, register
from rollart_flow.types import GenerationRequest
from rollart_flow.weights import open_weights
from rollart_flow.weights.broadcast.requirements import SENT
from rollart_flow.weights.folder_store import local_path

PREFIXES = {ActorGen.role: "engine", str(EnginePhase.PREFILL): "prefill"}
"""Of the workers' names, by role."""


class EngineWorker(ActorGen):
    """Serves one policy version at a time to any number of clients."""

    def __init__(
        self,
        placement: Placement,
        *,
        policy: Policy,
        folder: str,
        weights: str,
        weights_uri: str,
        seed: int,
        disaggregated: bool = False,
        lora: str | None = None,
    ) -> None:
        """Args: `folder` holds the policy's model and tokenizer, `weights_uri` its versions;
        where prompts and tokens are `disaggregated`, the worker's role says which are its; `lora`
        holds an adapter that it draws with."""
        super().__init__(placement)
        phase = EnginePhase.PREFILL if placement.role == EnginePhase.PREFILL else EnginePhase.DECODE
        sent = sent_to(placement, weights, weights_uri)
        self._prefetches = sent is None
        self._engine: Engine = build_engine(
            policy,
            local_path(folder),
            seed=seed,
            worker=placement.worker,
            units=max(1, int(placement.gpus)),
            phase=phase if disaggregated else None,
            lora=None if lora is None else local_path(lora),
            sent=sent,
        )
        self._pulls = WeightPrefetcher(open_weights(weights, weights_uri))
        self._feeds: dict[str, ReplayableQueue[Delivery]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._incarnation = uuid4().hex
        self._serves = False
        self._left = False
        """Told to serve nothing until `serve`."""
        self._commands = asyncio.Lock()

    @register()
    async def ping(self) -> None:
        """A sign of life, whatever the engine does; only a process that hangs gives none."""
        self._end_if_failed()

    async def connect(self) -> str:
        """What this process is called in `submit` and `poll`; empty before it may serve."""
        return self._incarnation if self._serves else ""

    async def submit(
        self, client: str, incarnation: str, requests: Sequence[GenerationRequest]
    ) -> None:
        """Start requests, whose chunks the client reads with `poll`.

        Those for another incarnation are passed over: `poll` tells the client.
        """
        if incarnation != self._incarnation:
            return
        for request in requests:
            if self._left:
                self._feed(client).publish(EngineFailure(request.request_id, self._gone()))
            elif request.request_id not in self._running:
                task = asyncio.create_task(self._generate(self._feed(client), request))
                self._running[request.request_id] = task
                task.add_done_callback(partial(self._ended, request.request_id))

    def _ended(self, request_id: str, task: asyncio.Task[None]) -> None:
        del self._running[request_id]

    async def poll(
        self, client: str, incarnation: str, after: int
    ) -> tuple[str, int, tuple[Delivery, ...]]:
        """Wait for chunks past the cursor; (incarnation, new cursor, chunks).

        Asked about another incarnation it answers at once: nothing of that will come any more.
        """
        if incarnation != self._incarnation:
            return self._incarnation, 0, ()
        return self._incarnation, *await self._feed(client).read(after)

    @register()
    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; their streams end with the tokens they have."""
        for request_id in request_ids:
            await self._engine.abort(request_id)

    @ray.method(max_task_retries=-1)
    @register()
    async def suspend(self) -> None:
        """Return once the engine draws no token."""
        async with self._command():
            await self._engine.suspend()

    @ray.method(max_task_retries=-1)
    @register()
    async def release(self) -> int:
        """Give back the memory that only generation needs, until `serve`; its bytes."""
        async with self._command():
            await self._engine.suspend()  # a process that was restarted meanwhile is not
            return await self._engine.release()

    @ray.method(max_task_retries=-1)
    @register()
    async def leave(self) -> int:
        """End what is in flight with WorkerLeftError, after the tokens that it has, take no more
        until `serve`, and give back the memory that only generation needs; its bytes."""
        async with self._command():
            await self._engine.suspend()
            self._left = True
            tasks = tuple(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return await self._engine.release()

    @register()
    async def prefetch(self, version: int) -> None:
        """Begin to read a version from the weight store, while tokens are drawn; nothing where the
        trainer will send it."""
        if version > self._engine.version and self._prefetches:
            self._pulls.begin(version)

    @ray.method(max_task_retries=-1)
    @register()
    async def update(self, version: int) -> PullStats:
        """Swap to a version of the weight store; nothing to do if it is held."""
        async with self._command():
            return await self._hold(version)

    @ray.method(max_task_retries=-1)
    @register()
    async def serve(self, version: int) -> bool:
        """Go on, or begin, under a version: swap to it if it is not held, then draw tokens.

        Whether this process has begun to serve with this call.
        """
        async with self._command():
            await self._hold(version)
            await self._engine.resume()
            begins, self._serves, self._left = not self._serves, True, False
            return begins

    async def _hold(self, version: int) -> PullStats:
        if version == self._engine.version:
            return PullStats()
        await self._engine.suspend()
        asked = time.monotonic()
        if await self._engine.receive(version):
            seconds = time.monotonic() - asked
            return PullStats(seconds, seconds)
        tensors, pull = await self._pulls.take(version)
        await self._engine.load(version, tensors)
        return pull

    def _gone(self) -> WorkerLeftError:
        return WorkerLeftError(f"worker {self.placement.worker} serves nothing for now")

    @register()
    async def version(self) -> int:
        """The policy version that is served."""
        return self._engine.version

    @asynccontextmanager
    async def _command(self) -> AsyncIterator[None]:
        """One command at a time; one that finds the engine dead ends the process."""
        async with self._commands:
            try:
                yield
            except EngineError:
                self._end_if_failed()
                raise

    def _end_if_failed(self) -> None:
        if self._engine.failed:
            os._exit(1)

    def _feed(self, client: str) -> ReplayableQueue[Delivery]:
        return self._feeds.setdefault(client, ReplayableQueue(f"{self.placement.worker}/{client}"))

    async def _generate(self, feed: ReplayableQueue[Delivery], request: GenerationRequest) -> None:
        try:
            async for chunk in self._engine.generate(request):
                feed.publish(chunk)
        except asyncio.CancelledError:
            if self._left:
                feed.publish(EngineFailure(request.request_id, self._gone()))
            raise
        except EngineError as error:
            feed.publish(EngineFailure(request.request_id, error))
            self._end_if_failed()
        except Exception as error:  # noqa: BLE001  the client waits: it must hear of any end
            failed = EngineError(f"{type(error).__name__}: {' '.join(str(error).split())}")
            feed.publish(EngineFailure(request.request_id, failed))


def sent_to(placement: Placement, weights: str, weights_uri: str) -> Sent | None:
    """How the trainer sends weights to a worker: to none on CPUs, and by IPC to those on its own
    device alone; the others read the lasting store."""
    if weights not in SENT or placement.granted == CPU:
        return None
    return None if weights == "ipc" and not placement.shares else Sent(weights, weights_uri)
