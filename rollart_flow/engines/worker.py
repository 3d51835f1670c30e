"""`EngineWorker`: one inference engine as a Ray actor; `engines.remote` is its client.

Its commands are those of ROLL Flash section 4.2: ADD (`submit`), ABORT, and the callback, which is
a read with a cursor (`poll`). Every message is idempotent: a request id that arrives twice is
started once, and a repeated read returns the same answer.

A restarted worker holds the initial weights. A worker whose engine has failed permanently exits, so
that another is started in its place. The invariant: a worker accepts no request before `serve` has
set its version, and answers a message meant for a previous process with the identifier of the
current one, so that the sender learns which requests are lost. Each client of a worker that was
told to leave learns of it once, with its requests in flight or with its next ones, even if the
worker serves again by then: others may serve in its place.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from uuid import uuid4

from rollart_flow.control.loop.replayable_queue import ReplayableQueue
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.protocols import PullStats
from rollart_flow.engines.base import Delivery, Engine, EngineFailure, EnginePhase
from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.engines.version_loader import VersionLoader
from rollart_flow.engines.weight_prefetcher import WeightPrefetcher
from rollart_flow.errors import EngineError, WorkerLeftError
from rollart_flow.models.policy import Policy
from rollart_flow.resources import ActorGenCls, Placement, register
from rollart_flow.resources.blocking import report_waits, working
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.resources.nodes import end_process
from rollart_flow.timeouts import timeout
from rollart_flow.types import GenerationRequest
from rollart_flow.weights import open_weights
from rollart_flow.weights.folder_store import local_path
from rollart_flow.weights.registry import transport_of

POLL_S = 20.0
"""Longest time that a call waits for chunks [s]."""
PREFIXES = {ActorGenCls.role: "engine", str(EnginePhase.PREFILL): "prefill"}
"""Prefixes of worker names, by role."""


class EngineWorker(ActorGenCls):
    """An actor that serves one policy version at a time to any number of clients."""

    def __init__(
        self,
        placement: Placement,
        *,
        run: str,
        policy: Policy,
        folder: str,
        weights: str,
        weights_uri: str,
        seed: int,
        disaggregated: bool = False,
        lora: str | None = None,
        lora_rank: int = 0,
    ) -> None:
        """Create the engine of the worker.

        Args: `run` is the address of the run, `folder` holds the policy's model and tokenizer, and
        `weights_uri` its versions. If prompts and tokens are `disaggregated`, the worker's role
        selects its part. `lora` holds an adapter to generate with; `lora_rank` is the rank of the
        adapters that versions consist of, or 0.
        """
        super().__init__(placement)
        report_waits(run, placement.worker)
        phase = EnginePhase.PREFILL if placement.role == EnginePhase.PREFILL else EnginePhase.DECODE
        transport = transport_of(weights)
        sent = transport.sent_to(weights_uri, placement.granted, shares=placement.shares)
        self._prefetches = sent is None
        options = EngineOptions(
            seed=seed,
            worker=placement.worker,
            units=max(1, int(placement.gpus)),
            phase=phase if disaggregated else None,
            lora=None if lora is None else local_path(lora),
            lora_rank=lora_rank,
            sent=sent,
        )
        place = local_path(folder)
        with working("start of the engine"):
            self._engine: Engine = build_engine(policy, place, options)
        self._pulls = WeightPrefetcher(open_weights(weights, weights_uri))
        self._loader = VersionLoader(self._engine, self._pulls, place)
        self._feeds: dict[str, ReplayableQueue[Delivery]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._incarnation = uuid4().hex
        self._serves = False
        self._left = False
        """Whether the worker was told to serve no request until `serve`."""
        self._told: set[str] | None = None
        """Clients that know that the worker has left; None if it never did."""
        self._suspended = False
        self._commands = asyncio.Lock()

    @register()
    async def ping(self) -> None:
        """Answer, whatever the engine is doing; only a hung process does not."""
        self._end_if_failed()

    @register()
    async def connect(self) -> str:
        """Return this process's identifier for `submit` and `poll`; empty before it may serve."""
        return self._incarnation if self._serves else ""

    @register()
    async def submit(
        self, client: str, incarnation: str, requests: Sequence[GenerationRequest]
    ) -> None:
        """Start requests, whose chunks the client reads with `poll`.

        Requests for another incarnation are ignored; `poll` reports the mismatch to the client.
        """
        if incarnation != self._incarnation:
            return
        gone = self._left or (self._told is not None and client not in self._told)
        for request in requests:
            if gone:
                self._say_gone(client, request)
            elif request.request_id not in self._running:
                task = asyncio.create_task(self._generate(client, request))
                self._running[request.request_id] = task
                task.add_done_callback(partial(self._ended, client, request))

    def _ended(self, client: str, request: GenerationRequest, task: asyncio.Task[None]) -> None:
        del self._running[request.request_id]
        if self._left and task.cancelled():  # maybe before it began
            self._say_gone(client, request)

    @register()
    async def poll(
        self, client: str, incarnation: str, after: int
    ) -> tuple[str, int, tuple[Delivery, ...]]:
        """Wait for chunks past the cursor and return (incarnation, new cursor, chunks).

        A call for another incarnation returns at once, since no more of its chunks will arrive. No
        call waits longer than `POLL_S`, so that calls of clients that have ended do not accumulate.
        """
        if incarnation != self._incarnation:
            return self._incarnation, 0, ()
        try:
            async with timeout(POLL_S):
                return self._incarnation, *await self._feed(client).read(after)
        except TimeoutError:
            return self._incarnation, after, ()

    @register()
    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; their streams end with the tokens sampled so far."""
        for request_id in request_ids:
            await self._engine.abort(request_id)

    @register(retries=-1)
    async def suspend(self) -> None:
        """Suspend the engine, and return once it samples no token."""
        async with self._command("suspend"):
            await self._suspend()

    @register(retries=-1)
    async def release(self) -> int:
        """Free the memory that only generation needs, until `serve`; return its size in bytes."""
        async with self._command("release"):
            await self._suspend()  # a restarted process is not suspended
            return await self._engine.release()

    @register(retries=-1)
    async def leave(self) -> int:
        """End requests in flight with WorkerLeftError, after the tokens sampled so far.

        The worker accepts no request until `serve`, frees the memory that only generation needs and
        returns its size in bytes.
        """
        async with self._command("leave"):
            await self._suspend()
            self._left, self._told = True, set()
            tasks = tuple(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return await self._engine.release()

    @register()
    async def prefetch(self, version: int) -> None:
        """Start to read a version during generation, unless the trainer will send it."""
        if version > self._engine.version and self._prefetches:
            self._pulls.begin(version)

    @register(retries=-1)
    async def update(self, version: int) -> PullStats:
        """Swap to a version of the weight store; do nothing if the engine already holds it.

        The result has the reads that were repeated since the last call, for `serve` too.
        """
        async with self._command(f"update to version {version}"):
            return replace(await self._hold(version), retried=self._pulls.retried())

    @register(retries=-1)
    async def serve(self, version: int) -> bool:
        """Start or continue to serve a version, after swapping to it if the engine does not hold
        it.

        Return whether this process began to serve with this call.
        """
        async with self._command(f"serve version {version}"):
            await self._hold(version)
            await self._engine.resume()
            self._suspended = False
            freeze_heap()
            begins, self._serves, self._left = not self._serves, True, False
            return begins

    async def _suspend(self) -> None:
        self._suspended = True
        await self._engine.suspend()

    async def _hold(self, version: int) -> PullStats:
        if version == self._engine.version:
            return PullStats()
        await self._suspend()
        asked = time.monotonic()
        if await self._engine.receive(version):
            seconds = time.monotonic() - asked
            return PullStats(seconds, seconds)
        tensors, pull = await self._pulls.take(version)
        await self._loader.load(version, tensors)
        return pull

    def _say_gone(self, client: str, request: GenerationRequest) -> None:
        if self._told is not None:
            self._told.add(client)
        said = f"worker {self.placement.worker} has left; others may serve in its place"
        failure = EngineFailure(request.request_id, WorkerLeftError(said))
        self._feed(client).publish(failure)

    @register()
    async def version(self) -> int:
        """Return the policy version that is served."""
        return self._engine.version

    @register(retries=-1)
    async def state(self) -> tuple[int, bool] | None:
        """Return the version that is served, and whether the engine is suspended.

        Return None from a process that serves no request yet, or was told to serve none.
        """
        serves = self._serves and not self._left
        return (self._engine.version, self._suspended) if serves else None

    @asynccontextmanager
    async def _command(self, name: str) -> AsyncIterator[None]:
        """Run one command at a time; a command that finds the engine failed ends the process."""
        with waiting(name):
            async with self._commands:
                try:
                    yield
                except EngineError:
                    self._end_if_failed()
                    raise

    @register()
    async def end(self) -> None:
        """Close the engine of a worker whose process goes on without it."""
        await self._engine.close()

    def _end_if_failed(self) -> None:
        if self._engine.failed:
            end_process(f"the engine of worker {self.placement.worker} has failed for good")

    def _feed(self, client: str) -> ReplayableQueue[Delivery]:
        return self._feeds.setdefault(client, ReplayableQueue(f"{self.placement.worker}/{client}"))

    async def _generate(self, client: str, request: GenerationRequest) -> None:
        feed = self._feed(client)
        try:
            with waiting(f"generation of {request.request_id}"):
                async for chunk in self._engine.generate(request):
                    feed.publish(chunk)
        except EngineError as error:
            feed.publish(EngineFailure(request.request_id, error))
            self._end_if_failed()
        except Exception as error:  # noqa: BLE001  the client must be told of any end
            failed = EngineError(f"{type(error).__name__}: {' '.join(str(error).split())}")
            feed.publish(EngineFailure(request.request_id, failed))
