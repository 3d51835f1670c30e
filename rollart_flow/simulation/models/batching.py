"""Continuous batching on a roofline: prompts first, then one token per sequence and pass.

All running sequences sample one token per pass (Orca; vLLM), a pass over new prompts included.
Prefixes of trajectories that are in their environment stay cached while there is room (the least
recently used is evicted first); a sequence for which there is no more room is preempted and
computed again. The model has neither a loop nor a clock: callers pass the time. The invariants:
tokens are neither lost nor sampled twice; the KV caches of the running sequences never exceed the
device's memory.
"""

from collections import deque

from rollart_flow.simulation.hardware import EngineModel
from rollart_flow.simulation.models.decoding import Job, PrefixCache, SimulatedDecodeBatch

PREFILL_TOKENS = 16_384
"""Most new tokens of one prefill pass, unless a single sequence has more."""


class ContinuousBatch:
    """The sequences of one inference worker; prefixes that are `stored` are never evicted."""

    def __init__(self, model: EngineModel, *, version: int = 0, stored: bool = False) -> None:
        self.model = model
        self.slowdown = 1.0
        self.suspended = False
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.prefilled_tokens = 0
        self.recomputed_tokens = 0
        self._now = 0.0
        self._waiting: deque[Job] = deque()
        self._prefill: list[Job] = []
        self._prefill_end = 0.0
        self._decode = SimulatedDecodeBatch(model, version)
        self._cache = PrefixCache(stored=stored)
        self._submitted = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._prefill) + len(self._decode.jobs)

    @property
    def version(self) -> int:
        return self._decode.version

    @property
    def capacity(self) -> int:
        """Tokens of KV cache that the worker has room for."""
        return self._decode.capacity

    @property
    def sampled_tokens(self) -> int:
        """Tokens that were sampled and counted for their jobs so far."""
        return self._decode.sampled_tokens

    @property
    def busy_s(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def kv(self) -> float:
        """Tokens in the KV caches of the running sequences."""
        return self._decode.kv

    def submit(self, now: float, job: Job) -> list[Job]:
        """Add a job; the jobs that changed until now, as `advance` returns them."""
        changed = self.advance(now)
        self._submitted += 1
        job.sequence = self._submitted
        self._waiting.append(job)
        self._start_prefill()
        return changed

    def remove(self, now: float, job: Job) -> list[Job]:
        """Remove a job, with the tokens it has; the jobs that changed until now."""
        changed = self.advance(now)
        if job.done:
            return changed
        if job.running:
            self._decode.leave(job)
        elif job in self._prefill:
            self._prefill.remove(job)
            self._decode.prompts -= job.context
        else:
            self._waiting.remove(job)
        job.done = True
        self._start_prefill()
        return changed

    def pace(self, now: float, slowdown: float) -> list[Job]:
        """Let passes from now on take so many times as long; the jobs that changed until now."""
        changed = self.advance(now)
        self.slowdown = slowdown
        self._decode.set_slowdown(slowdown)
        return changed

    def suspend(self, now: float) -> list[Job]:
        changed = self.advance(now)
        self.suspended = True
        return changed

    def resume(self, now: float, version: int) -> None:
        """Continue under a version; KV caches are rebuilt (ROLLART section 6.2, step five)."""
        self.advance(now)
        pending = [*self._decode.clear(), *self._prefill]
        pending.sort(key=lambda job: job.sequence)
        for job in pending:
            job.running = job.prefilled = False
            if job.spans:
                self.recomputed_tokens += job.context
        self._waiting.extendleft(reversed(pending))
        self._prefill.clear()
        self._cache.clear()
        self._decode.prompts = 0
        self._decode.version = version
        self.suspended = False
        self._start_prefill()

    def next_event(self) -> float | None:
        """Time of the next event; None if the worker is idle or suspended."""
        if self._prefill and not self.suspended:
            return self._prefill_end
        if self.suspended or not self._decode.jobs:
            return None
        return self._now + self._decode.seconds_to_event()

    def advance(self, now: float) -> list[Job]:
        """Move on; the jobs that sampled their first token here, and those that are done."""
        changed: list[Job] = []
        while (event := self.next_event()) is not None and event <= now:
            if self._prefill:
                self._end_prefill(changed)
            else:
                self._end_passes(event, changed)
            self._start_prefill()
        elapsed = 0.0 if self.suspended else now - self._now
        if elapsed > 0 and self._prefill:
            self.prefill_s += elapsed
        elif elapsed > 0 and self._decode.jobs:
            self._decode.run(elapsed)
            self.decode_s += elapsed
        self._now = now
        return changed

    def _end_passes(self, event: float, changed: list[Job]) -> None:
        """Sample up to the event, then finish the jobs that are done, or make room."""
        full = self._decode.run_to_event()
        self.decode_s += event - self._now
        self._now = event
        if full:  # the newest sequence goes back to the queue; its KV is computed again
            job = self._decode.newest()
            self._decode.leave(job)
            self.recomputed_tokens += job.context
            self._waiting.appendleft(job)
        else:
            self._finish(changed)

    def _finish(self, changed: list[Job]) -> None:
        """Remove the jobs that have sampled all their tokens, and cache their prefixes."""
        while (job := self._decode.next_done()) is not None:
            job.done = True
            self._cache.add(job.key, job.context)
            self._cache.evict(self._decode.kv, self._decode.capacity)
            changed.append(job)

    def _start_prefill(self) -> None:
        """Begin a pass over the waiting prompts that fit; prefill goes before decode."""
        if self.suspended or self._prefill or not self._waiting:
            return
        new, seen = self._take_prompts()
        if not self._prefill:
            return
        decode = self._decode
        self._cache.evict(decode.kv, decode.capacity)
        if new:
            beside = len(decode.jobs), decode.kv - decode.prompts
            seconds = self.model.prefill_s(new, seen / new, *beside)
            seconds += self.model.prompts_s(len(self._prefill))
        else:
            a, b = self.model.decode_line(len(decode.jobs) + len(self._prefill), decode.kv)
            seconds = a + b * decode.kv
        self._prefill_end = self._now + self.slowdown * seconds
        self.prefilled_tokens += new

    def _take_prompts(self) -> tuple[int, float]:
        """Move waiting jobs into the pass; its new tokens, and the sum of the tokens each sees."""
        new = 0
        seen = 0.0
        while self._waiting and len(self._decode.jobs) + len(self._prefill) < self.model.sequences:
            job = self._waiting[0]
            cached = job.context
            if not job.prefilled:
                found = int(job.cached_share * self._cache.get(job.key))
                cached = min(found, job.context - 1)
            fresh = job.context - cached
            others = len(self._decode.jobs) + len(self._prefill)
            if others and self._decode.kv + job.context + others + 1 > self._decode.capacity:
                break
            if self._prefill and new + fresh > PREFILL_TOKENS:
                break
            self._waiting.popleft()
            self._cache.drop(job.key)
            self._prefill.append(job)
            self._decode.prompts += job.context
            new += fresh
            seen += fresh * (cached + fresh / 2)
        return new, seen

    def _end_prefill(self, changed: list[Job]) -> None:
        """End the pass: the prompts give a first token, and each running sequence sampled one."""
        self.prefill_s += self._prefill_end - self._now
        self._now = self._prefill_end
        self._decode.make_pass()
        for job in self._prefill:
            if not job.spans:
                changed.append(job)
            self._decode.join(job)
        self._prefill.clear()
        self._decode.prompts = 0
        self._finish(changed)
