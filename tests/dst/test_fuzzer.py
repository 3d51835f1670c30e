"""Deterministic simulation testing: a thousand seeds, planted bugs, and reports of failures."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.control.schedule.schedules import SCHEDULES
from rollart_flow.errors import SettingsError, WeightStoreAwayError
from tests.dst import Faults, Kill, Plan, Target, fuzz, plan_of, simulate
from tests.dst.agent_plans import CHANCES
from tests.dst.bugs import BUGS, planted
from tests.dst.dialogue_plans import DIALOGUE_CHANCES
from tests.dst.world import World

ROOT = Path(__file__).parents[2]
SEEDS, CHUNK = 1_000, 100
QUICK = (0, 100)
"""First seeds of the chunks that planted bugs are looked for in, too; the others take minutes."""
ENOUGH = 20


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(n, marks=[] if n in QUICK else pytest.mark.whole)
        for n in range(0, SEEDS, CHUNK)
    ],
)
def test_every_promise_is_kept_under_all_faults(first: int) -> None:
    failures = [result for result in fuzz(range(first, first + CHUNK)) if not result.ok]
    assert not failures, "\n\n".join(
        f"{failure.story(40)}\n{failure.command}" for failure in failures
    )


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """The test above shows that the same seeds pass without the bug."""
    errors = (result.error for result in fuzz(BUGS[name].seeds, bug=name))
    assert any(error is not None and error.startswith(BUGS[name].broken) for error in errors)


def test_a_planted_bug_is_gone_afterwards() -> None:
    bug = BUGS["skip-eviction"]
    before = getattr(bug.owner, bug.method)
    with planted("skip-eviction"):
        assert getattr(bug.owner, bug.method) is not before
    assert getattr(bug.owner, bug.method) is before
    with pytest.raises(SettingsError, match="there is no bug 'nope'; the bugs are skip-eviction"):
        list(fuzz([0], bug="nope"))


def test_plans_reach_all_schedules_faults_and_targets() -> None:
    plans = [plan_of(seed) for seed in range(1_000)]
    names = {plan.schedule.name.partition("(")[0] for plan in plans}
    assert names >= set(SCHEDULES.names())
    assert {kill.target for plan in plans for kill in plan.kills} == set(Target)
    for fault in Faults.__dataclass_fields__:
        assert sum(getattr(plan.faults, fault) > 0 for plan in plans) > 300
    assert sum(plan.faults == Faults() for plan in plans) > 50
    agents = [plan.agents for plan in plans if plan.agents is not None]
    assert {agent.domains for agent in agents} == {("a",), ("b",), ("a", "b")}
    for chance in CHANCES:
        assert sum(getattr(agent, chance) > 0 for agent in agents) > 100
    dialogues = [plan.dialogues for plan in plans if plan.dialogues is not None]
    assert {each.domains for each in dialogues} == {("a",), ("b",), ("a", "b")}
    assert {each.converses for each in dialogues} == {True, False}
    assert {each.branches_history for each in dialogues} == {True, False}
    assert len({each.context for each in dialogues}) > 4
    for chance in DIALOGUE_CHANCES:
        assert sum(getattr(each, chance) > 0 for each in dialogues) > 150
    assert any(plan.stored and plan.kills for plan in plans)
    assert plan_of(17) == plan_of(17)


def test_batches_have_episodes_of_several_branches_whose_turns_are_quoted() -> None:
    trained: Counter[int] = Counter()
    quotes = 0
    for plan in filter(lambda plan: plan.dialogues is not None, map(plan_of, range(40))):
        world = World(plan)
        simulate(plan, world)
        for batch in world.tables.manifests:
            trained.update(len(world.tables.branches[name]) for name in batch.trajectory_ids)
        quotes += sum('"tokens":[' in (row.messages or "") for row in world.tables.trajectories)
    assert sum(count for branches, count in trained.items() if branches > 1) > 20
    assert quotes > 20


def story(seed: int) -> str:
    (result,) = fuzz([seed])
    return result.story()


def test_a_run_is_a_function_of_its_seed() -> None:
    seed = next(s for s in range(100) if len(plan_of(s).kills) > 3)
    assert story(seed) == story(seed)
    assert story(seed) != story(seed + 1)


def test_a_run_does_not_depend_on_how_python_hashes() -> None:
    """This process hashes by a random seed of its own."""
    code = "from tests.dst import fuzz\nfor result in fuzz(range(3)): print(result.story())"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == "".join(f"{story(seed)}\n" for seed in range(3))


def test_a_failing_seed_has_a_story_and_a_command_that_repeats_it() -> None:
    results = fuzz(range(ENOUGH), bug="return-two-credits")
    failure = next(result for result in results if not result.ok)
    lines = failure.story(5).splitlines()
    assert lines[0].startswith(f"seed {failure.seed}: ")
    assert lines[1].endswith(" earlier lines")
    assert "violation" in lines[-2]
    assert lines[-1] == failure.error
    assert lines[-1].startswith("credits: ")
    assert "(at " in lines[-1]
    assert failure.command == f"make fuzz SEEDS={failure.seed} BUG=return-two-credits"


def test_a_waiter_that_nothing_wakes_is_named() -> None:
    result = error_of(Plan(steps=1, engines=1, faults=Faults(commit_fails_before=1.0)))
    assert result.startswith("progress: no end after ")
    assert "orders(host-0-0)" in result


def test_a_weight_store_that_stays_away_ends_the_run_and_is_named() -> None:
    away = Plan(steps=2, engines=1, faults=Faults(weights_unavailable=1.0))
    with pytest.raises(WeightStoreAwayError, match=r"the weight store is unavailable \(attempts: "):
        simulate(away)


@pytest.mark.parametrize("after_s", [3.5, 3.6, 3.7, 3.8])
def test_buffer_and_coordinator_may_die_together_while_a_step_is_recorded(after_s: float) -> None:
    """The next coordinator knows neither of the step nor of the version before it."""
    kills = (Kill(after_s, Target.BUFFER, 1.0), Kill(after_s + 0.5, Target.COORDINATOR, 0.4))
    simulate(Plan(steps=3, groups=2, group_size=2, train_s=1.0, kills=kills))


@pytest.mark.parametrize("after_s", [2.72, 2.8])
def test_an_engine_and_the_coordinator_may_die_while_a_version_is_published(after_s: float) -> None:
    """The next coordinator asks the engine for the newest version, which may be on its way."""
    kills = (Kill(after_s, Target.ENGINE, 1.0), Kill(after_s + 0.02, Target.COORDINATOR, 0.1))
    plan = Plan(
        steps=3, groups=1, group_size=2, engines=1, hosts=1, train_s=1.0,
        faults=Faults(weights_slow=1.0), kills=kills,
    )  # fmt: skip
    for seed in range(50, 70):
        simulate(replace(plan, seed=seed))


def error_of(plan: Plan) -> str:
    with pytest.raises(AssertionError) as error:
        simulate(plan)
    return str(error.value)
