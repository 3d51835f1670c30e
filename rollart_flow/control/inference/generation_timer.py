"""GenerationTimer: turns the generations of an LLMProxy into observations for the profiler.

The timer records three moments of each generation and does no work per token. The invariant: a
generation is observed only if one worker served it entirely and no weight update paused it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from rollart_flow.control.inference.affinity_stats import GenerationSpan, Seen
from rollart_flow.control.inference.profiler import Profiler
from rollart_flow.types import Chunk, FinishReason, Generation, GenerationRequest


class GenerationTiming:
    """Timestamps of one generation, with the tokens that its worker had prefilled by then."""

    __slots__ = ("_request", "_timer", "first_ids", "marks", "new_tokens", "newest", "worker")

    def __init__(self, timer: "GenerationTimer", request: GenerationRequest) -> None:
        self._timer = timer
        self._request = request
        self.newest = timer.newest
        """Newest policy version that was observed before the generation began."""
        self.worker = ""
        self.new_tokens = 0
        self.first_ids = 0
        self.marks: list[tuple[float, int]] = []
        """(time, prefilled tokens of its worker) at the request, the first chunk and the end."""

    def sent(self, worker: str) -> None:
        """Record that the request is sent to a worker."""
        self.worker = worker
        self.new_tokens = self._timer.new_tokens(self._request, worker)
        self.mark()

    def first(self, chunk: Chunk) -> None:
        """Record the first chunk that has tokens."""
        self._timer.prefilled[self.worker] += self.new_tokens
        self.first_ids = len(chunk.token_ids)
        self.mark()

    def mark(self) -> None:
        """Record the current time."""
        now = asyncio.get_running_loop().time()
        self.marks.append((now, self._timer.prefilled[self.worker]))


class GenerationTimer:
    """Observes the generations of one proxy.

    Args:
        profiler: receives the observations.
        tokens: number of tokens for a sequence of ids; in a simulation, one id stands for many
            tokens.
    """

    def __init__(self, profiler: Profiler, tokens: Callable[[Sequence[int]], int] = len) -> None:
        self.profiler = profiler
        self.newest = 0
        """Newest policy version that was observed."""
        self.prefilled: Counter[str] = Counter()
        """Number of new prompt tokens prefilled so far, by worker."""
        self._tokens = tokens
        self._cached: dict[str, tuple[str, int]] = {}
        """Worker and length of its cached prefix, by trajectory."""

    def begin(self, request: GenerationRequest) -> GenerationTiming:
        """Start the timing of a generation that is about to be requested."""
        return GenerationTiming(self, request)

    def new_tokens(self, request: GenerationRequest, worker: str) -> int:
        """Return the number of prompt tokens that are not cached on a worker."""
        holder, cached = self._cached.get(request.trajectory_id, ("", 0))
        return self._tokens(request.prompt_ids) - (cached if holder == worker else 0)

    def end(
        self, timing: GenerationTiming, request: GenerationRequest, generation: Generation
    ) -> None:
        """Observe a generation that ended after one request to one worker."""
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
        """Forget a trajectory that has ended."""
        self._cached.pop(trajectory_id, None)
