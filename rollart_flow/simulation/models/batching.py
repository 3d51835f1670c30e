"""Continuous batching on a roofline, as a fluid between events: no loop, no clock of its own.

All running sequences draw one token per pass (Orca; vLLM), a pass over new prompts included, and
prompts go first. Prefixes of trajectories that are in their environment stay cached while there is
room (least recently used leaves first); what does not fit any more is preempted and computed again.
Between two events the number of passes follows from elapsed time in closed form, so that the cost
of a simulation does not depend on how many tokens are drawn. The invariants: tokens are neither
lost nor drawn twice; the KV caches of what runs never exceed the device's memory.
"""

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from rollart_flow.simulation.hardware import EngineModel

MAX_SEQUENCES = 256
"""vLLM's `max_num_seqs`."""
PREFILL_TOKENS = 16_384
"""Most new tokens of one prefill pass, unless a single sequence has more."""


@dataclass(eq=False, slots=True)
class Job:
    """One generation on one worker."""

    key: str
    """Whose prefix is cached."""
    context: int
    """Tokens whose KV it needs before it draws: the prompt, and what it drew before."""
    left: int
    """Tokens still to draw."""
    prefilled: bool = False
    """Its KV comes from elsewhere, complete."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(policy version, tokens), in the order in which they were drawn."""
    joined: float = 0.0
    """Passes that the batch had made when it began to draw."""
    sequence: int = 0
    """Order of arrival."""
    running: bool = False
    done: bool = False


class ContinuousBatch:
    """The sequences of one inference worker.

    Args:
        model: how long passes take.
        version: policy version that it serves.
        stored: prefixes are kept in a store beside the devices and never leave it.
    """

    def __init__(self, model: EngineModel, *, version: int = 0, stored: bool = False) -> None:
        self.model = model
        self.version = version
        self._stored = stored
        self.capacity = model.kv_tokens
        self.slowdown = 1.0
        self.suspended = False
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.prefilled_tokens = 0
        self.recomputed_tokens = 0
        self.drawn_tokens = 0
        self._now = 0.0
        self._passes = 0.0
        self._base = 0.0
        """Sum over what draws of its context less the passes at which it joined."""
        self._prompts = 0
        """Tokens of the prompts in the prefill pass."""
        self._waiting: deque[Job] = deque()
        self._prefill: list[Job] = []
        self._prefill_end = 0.0
        self._heap: list[tuple[float, int, Job]] = []
        self._running: dict[int, Job] = {}
        self._cache: OrderedDict[str, int] = OrderedDict()
        self._cached = 0
        self._submitted = 0
        self._line: tuple[float, float] | None = None

    def __len__(self) -> int:
        """Sequences that are here."""
        return len(self._waiting) + len(self._prefill) + len(self._running)

    @property
    def busy_s(self) -> float:
        """Seconds of passes so far."""
        return self.prefill_s + self.decode_s

    @property
    def kv(self) -> float:
        """Tokens in the KV caches of what runs."""
        return self._base + self._passes * len(self._running) + self._prompts

    def submit(self, now: float, job: Job) -> list[Job]:
        """Take a job; those that something happened to until now, as `advance` gives them."""
        changed = self.advance(now)
        self._submitted += 1
        job.sequence = self._submitted
        self._waiting.append(job)
        self._start_prefill()
        return changed

    def remove(self, now: float, job: Job) -> list[Job]:
        """Take a job out, with the tokens it has; those that something happened to until now."""
        changed = self.advance(now)
        if job.done:
            return changed
        if job.running:
            self._leave(job)
        elif job in self._prefill:
            self._prefill.remove(job)
            self._prompts -= job.context
        else:
            self._waiting.remove(job)
        job.done = True
        self._start_prefill()
        return changed

    def pace(self, now: float, slowdown: float) -> list[Job]:
        """Passes that begin from now on take so many times as long; as `advance` otherwise."""
        changed = self.advance(now)
        self.slowdown = slowdown
        self._line = None
        return changed

    def suspend(self, now: float) -> list[Job]:
        """Stop; those that something happened to until now."""
        changed = self.advance(now)
        self.suspended = True
        return changed

    def resume(self, now: float, version: int) -> None:
        """Go on under a version; KV caches are rebuilt (ROLLART section 6.2, step five)."""
        self.advance(now)
        for job in self._running.values():
            self._settle(job)
        pending = [*self._running.values(), *self._prefill]
        pending.sort(key=lambda job: job.sequence)
        for job in pending:
            job.running = job.prefilled = False
            if job.spans:
                self.recomputed_tokens += job.context
        self._waiting.extendleft(reversed(pending))
        self._running.clear()
        self._heap.clear()
        self._prefill.clear()
        self._cache.clear()
        self._cached = 0
        self._base = 0.0
        self._prompts = 0
        self._line = None
        self.version = version
        self.suspended = False
        self._start_prefill()

    def forget(self, key: str) -> None:
        """Drop a cached prefix."""
        self._cached -= self._cache.pop(key, 0)

    def next_event(self) -> float | None:
        """When something happens next; None where nothing does."""
        if self.suspended:
            return None
        if self._prefill:
            return self._prefill_end
        if not self._running:
            return None
        return self._now + self._seconds(max(0.0, self._passes_to_event()))

    def advance(self, now: float) -> list[Job]:
        """Move on; jobs that drew their first token here, and those that are done."""
        changed: list[Job] = []
        if self.suspended:
            self._now = now
            return changed
        while (event := self.next_event()) is not None and event <= now:
            if self._prefill:
                self._end_prefill(changed)
            else:
                self._end_passes(event, changed)
            self._start_prefill()
        self._partly(now)
        return changed

    def _partly(self, now: float) -> None:
        """Passes between two events."""
        elapsed = now - self._now
        if elapsed > 0 and self._running and not self._prefill:
            a, b = self._decode_line()
            slope = b * len(self._running)
            root = math.sqrt(a * a + 2 * slope * elapsed)
            passes = min(2 * elapsed / (a + root), max(0.0, self._passes_to_event()))
            self._passes += passes
            self.decode_s += elapsed
        elif elapsed > 0 and self._prefill:
            self.prefill_s += elapsed
        self._now = now

    def _seconds(self, passes: float) -> float:
        a, b = self._decode_line()
        return passes * (a + b * len(self._running) * passes / 2)

    def _decode_line(self) -> tuple[float, float]:
        """(seconds of the next pass, seconds that each token more in the caches adds)."""
        if self._line is None:
            a, b = self.model.decode_line(len(self._running), self.kv)
            self._line = a * self.slowdown, b * self.slowdown
        a, b = self._line
        return a + b * self.kv, b

    def _passes_to_event(self) -> float:
        room = (self.capacity - self.kv) / len(self._running)
        return min(self._heap[0][0] - self._passes, room)

    def _end_passes(self, event: float, changed: list[Job]) -> None:
        """Draw up to the event, then finish what is done, or make room."""
        finish = self._heap[0][0]
        passes = self._passes_to_event()
        full = passes < finish - self._passes
        self.decode_s += event - self._now
        self._now = event
        if full:
            self._passes += max(0.0, passes)
            self._preempt()
            return
        self._passes = max(self._passes, finish)
        self._finish(changed)

    def _finish(self, changed: list[Job]) -> None:
        """Let go of what has drawn everything."""
        while self._heap and self._heap[0][0] <= self._passes + 1e-9:
            job = self._heap[0][2]
            self._leave(job)
            job.done = True
            self._keep(job)
            changed.append(job)

    def _preempt(self) -> None:
        """Send the newest sequence back to the queue; its KV is computed again."""
        job = max(self._running.values(), key=lambda job: job.sequence)
        self._leave(job)
        self.recomputed_tokens += job.context
        self._waiting.appendleft(job)

    def _leave(self, job: Job) -> None:
        """A running job stops drawing here."""
        self._settle(job)
        del self._running[job.sequence]
        entry = next(e for e in self._heap if e[2] is job)
        if entry is self._heap[0]:
            heapq.heappop(self._heap)
        else:
            self._heap.remove(entry)
            heapq.heapify(self._heap)
        self._base = self._base - (job.context - job.joined) if self._running else 0.0
        self._line = None
        job.running = job.prefilled = False

    def _settle(self, job: Job) -> None:
        """Write down what a running job drew since it joined."""
        drawn = min(round(self._passes - job.joined), job.left)
        job.joined += drawn
        job.left -= drawn
        job.context += drawn
        self.drawn_tokens += drawn
        if drawn:
            job.spans.append((self.version, drawn))

    def _keep(self, job: Job) -> None:
        """Cache the prefix of a trajectory whose action is complete."""
        self.forget(job.key)
        self._cache[job.key] = job.context
        self._cached += job.context
        self._make_room()

    def _make_room(self) -> None:
        while not self._stored and self._cache and self.kv + self._cached > self.capacity:
            _, freed = self._cache.popitem(last=False)
            self._cached -= freed

    def _start_prefill(self) -> None:
        """Begin a pass over the prompts that wait and fit; prefill goes before decode."""
        if self.suspended or self._prefill or not self._waiting:
            return
        new = 0
        seen = 0.0
        while self._waiting and len(self._running) + len(self._prefill) < MAX_SEQUENCES:
            job = self._waiting[0]
            cached = job.context if job.prefilled else self._cache.get(job.key, 0)
            cached = min(cached, job.context - (0 if job.prefilled else 1))
            fresh = job.context - cached
            drawing = len(self._running) + len(self._prefill)
            if drawing and self.kv + job.context + drawing + 1 > self.capacity:
                break
            if self._prefill and new + fresh > PREFILL_TOKENS:
                break
            self._waiting.popleft()
            self.forget(job.key)
            self._prefill.append(job)
            self._prompts += job.context
            new += fresh
            seen += fresh * (cached + fresh / 2)
        if not self._prefill:
            return
        self._make_room()
        if new:
            beside = len(self._running), self.kv - self._prompts
            seconds = self.model.prefill_s(new, seen / new, *beside)
        else:
            a, b = self.model.decode_line(len(self._running) + len(self._prefill), self.kv)
            seconds = a + b * self.kv
        self._prefill_end = self._now + self.slowdown * seconds
        self.prefilled_tokens += new

    def _end_prefill(self, changed: list[Job]) -> None:
        """The prompts are computed and give a first token; what ran drew one beside them."""
        self.prefill_s += self._prefill_end - self._now
        self._now = self._prefill_end
        self._passes += 1
        for job in self._prefill:
            if not job.spans:
                changed.append(job)
            job.running = True
            job.joined = self._passes - 1
            self._running[job.sequence] = job
            self._base += job.context - job.joined
            heapq.heappush(self._heap, (job.joined + job.left, job.sequence, job))
            self._settle(job)
        self._prefill.clear()
        self._prompts = 0
        self._line = None
        self._finish(changed)
