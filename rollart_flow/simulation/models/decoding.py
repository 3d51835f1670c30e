"""The decode batch of a simulated worker, as a fluid between events.

Every running sequence samples one token per pass. The time of a pass is a line over the tokens in
the KV caches, so that the number of passes follows from elapsed time in closed form and the cost
of a simulation does not depend on how many tokens are sampled.
"""

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, field

from rollart_flow.simulation.hardware import EngineModel


@dataclass(eq=False, slots=True)
class Job:
    """One generation on one worker."""

    key: str
    """Name of its prefix in the cache."""
    context: int
    """Tokens whose KV it needs before it samples: the prompt, and earlier sampled tokens."""
    left: int
    """Tokens still to sample."""
    prefilled: bool = False
    """Whether its KV cache comes from another worker, complete."""
    cached_share: float = 1.0
    """Share of the prefix in the cache that it can use."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(policy version, tokens), in the order in which they were sampled."""
    joined: float = 0.0
    """Passes that the batch had made when this job joined it."""
    sequence: int = 0
    """Order of arrival."""
    running: bool = False
    done: bool = False


class PrefixCache:
    """Tokens of the cached prefixes, the least recently used first; never evicted if `stored`."""

    def __init__(self, *, stored: bool) -> None:
        self._stored = stored
        self._tokens: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    def get(self, key: str) -> int:
        return self._tokens.get(key, 0)

    def add(self, key: str, tokens: int) -> None:
        """Cache a prefix in place of an older one with this key."""
        self.drop(key)
        self._tokens[key] = tokens
        self._total += tokens

    def drop(self, key: str) -> None:
        self._total -= self._tokens.pop(key, 0)

    def evict(self, used: float, capacity: int) -> None:
        """Drop prefixes until the rest fits beside `used` tokens into `capacity` tokens."""
        while not self._stored and self._tokens and used + self._total > capacity:
            _, freed = self._tokens.popitem(last=False)
            self._total -= freed

    def clear(self) -> None:
        self._tokens.clear()
        self._total = 0


class SimulatedDecodeBatch:
    """The sequences that run under one policy version, and how far they are."""

    def __init__(self, model: EngineModel, version: int) -> None:
        self.model = model
        self.version = version
        self.capacity = model.kv_tokens
        self.sampled_tokens = 0
        self.prompts = 0
        """Tokens of the prompts in the prefill pass, whose KV caches grow beside these."""
        self._slowdown = 1.0
        self._passes = 0.0
        self._base = 0.0
        """Sum over the running jobs of the context minus the passes at which each joined."""
        self.jobs: dict[int, Job] = {}
        """Running jobs by order of arrival."""
        self._heap: list[tuple[float, int, Job]] = []
        """(passes at which the job ends, order of arrival, job)."""
        self._line: tuple[float, float] | None = None

    @property
    def kv(self) -> float:
        """Tokens in the KV caches of the running jobs and of the prompts."""
        return self._base + self._passes * len(self.jobs) + self.prompts

    def set_slowdown(self, slowdown: float) -> None:
        self._slowdown = slowdown
        self._line = None

    def seconds_to_event(self) -> float:
        """Seconds until a job ends or the KV caches are full [s]."""
        passes = max(0.0, self._passes_to_event())
        a, b = self._decode_line()
        return passes * (a + b * len(self.jobs) * passes / 2)

    def run_to_event(self) -> bool:
        """Make the passes up to the next event; whether KV caches are full before a job ends."""
        finish = self._heap[0][0]
        passes = self._passes_to_event()
        full = passes < finish - self._passes
        self._passes = self._passes + max(0.0, passes) if full else max(self._passes, finish)
        return full

    def run(self, elapsed_s: float) -> None:
        """Make the passes of some time that ends before the next event."""
        a, b = self._decode_line()
        slope = b * len(self.jobs)
        root = math.sqrt(a * a + 2 * slope * elapsed_s)
        self._passes += min(2 * elapsed_s / (a + root), max(0.0, self._passes_to_event()))

    def _decode_line(self) -> tuple[float, float]:
        """(seconds of the next pass, seconds that each further token in the caches adds)."""
        if self._line is None:
            a, b = self.model.decode_line(len(self.jobs), self.kv)
            self._line = a * self._slowdown, b * self._slowdown
        a, b = self._line
        return a + b * self.kv, b

    def _passes_to_event(self) -> float:
        room = (self.capacity - self.kv) / len(self.jobs)
        return min(self._heap[0][0] - self._passes, room)

    def make_pass(self) -> None:
        """Sample one token per running job, in a pass that also computes prompts."""
        self._passes += 1

    def join(self, job: Job) -> None:
        """Add a job whose prompt the latest pass computed, and which sampled a token in it."""
        job.running = True
        job.joined = self._passes - 1
        self.jobs[job.sequence] = job
        self._base += job.context - job.joined
        heapq.heappush(self._heap, (job.joined + job.left, job.sequence, job))
        self._settle(job)
        self._line = None

    def next_done(self) -> Job | None:
        """Remove and return the next job that has sampled all its tokens; None if none has."""
        if not self._heap or self._heap[0][0] > self._passes + 1e-9:
            return None
        job = self._heap[0][2]
        self.leave(job)
        return job

    def newest(self) -> Job:
        return max(self.jobs.values(), key=lambda job: job.sequence)

    def leave(self, job: Job) -> None:
        """Remove a running job, with the tokens that it has sampled."""
        self._settle(job)
        del self.jobs[job.sequence]
        entry = next(e for e in self._heap if e[2] is job)
        if entry is self._heap[0]:
            heapq.heappop(self._heap)
        else:
            self._heap.remove(entry)
            heapq.heapify(self._heap)
        self._base = self._base - (job.context - job.joined) if self.jobs else 0.0
        self._line = None
        job.running = job.prefilled = False

    def _settle(self, job: Job) -> None:
        """Book on the job the tokens that it sampled since it joined."""
        sampled = min(round(self._passes - job.joined), job.left)
        job.joined += sampled
        job.left -= sampled
        job.context += sampled
        self.sampled_tokens += sampled
        if sampled:
            job.spans.append((self.version, sampled))

    def clear(self) -> list[Job]:
        """Remove all running jobs, with the tokens that they have sampled."""
        jobs = list(self.jobs.values())
        for job in jobs:
            self._settle(job)
        self.jobs.clear()
        self._heap.clear()
        self._base = 0.0
        self._line = None
        return jobs
