"""Continuous batching: no token lost or sampled twice, memory respected, time in closed form.

The closed form is compared with a naive reference that goes pass by pass.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B, QWEN3_32B, Device, Roofline
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.decoding import Job

ROOMY = Roofline(QWEN3_8B, H800)
TIGHT = Roofline(QWEN3_8B, Device("tight", 989.5, 20.0, 3.35, 400))
"""Room for about 10,000 tokens: a few sequences."""
FOREVER = 1e9


@dataclass
class Seen:
    """A batch under test, and the times of its jobs."""

    batch: ContinuousBatch
    now: float = 0.0
    done_at: dict[str, float] = field(default_factory=dict)
    first_at: dict[str, float] = field(default_factory=dict)
    _ended: set[Job] = field(default_factory=set)

    def told(self, changed: Sequence[Job]) -> None:
        for job in changed:
            self.first_at.setdefault(job.key, self.now)
            if job.done:
                assert job not in self._ended or self.done_at[job.key] == self.now
                self._ended.add(job)
                self.done_at[job.key] = self.now

    def submit(self, job: Job) -> Job:
        self.told(self.batch.submit(self.now, job))
        return job

    def until(self, now: float) -> None:
        """Advance from event to event, as an engine does."""
        while (event := self.batch.next_event()) is not None and event <= now:
            assert event >= self.now
            self.now = event
            self.told(self.batch.advance(event))
            assert self.batch.kv <= self.batch.capacity + 1e-6
        if now != FOREVER:
            self.now = now
            self.told(self.batch.advance(now))

    def suspend(self) -> None:
        self.told(self.batch.suspend(self.now))

    def remove(self, job: Job) -> None:
        self.told(self.batch.remove(self.now, job))


def job(key: str, context: int, left: int, *, prefilled: bool = False) -> Job:
    return Job(key, context, left, prefilled=prefilled)


def drawn(job: Job) -> int:
    return sum(tokens for _, tokens in job.spans)


def by_version(job: Job) -> dict[int, int]:
    tokens: Counter[int] = Counter()
    for version, count in job.spans:
        tokens[version] += count
    return dict(tokens)


def static(roofline: Roofline, lengths: Sequence[tuple[int, int]]) -> dict[str, float]:
    """End of each of (prompt, response) that are there from the start, pass by pass: the first
    prompt alone, for it arrives first, then all others, then one token each until nothing is left.
    """
    now = 0.0
    running: dict[str, list[int]] = {}
    ends: dict[str, float] = {}
    waiting = [(str(i), prompt, response) for i, (prompt, response) in enumerate(lengths)]
    for prompts in (waiting[:1], waiting[1:]):
        new = sum(prompt for _, prompt, _ in prompts)
        if not new:
            continue
        seen = sum(prompt * prompt / 2 for _, prompt, _ in prompts) / new
        kv = sum(context for context, _ in running.values())
        now += roofline.prefill_s(new, seen, len(running), kv)
        for key, prompt, response in prompts:
            running[key] = [prompt, response]
        draw(running, ends, now)
    while running:
        now += roofline.decode_s(len(running), sum(context for context, _ in running.values()))
        draw(running, ends, now)
    return ends


def draw(running: dict[str, list[int]], ends: dict[str, float], now: float) -> None:
    """Sample one token for each running sequence."""
    for key, sequence in list(running.items()):
        sequence[0] += 1
        sequence[1] -= 1
        if sequence[1] == 0:
            ends[key] = now
            del running[key]


LENGTHS = st.lists(st.tuples(st.integers(1, 2_000), st.integers(1, 400)), min_size=1, max_size=7)


@settings(max_examples=40)
@given(LENGTHS, st.sampled_from([ROOMY, Roofline(QWEN3_8B, H20), Roofline(QWEN3_32B, H800, 4)]))
def test_a_static_batch_takes_the_time_of_its_passes(
    lengths: list[tuple[int, int]], roofline: Roofline
) -> None:
    seen = Seen(ContinuousBatch(roofline))
    for i, (prompt, response) in enumerate(lengths):
        seen.submit(job(str(i), prompt, response))
    seen.until(FOREVER)
    assert seen.done_at == pytest.approx(static(roofline, lengths), rel=0.01)
    assert seen.batch.busy_s == pytest.approx(seen.now)


# A schedule of what happens: (seconds to pass, what, whom).
ACTIONS = st.lists(
    st.tuples(
        st.floats(0, 4),
        st.sampled_from(["arrive", "arrive", "arrive", "remove", "suspend", "resume"]),
        st.integers(0, 5),
        st.integers(1, 2_500),
        st.integers(0, 1_500),
    ),
    max_size=25,
)


@dataclass
class Played:
    """The outcome of a sequence of arrivals, removals and suspensions."""

    seen: Seen
    jobs: list[tuple[Job, int, int]] = field(default_factory=list)
    """Job, its prompt, the tokens that it was asked for."""
    removed: list[Job] = field(default_factory=list)
    suspended_s: float = 0.0


def play(
    actions: Sequence[tuple[float, str, int, int, int]], roofline: Roofline, *, stored: bool = False
) -> Played:
    """Play the actions, then let all remaining jobs end."""
    seen = Seen(ContinuousBatch(roofline, stored=stored))
    played = Played(seen)
    version = 0
    for wait_s, what, whom, context, left in [*actions, (0.0, "resume", 0, 0, 0)]:
        paused = seen.batch.suspended
        before = [job.spans.copy() for job, _, _ in played.jobs]
        seen.until(seen.now + wait_s)
        if paused:
            played.suspended_s += wait_s
            assert before == [job.spans for job, _, _ in played.jobs]
        here = [job for job, _, _ in played.jobs if not job.done]
        if what == "arrive":
            new = job(f"{whom}/{len(played.jobs)}", context, left)
            played.jobs.append((new, context, left))
            seen.submit(new)
        elif what == "remove" and here:
            played.removed.append(here[whom % len(here)])
            seen.remove(played.removed[-1])
        elif what == "suspend":
            seen.suspend()
        elif what == "resume" and paused:
            version += 1
            seen.batch.resume(seen.now, version)
    seen.until(FOREVER)
    return played


@settings(max_examples=120)
@given(ACTIONS, st.sampled_from([ROOMY, TIGHT]))
def test_no_token_is_lost_or_sampled_twice(
    actions: list[tuple[float, str, int, int, int]], roofline: Roofline
) -> None:
    """Random arrivals, removals and suspensions; `Seen` asserts that memory suffices."""
    played = play(actions, roofline)
    for job, prompt, asked in played.jobs:
        assert job.done
        assert drawn(job) + job.left == asked
        assert job.context == prompt + drawn(job)
        assert job.left == 0 or job in played.removed
        assert [version for version, _ in job.spans] == sorted(version for version, _ in job.spans)
    batch = played.seen.batch
    assert len(batch) == 0
    assert batch.kv == 0
    assert batch.sampled_tokens == sum(drawn(job) for job, _, _ in played.jobs)
    assert batch.busy_s + played.suspended_s <= played.seen.now + 1e-6


@settings(max_examples=60)
@given(ACTIONS, st.lists(st.floats(0.0, 1.0), max_size=30), st.sampled_from([ROOMY, TIGHT]))
def test_looking_often_changes_nothing(
    actions: list[tuple[float, str, int, int, int]], looks: list[float], roofline: Roofline
) -> None:
    """Many small advances give the completions of one big one, to the rounding of floats."""
    arrivals = [action for action in actions if action[1] == "arrive"]
    once = play(arrivals, roofline)
    looked = [(look, "look", 0, 0, 0) for look in looks]
    split: list[tuple[float, str, int, int, int]] = []
    for wait_s, what, whom, context, left in arrivals:
        while looked and looked[-1][0] < wait_s:
            split.append(looked.pop())
            wait_s -= split[-1][0]
        split.append((wait_s, what, whom, context, left))
    often = play(split, roofline)
    assert often.seen.done_at == pytest.approx(once.seen.done_at, rel=1e-6, abs=1e-6)


@settings(max_examples=40)
@given(ACTIONS)
def test_the_same_actions_have_the_same_end(
    actions: list[tuple[float, str, int, int, int]],
) -> None:
    assert play(actions, TIGHT).seen.done_at == play(actions, TIGHT).seen.done_at


def test_the_next_turn_computes_only_new_tokens() -> None:
    def second_turn(*, cached: bool) -> tuple[float, int]:
        seen = Seen(ContinuousBatch(ROOMY))
        first = seen.submit(job("a", 20_000, 100))
        seen.until(FOREVER)
        started, computed = seen.now, seen.batch.prefilled_tokens
        seen.submit(job("a" if cached else "b", first.context + 300, 1))
        seen.until(FOREVER)
        return seen.now - started, seen.batch.prefilled_tokens - computed

    warm_s, warm = second_turn(cached=True)
    cold_s, cold = second_turn(cached=False)
    assert (warm, cold) == (300, 20_400)
    assert warm_s < cold_s / 5


@pytest.mark.parametrize(("share", "computed"), [(1.0, 300), (0.75, 5_325), (0.0, 20_400)])
def test_only_a_share_of_the_cached_tokens_can_be_used(share: float, computed: int) -> None:
    seen = Seen(ContinuousBatch(ROOMY))
    first = seen.submit(job("a", 20_000, 100))
    seen.until(FOREVER)
    before = seen.batch.prefilled_tokens
    seen.submit(replace(job("a", first.context + 300, 1), cached_share=share))
    seen.until(FOREVER)
    assert seen.batch.prefilled_tokens - before == computed


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    seen = Seen(ContinuousBatch(TIGHT))
    size = seen.batch.capacity // 3
    for key in ("a", "b", "c"):
        seen.submit(job(key, size - 10, 5))
        seen.until(FOREVER)
    seen.submit(job("a", size - 4, 1))
    seen.until(FOREVER)
    seen.submit(job("d", size - 10, 5))
    seen.until(FOREVER)

    def computed(key: str) -> int:
        before = seen.batch.prefilled_tokens
        seen.submit(job(key, size + 10, 1))
        seen.until(FOREVER)
        return seen.batch.prefilled_tokens - before

    assert computed("a") == 10 + 3
    assert computed("b") == size + 10, "it was used longest ago"


def test_a_store_beside_the_devices_forgets_nothing() -> None:
    kept, evicted = (Seen(ContinuousBatch(TIGHT, stored=stored)) for stored in (True, False))
    for seen in (kept, evicted):
        for turn in (0, 500):
            for key in "abcdefgh":
                seen.submit(job(key, seen.batch.capacity // 2 + turn, 10))
                seen.until(FOREVER)
    new = 8 * (kept.batch.capacity // 2 + 490)
    assert kept.batch.prefilled_tokens == new
    assert evicted.batch.prefilled_tokens > 1.9 * new


def test_sequences_that_do_not_fit_are_preempted_and_all_end() -> None:
    """The newest sequence is preempted first, so that the oldest is not delayed."""
    seen = Seen(ContinuousBatch(TIGHT))
    room = seen.batch.capacity
    jobs = [seen.submit(job(str(i), room // 3 - 50, room // 4)) for i in range(3)]
    seen.until(FOREVER)
    assert all(drawn(job) == room // 4 for job in jobs)
    assert seen.batch.recomputed_tokens > 0
    assert list(seen.done_at) == ["0", "1", "2"]
    alone = Seen(ContinuousBatch(Roofline(QWEN3_8B, Device("roomy", 989.5, 80, 3.35, 400))))
    for i in range(3):
        alone.submit(job(str(i), room // 3 - 50, room // 4))
    alone.until(FOREVER)
    assert alone.batch.recomputed_tokens == 0
    assert seen.now > 1.1 * alone.now


def test_a_prompt_comes_in_only_if_the_token_that_all_others_draw_beside_it_fits_too() -> None:
    seen = Seen(ContinuousBatch(TIGHT))
    for i in range(100):
        seen.submit(job(str(i), 60, 40 + i))
    seen.until(0.5)
    room = int(seen.batch.capacity - seen.batch.kv)
    seen.submit(job("new", room - 50, 10))
    seen.until(FOREVER)
    assert seen.first_at["new"] > seen.done_at["0"]
    assert seen.batch.recomputed_tokens == 0


def test_no_more_sequences_run_than_are_allowed() -> None:
    seen = Seen(ContinuousBatch(ROOMY))
    for i in range(ROOMY.sequences + 1):
        seen.submit(job(str(i), 10, 100))
    seen.until(FOREVER)
    last = str(ROOMY.sequences)
    assert seen.first_at[last] >= min(end for key, end in seen.done_at.items() if key != last)


def test_running_sequences_wait_for_prompts_and_sample_one_token_beside_them() -> None:
    """A pass over new prompts is also a pass of the running sequences (Orca)."""
    seen = Seen(ContinuousBatch(ROOMY))
    old = seen.submit(job("old", 100, 10))
    seen.until(seen.batch.next_event() or 0.0)
    assert drawn(old) == 1
    seen.submit(job("new", 15_000, 1))
    end = seen.batch.next_event() or 0.0
    assert end - seen.now == pytest.approx(ROOMY.prefill_s(15_000, 7_500, 1, 101))
    seen.until(end)
    seen.remove(old)
    assert drawn(old) == 2


def test_no_token_is_sampled_while_suspended_and_versions_change_exactly_there() -> None:
    seen = Seen(ContinuousBatch(ROOMY, version=4))
    running = seen.submit(job("a", 1_000, 2_000))
    seen.until(5.0)
    seen.suspend()
    assert seen.batch.next_event() is None
    seen.until(105.0)
    computed = seen.batch.prefilled_tokens
    seen.batch.resume(seen.now, 5)
    before = drawn(running)
    assert by_version(running) == {4: before}
    assert seen.batch.recomputed_tokens == 1_000 + before
    seen.until(FOREVER)
    assert by_version(running) == {4: before, 5: 2_000 - before}
    assert seen.batch.prefilled_tokens - computed == 1_000 + before, "the KV cache is rebuilt"
    steady = Seen(ContinuousBatch(ROOMY))
    steady.submit(job("a", 1_000, 2_000))
    steady.until(FOREVER)
    rebuilt_s = ROOMY.prefill_s(1_000 + before, (1_000 + before) / 2)
    assert seen.now - 100 == pytest.approx(steady.now + rebuilt_s, abs=0.02)


def test_a_job_that_arrives_while_suspended_begins_under_the_new_version() -> None:
    seen = Seen(ContinuousBatch(ROOMY))
    seen.suspend()
    late = seen.submit(job("late", 100, 10))
    seen.until(50.0)
    assert late.spans == []
    seen.batch.resume(seen.now, 7)
    seen.until(FOREVER)
    assert by_version(late) == {7: 10}


def test_new_weights_make_old_caches_worthless() -> None:
    seen = Seen(ContinuousBatch(ROOMY, stored=True))
    first = seen.submit(job("a", 5_000, 10))
    seen.until(FOREVER)
    seen.suspend()
    seen.batch.resume(seen.now, 1)
    before = seen.batch.prefilled_tokens
    seen.submit(job("a", first.context + 1, 1))
    seen.until(FOREVER)
    assert seen.batch.prefilled_tokens - before == 5_011


def test_a_removed_job_has_its_tokens_so_far() -> None:
    seen = Seen(ContinuousBatch(ROOMY))
    gone, stays = seen.submit(job("gone", 500, 3_000)), seen.submit(job("stays", 500, 1_000))
    seen.until(3.0)
    seen.remove(gone)
    so_far = drawn(gone)
    assert gone.done
    assert 0 < so_far < 3_000
    assert so_far + gone.left == 3_000
    seen.until(FOREVER)
    assert drawn(gone) == so_far
    assert drawn(stays) == 1_000


def test_waiting_jobs_and_jobs_in_prefill_can_be_removed_too() -> None:
    seen = Seen(ContinuousBatch(TIGHT))
    room = seen.batch.capacity
    prefill = seen.submit(job("prefill", room - 100, 10))
    waits = seen.submit(job("waits", room - 100, 10))
    third = seen.submit(job("third", 100, 10))
    seen.remove(waits)
    seen.remove(prefill)
    assert (drawn(waits), drawn(prefill), len(seen.batch)) == (0, 0, 1)
    seen.until(FOREVER)
    assert drawn(third) == 10
    assert seen.batch.busy_s == pytest.approx(seen.now)


def test_a_cache_from_elsewhere_costs_no_prefill_but_each_token_its_pass() -> None:
    """Disaggregated prefill: a job that joins gives the others no token for nothing."""
    seen = Seen(ContinuousBatch(ROOMY))
    for i in range(20):
        seen.submit(job(str(i), 1_000, 50, prefilled=True))
    seen.until(FOREVER)
    assert seen.batch.prefilled_tokens == 0
    assert seen.now >= 50 * ROOMY.decode_s(20, 20_000)
    assert seen.now <= 71 * ROOMY.decode_s(20, 20 * 1_050)


def test_a_slower_worker_takes_so_many_times_as_long() -> None:
    def end(slowdown: float) -> float:
        seen = Seen(ContinuousBatch(ROOMY))
        seen.told(seen.batch.pace(0.0, slowdown))
        for i in range(3):
            seen.submit(job(str(i), 1_000, 200, prefilled=i == 2))
        seen.until(FOREVER)
        return seen.now

    assert end(3.0) == pytest.approx(3 * end(1.0))


def test_first_tokens_are_reported_once() -> None:
    told: Counter[str] = Counter()
    batch = ContinuousBatch(ROOMY)
    batch.submit(0.0, job("a", 100, 50))
    while (event := batch.next_event()) is not None:
        told.update(job.key for job in batch.advance(event) if not job.done)
    assert told == {"a": 1}
