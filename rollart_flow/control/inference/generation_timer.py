"""Meter: what an LLMProxy sees of its generations, made into observations for the profiler.

Three moments of each generation; no work per token. The invariant: only generations
are observed that one worker served from beginning to end and that no exchange of weights paused.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from rollart_flow.control.inference.affinity_stats import GenerationSpan, Seen
from rollart_flow.control.inference.profiler import Profiler
from rollart_flow.types import Chunk, FinishReason, Generation, GenerationRequest


class GenerationTiming:
    """When the parts of one generation came, and what its worker had prefilled by then."""

    __slots__ = ("_meter", "_request", "first_ids", "marks", "new_tokens", "newest", "worker")

    def __init__(self, meter: "GenerationTimer", request: GenerationRequest) -> None:
        self._meter = meter
        self._request = request
        self.newest = meter.newest
        """Newest version that was seen before it began."""
        self.worker = ""
        self.new_tokens = 0
        self.first_ids = 0
        self.marks: list[tuple[float, int]] = []
        """(moment, tokens that its worker had prefilled): sent, first chunk, end."""

    def sent(self, worker: str) -> None:
        """It goes to a worker."""
        self.worker = worker
        self.new_tokens = self._meter.new_tokens(self._request, worker)
        self.mark()

    def first(self, chunk: Chunk) -> None:
        """The first chunk that has tokens is here."""
        self._meter.prefilled[self.worker] += self.new_tokens
        self.first_ids = len(chunk.token_ids)
        self.mark()

    def mark(self) -> None:
        """Note this moment."""
        now = asyncio.get_running_loop().time()
        self.marks.append((now, self._meter.prefilled[self.worker]))


class GenerationTimer:
    """Observes the generations of one proxy.

    Args:
        profiler: told of each.
        tokens: how many tokens some ids are; a simulation's ids stand for many each.
    """

    def __init__(self, profiler: Profiler, tokens: Callable[[Sequence[int]], int] = len) -> None:
        self.profiler = profiler
        self.newest = 0
        """Newest version that was seen."""
        self.prefilled: Counter[str] = Counter()
        """New tokens of prompts that have been prefilled, by worker."""
        self._tokens = tokens
        self._cached: dict[str, tuple[str, int]] = {}
        """Worker and length of the prefix that it holds, by trajectory."""

    def begin(self, request: GenerationRequest) -> GenerationTiming:
        """A generation is about to be asked for."""
        return GenerationTiming(self, request)

    def new_tokens(self, request: GenerationRequest, worker: str) -> int:
        """Tokens of a prompt that are not cached on a worker."""
        holder, cached = self._cached.get(request.trajectory_id, ("", 0))
        return self._tokens(request.prompt_ids) - (cached if holder == worker else 0)

    def end(
        self, timing: GenerationTiming, request: GenerationRequest, generation: Generation
    ) -> None:
        """It has ended, after one request to one worker."""
        ids, worker = generation.token_ids, generation.worker
        if not ids:
            return
        if request.trajectory_id:
            chain = self._tokens(request.prompt_ids) + self._tokens(ids)
            self._cached[request.trajectory_id] = worker, chain
        self.newest = max(self.newest, generation.versions[-1])
        exchanged = generation.versions[0] != self.newest or self.newest != timing.newest
        if exchanged or generation.finish_reason is FinishReason.ABORT:
            return
        timing.mark()
        first = self._tokens(ids[: timing.first_ids])
        rest = self._tokens(ids[timing.first_ids :])
        parts = zip((first, rest), pairwise(timing.marks), strict=True)
        spans = tuple(GenerationSpan(n, q - p, t - s) for n, ((s, p), (t, q)) in parts if n)
        self.profiler.observe(
            Seen(request.domain, generation.hardware, timing.new_tokens, first + rest, spans)
        )

    def release(self, trajectory_id: str) -> None:
        """A trajectory is over."""
        self._cached.pop(trajectory_id, None)
