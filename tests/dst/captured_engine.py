"""An engine of the gateway's fuzzer: it waits, fails, is suspended and updated, by chance."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

from rollart_flow.control.loop.waits import Signal
from rollart_flow.errors import RequestRefusedError, WorkerLeftError
from rollart_flow.types import Chunk, FinishReason, GenerationRequest
from tests.gateway.core.rig import CODEC, STOP, called

_LONGEST_CHUNK = 40


class ChanceEngine:
    """One worker, whose tokens have logprobs that never come twice.

    Args:
        name: name of the worker.
        chance: source of its randomness.
        faults: probability that a request meets a fault.
        sampled: token and version by logprob, of all workers.
    """

    hardware, stands_for = "cpu", frozenset({"cpu"})

    def __init__(
        self,
        name: str,
        chance: random.Random,
        faults: float,
        sampled: dict[float, tuple[int, int]],
    ) -> None:
        self.worker = name
        self.version = 0
        self.requests: list[GenerationRequest] = []
        self.on_left: Callable[[], None] = lambda: None
        self._chance = chance
        self._faults = faults
        self._sampled = sampled
        self._suspended = False
        self._changed = Signal()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        ids = (*CODEC.encode(self._says()), STOP)[: request.sampling.max_tokens]
        fault = self._chance.choice(("refused", "left", "abort"))
        faulty_at = self._chance.randrange(len(ids)) if self._chance.random() < self._faults else -1
        at = 0
        while at < len(ids):
            await asyncio.sleep(self._chance.choice((0, 0, 0.01, 0.5)))
            while self._suspended:
                await self._changed.wait()
            size = self._chance.randint(1, _LONGEST_CHUNK)
            end = min(at + size, len(ids))
            if at <= faulty_at < end:
                end = faulty_at
            part = ids[at:end]
            done = None
            if end == len(ids):
                done = FinishReason.STOP if part[-1] == STOP else FinishReason.LENGTH
            elif end == faulty_at and fault == "abort":
                done = FinishReason.ABORT
            yield self._chunk(request, at, part, done)
            if done is not None:
                return
            at = end
            if at == faulty_at and fault == "refused":
                raise RequestRefusedError("the engine refused the request")
            if at == faulty_at:
                self.on_left()
                raise WorkerLeftError(f"{self.worker} was told to leave")

    async def abort(self, request_id: str) -> None: ...

    async def update(self, seconds: float) -> None:
        """Sample nothing for a while, then with the next version."""
        self._suspended = True
        await asyncio.sleep(seconds)
        self.version += 1
        self._suspended = False
        self._changed.notify()

    def _chunk(
        self, request: GenerationRequest, at: int, part: tuple[int, ...], done: FinishReason | None
    ) -> Chunk:
        known = len(self._sampled)
        logprobs = tuple(-1.0 - known - n for n in range(len(part)))
        for logprob, token in zip(logprobs, part, strict=True):
            self._sampled[logprob] = token, self.version
        versions = (self.version,) * len(part)
        return Chunk(request.request_id, at, part, logprobs, versions, done)

    def _says(self) -> str:
        """What the policy writes; few things, so that answers are often the same."""
        chance = self._chance
        call = called(("add", {"a": chance.randrange(2), "b": "it's"}))
        texts = ("ok", "", "yes\n", "no. STOP and more", f"n{chance.randrange(1000)}", "x" * 90)
        thought = chance.choice(("", "", "<think>hm</think>", "<think> let me\nsee</think>"))
        says = (
            chance.choice(texts),
            call,
            call + call,
            f"I add. {call}",
            "<tool_call>{broken</tool_call>",
            "A summary of this conversation: numbers were added, one after the other.",
        )
        return thought + chance.choice(says)
