"""Workloads: scripts are functions of a seed and a name, and look like the papers' tasks."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.errors import SettingsError
from rollart_flow.simulation.latencies import FixedLatency
from rollart_flow.simulation.workloads import (
    DOMAINS,
    FROZEN_LAKE,
    GEM_GAME,
    GEM_MATH,
    SWE,
    WEB,
    Script,
    ScriptedTurn,
    SimulatedDomain,
    Workload,
    draw_script,
)

ALL = Workload(tuple(DOMAINS.values()), seed=5)
NAMES = st.sampled_from(sorted(DOMAINS))


@settings(max_examples=50)
@given(st.integers(0, 99), NAMES, st.integers(0, 20), st.integers(0, 9))
def test_a_script_is_a_function_of_seed_group_and_attempt(
    seed: int, domain: str, group: int, attempt: int
) -> None:
    workload = Workload(tuple(DOMAINS.values()), seed=seed)
    script = workload.script(f"{domain}-{group}", domain, attempt)
    Workload(tuple(DOMAINS.values()), seed=seed).script("another", domain, attempt)
    assert workload.script(f"{domain}-{group}", domain, attempt) == script
    assert workload.script(f"{domain}-{group}", domain, attempt + 1) != script
    assert workload.script(f"{domain}-{group + 1}", domain, attempt) != script
    assert Workload(tuple(DOMAINS.values()), seed + 1).script("g", domain, 0) != workload.script(
        "g", domain, 0
    )


def test_tasks_follow_the_shares_and_equal_ones_take_turns() -> None:
    def first(count: int, **shares: float) -> list[str]:
        domains = tuple(replace(DOMAINS[name], share=share) for name, share in shares.items())
        return [task.domain for task, _ in islice(Workload(domains).tasks(), count)]

    assert first(6, swe=2.0, web=2.0, frozenlake=2.0) == ["swe", "web", "frozenlake"] * 2
    assert Counter(first(64, swe=0.5, web=7.5)) == {"swe": 4, "web": 60}
    with pytest.raises(SettingsError, match="domain web has a share of 0; it must be positive"):
        first(1, swe=1.0, web=0.0)


def test_another_process_draws_the_same_script() -> None:
    """The seed of Python's hashes has no effect."""
    program = (
        "from rollart_flow.simulation.workloads import DOMAINS, Workload\n"
        "print(Workload(tuple(DOMAINS.values()), seed=5).script('web-1', 'web', 2))"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", program]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert there.stdout.strip() == str(ALL.script("web-1", "web", 2))


@pytest.mark.parametrize(
    ("domain", "fewest", "most"),
    [(SWE, 30, 50), (WEB, 5, 30), (FROZEN_LAKE, 20, 100), (GEM_MATH, 1, 5), (GEM_GAME, 1, 1)],
)
def test_turns_are_those_of_rollart_table_1(
    domain: SimulatedDomain, fewest: int, most: int
) -> None:
    roomy = Workload((domain,), context_tokens=1 << 30)
    counts = [len(roomy.script(f"g{i}", domain.name, 0).turns) for i in range(400)]
    assert min(counts) >= fewest
    assert max(counts) <= most
    assert fmean(counts) == pytest.approx((fewest + most) / 2, rel=0.1)


@pytest.mark.parametrize("domain", [GEM_MATH, GEM_GAME])
def test_the_longest_response_of_a_step_is_5_to_9_times_the_mean(domain: SimulatedDomain) -> None:
    """ROLLART section 8, for a step of 512 attempts; a tenth of a margin at both ends."""
    workload = Workload((domain,))
    ratios = []
    for step in range(5):
        attempts = [
            workload.script(f"{step}-{i // 8}", domain.name, i % 8).action_tokens
            for i in range(512)
        ]
        ratios.append(max(attempts) / fmean(attempts))
    assert 4.5 < fmean(ratios) < 9.9


def test_frozen_lake_is_heavy_in_prefill_and_gem_math_in_decode() -> None:
    """ROLLART section 3.1: many short turns against few long ones."""

    def share(domain: SimulatedDomain) -> float:
        scripts = [ALL.script(f"g{i}", domain.name, 0) for i in range(50)]
        return sum(s.action_tokens for s in scripts) / sum(s.tokens for s in scripts)

    assert share(FROZEN_LAKE) < 0.1
    assert share(GEM_MATH) > 0.6


@settings(max_examples=80)
@given(NAMES, st.integers(0, 1_000), st.integers(1_000, 40_000))
def test_a_chain_that_ends_at_the_context_limit_is_truncated(
    domain: str, group: int, limit: int
) -> None:
    """A cut attempt is the uncut attempt, as far as it fits."""
    kind = replace(DOMAINS[domain], failure=0.0)
    cut, whole = (draw_script(kind, Random(group), n, 1.0, 0.5) for n in (limit, 1 << 30))
    assert cut.tokens <= limit
    assert not whole.truncated
    assert cut.truncated == (whole.tokens > limit)
    assert cut.turns, "there is something to draw, however long the prompt"
    assert cut.turns[:-1] == whole.turns[: len(cut.turns) - 1]
    if not cut.truncated:
        assert cut == whole


@settings(max_examples=40)
@given(NAMES, st.integers(0, 100))
def test_left_is_defined_within_actions_alone(domain: str, group: int) -> None:
    script = ALL.script(str(group), domain, 0)
    position = 0
    for turn in script.turns:
        for inside in (0, turn.observation_tokens - 1):
            with pytest.raises(ValueError, match="nothing is generated"):
                script.left(position + inside)
        position += turn.observation_tokens
        assert script.left(position) == turn.action_tokens
        assert script.left(position + turn.action_tokens - 1) == 1
        position += turn.action_tokens
    with pytest.raises(ValueError, match=f"at token {script.tokens} of"):
        script.left(script.tokens)


def test_sums_of_a_script() -> None:
    script = Script(2.0, (ScriptedTurn(10, 5, 1.0), ScriptedTurn(3, 7, 0.5)), 1.0, judged=False)
    assert (script.tokens, script.action_tokens, script.environment_s) == (25, 12, 3.5)


@pytest.mark.parametrize("failure", [0.0, 0.05, 1.0])
def test_the_given_share_fails_in_reset_or_in_a_turn(failure: float) -> None:
    domain = replace(WEB, failure=failure)
    scripts = [Workload((domain,)).script(f"g{i}", "web", 0) for i in range(2_000)]
    failed = [script.fails_at for script in scripts if script.fails_at is not None]
    assert len(failed) / len(scripts) == pytest.approx(failure, abs=0.015)
    if failure == 1.0:
        assert min(failed) == -1
        assert all(at < 30 for at in failed)
        assert 0.02 < failed.count(-1) / len(failed) < 0.15


def test_attempts_at_one_task_agree_to_the_given_degree() -> None:
    """Length by the task's factor, success by its agreement."""
    domain = replace(
        GEM_GAME, agreement=1.0, solved=0.3, response=FixedLatency(1_000), task_spread=0.5
    )
    workload = Workload((domain,))
    groups = [[workload.script(f"g{g}", domain.name, a) for a in range(4)] for g in range(300)]
    for group in groups:
        assert len({script.reward for script in group}) == 1
        assert len({script.action_tokens for script in group}) == 1
    assert len({group[0].action_tokens for group in groups}) > 250
    assert fmean(group[0].reward for group in groups) == pytest.approx(0.3, abs=0.08)
    divided = Workload((replace(domain, agreement=0.0),))
    rewards = [divided.script(f"g{g}", domain.name, a).reward for g in range(100) for a in range(9)]
    assert fmean(rewards) == pytest.approx(0.3, abs=0.06)


def test_tasks_come_uniformly_over_the_domains_with_cursors() -> None:
    tasks = ALL.tasks()
    first = [next(tasks) for _ in range(10)]
    assert [task.domain for task, _ in first] == list(DOMAINS) * 2
    assert [cursor for _, cursor in first] == list(range(10))
    assert len({task.task_id for task, _ in first}) == 10


@pytest.mark.parametrize("domains", [(), (WEB, replace(SWE, name="web"))])
def test_domains_need_names_of_their_own(domains: tuple[SimulatedDomain, ...]) -> None:
    with pytest.raises(SettingsError, match="their names must differ"):
        Workload(domains)
