"""Meter: what an LLMProxy sees of its generations, made into observations for the profiler.

A moment at the first chunk and one at the end; no work per token. The invariant: only generations
are observed that one worker served from beginning to end and that no exchange of weights paused.
"""

import asyncio
from collections.abc import Callable, Sequence

from rollart_flow.control.profiler import Profiler, Seen
from rollart_flow.types import Chunk, FinishReason, Generation, GenerationRequest


class Timing:
    """When the parts of one generation came."""

    __slots__ = ("begun_at", "first_at", "first_ids", "newest")

    def __init__(self, newest: int) -> None:
        self.newest = newest
        """Newest version that was seen before it began."""
        self.begun_at = asyncio.get_running_loop().time()
        self.first_at = self.begun_at
        self.first_ids = 0

    def first(self, chunk: Chunk) -> None:
        """The first chunk that has tokens is here."""
        self.first_at = asyncio.get_running_loop().time()
        self.first_ids = len(chunk.token_ids)


class Meter:
    """Observes the generations of one proxy.

    Args:
        profiler: told of each.
        tokens: how many tokens some ids are; a simulation's ids stand for many each.
    """

    def __init__(self, profiler: Profiler, tokens: Callable[[Sequence[int]], int] = len) -> None:
        self.profiler = profiler
        self._tokens = tokens
        self._newest = 0
        self._cached: dict[str, tuple[str, int]] = {}
        """Worker and length of the prefix that it holds, by trajectory."""

    def begin(self) -> Timing:
        """A generation is about to be asked for."""
        return Timing(self._newest)

    def end(self, timing: Timing, request: GenerationRequest, generation: Generation) -> None:
        """It has ended, after one request to one worker."""
        prompt, ids = self._tokens(request.prompt_ids), generation.token_ids
        worker, cached = self._cached.get(request.trajectory_id, ("", 0))
        if request.trajectory_id:
            held = generation.worker, prompt + self._tokens(ids)
            self._cached[request.trajectory_id] = held
        if not ids or generation.finish_reason is FinishReason.ABORT:
            return
        self._newest = max(self._newest, generation.versions[-1])
        if generation.versions[0] != generation.versions[-1] or self._newest != timing.newest:
            return
        now = asyncio.get_running_loop().time()
        self.profiler.observe(
            Seen(
                request.domain,
                generation.hardware,
                prompt - cached if worker == generation.worker else prompt,
                timing.first_at - timing.begun_at,
                self._tokens(ids[timing.first_ids :]),
                now - timing.first_at,
            )
        )

    def release(self, trajectory_id: str) -> None:
        """A trajectory is over."""
        self._cached.pop(trajectory_id, None)
