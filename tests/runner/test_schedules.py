"""Every schedule drives a real run, and keeps what it promises."""

from collections.abc import Iterable
from itertools import accumulate, pairwise, permutations
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.control.schedule.schedules import flash, named_schedule
from rollart_flow.pipeline.loading import load_source
from rollart_flow.simulation.stored.tables import read_tables
from rollart_flow.store import Run, open_run
from rollart_flow.types import Batch, EventKind, Split
from tests.runner.local import events
from tests.runner.world import source

STEPS = 4

CROWD = '''"""Environments and a reward that say from when to when they were busy."""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.types import Split, Task


def busy(most_s):
    began = time.time()
    time.sleep(random.uniform(most_s / 4, most_s))
    return f"{began:.3f} {time.time():.3f}"


class CrowdEnvironment(Environment):
    version = "crowd/1"

    def reset(self, seed, task):
        self.left = 3
        return busy(0.2), {}

    def step(self, action):
        self.left -= 1
        return busy(0.4), 0.0, self.left == 0, False, {}


@dataclass(frozen=True)
class Crowd(Domain):
    name: ClassVar[str] = "crowd"
    environment: ClassVar[type[Environment]] = CrowdEnvironment
    max_turns: ClassVar[int] = 3

    def make(self):
        return CrowdEnvironment()

    def tasks(self, split, seed):
        count = 0
        while split is Split.TRAIN:
            yield Task(f"task-{count}", self.name)
            count += 1

    def example_action(self, task, random):
        return "go"


async def counted(trajectory):
    began = time.time()
    await asyncio.sleep(0.2)
    return len(trajectory.token_ids) % 7, {"began": began, "ended": time.time()}


policy = Policy.tiny(hidden=32, layers=1, heads=2, warm_start=0)
prompts = tasks(Crowd(), group_size=4)
scored = reward(rollout(prompts, policy, max_tokens=6, engine_workers=2), counted)
steps = train(buffer(scored, batch_size=8), policy, grpo(), steps=3)
pipeline = Pipeline("crowd", steps)
'''


def batches_of(run: Run) -> list[Batch]:
    """What each step trained on, as the control plane had it."""
    rows = run.batches.sort("step", "position").collect()
    return [
        Batch(
            step=step,
            policy_version=of_step["policy_version"][0],
            trained_version=of_step["trained_version"][0],
            trajectory_ids=tuple(of_step["trajectory_id"]),
            group_ids=tuple(of_step["group_id"]),
            staleness=tuple(of_step["staleness"]),
        )
        for (step,), of_step in rows.group_by("step", maintain_order=True)
        if isinstance(step, int)
    ]


@pytest.mark.parametrize(
    "name", ["sync", "one_off", "window(2)", "hybrid", "rollart_plus", "flash(1)"]
)
def test_a_run_keeps_the_promise_of_its_schedule(tmp_path: Path, name: str) -> None:
    overrides = {"schedule": name, "steps": str(STEPS)}
    loaded = load_source(source(tmp_path), tmp_path / "coins.py", overrides)
    run = open_run(runner.run(loaded, store=str(tmp_path), name="coins", executor="inline").uri)
    batches = batches_of(run)
    assert [batch.step for batch in batches] == list(range(1, STEPS + 1))
    assert named_schedule(name).violations(batches) == ()
    trained = run.batches.join(run.trajectories, on="trajectory_id", suffix="_t").collect()
    assert trained.height == STEPS * 8
    start = trained["policy_version_start"]
    assert trained["lag"].equals(trained["trained_version"] - start)
    lags = trained.group_by("step").agg(max=pl.col("lag").max(), mean=pl.col("lag").mean())
    told = run.steps.select("step", max="lag_max", mean="lag_mean").sort("step").collect()
    assert told.equals(lags.sort("step"))
    if name == "flash(1)":
        check_flash(run)
    if name == "rollart_plus":
        check_ahead(run)
    if name in ("sync", "one_off", "hybrid"):
        assert trained["policy_version_start"].equals(trained["policy_version_end"])
    released = events(run, EventKind.RELEASE)
    assert released.height == (STEPS if name == "hybrid" else 0)
    assert released["detail"].str.json_path_match("$.bytes").cast(pl.Int64).gt(0).all()


def check_ahead(run: Run) -> None:
    """Groups are prepared, then admitted in their order, and only then generate."""
    prepared, admitted = (
        events(run, kind)["subject"].to_list() for kind in (EventKind.PREPARE, EventKind.ADMIT)
    )
    assert prepared, "attempts that ended left room for the next groups"
    assert admitted == sorted(admitted)
    assert set(admitted) >= set(prepared[:-4]), "the last ones may wait at the end"
    sampled = pl.col("policy_version_start").is_not_null()
    started = run.trajectories.filter(sampled, pl.col("split") == Split.TRAIN)
    assert set(started.collect()["group_id"]) <= set(admitted)


def check_flash(run: Run) -> None:
    """Each batch is formed after the step before it, under the version that it trains."""
    batches = run.batches.collect()
    assert batches["staleness"].equals(batches["lag"])
    assert batches["lag"].max() == 1
    steps = read_tables(run.snapshot(), "coins", flash(1), STEPS).steps
    for before, after in pairwise(steps):
        assert before.finished < after.formed < after.finished


def crowd(store: Path, schedule: str) -> pl.DataFrame:
    """Trajectories of a run under a schedule, all of which went well."""
    loaded = load_source(CROWD, store / "crowd.py", {"schedule": schedule})
    run = open_run(runner.run(loaded, store=str(store), name="crowd", executor="inline").uri)
    assert named_schedule(schedule).violations(batches_of(run)) == ()
    return run.trajectories.filter(pl.col("reward").is_not_null()).sort("finished_at").collect()


def test_without_the_switches_attempts_are_scored_together_and_groups_share_a_worker(
    tmp_path: Path,
) -> None:
    rows = crowd(tmp_path, "sync_plus(queue_scheduling=False, prompt_replication=False)")
    workers = rows.explode("turns").select("group_id", pl.col("turns").struct.field("worker"))
    assert workers.group_by("group_id").n_unique()["worker"].max() == 1
    assert workers["worker"].n_unique() == 2
    waited = []
    scoring = [began for began, _ in scored_in(rows)]
    spans = zip(scoring, rows["created_at"], rows["finished_at"], strict=True)
    for (scored, _, ended), (_, began, other_ended) in permutations(spans, 2):
        if began < ended < other_ended:
            assert scored >= other_ended.timestamp()
            waited.append((other_ended - ended).total_seconds())
    assert max(waited) > 0.2, "no attempt ended long before another one beside it"


def test_stages_hold_no_more_than_their_places(tmp_path: Path) -> None:
    rows = crowd(tmp_path, "staged(2, 4, 3)")
    turns = rows["turns"].to_list()
    resets = [said(of_one[0]["observation"]) for of_one in turns]
    loops = [(said(t[1]["observation"])[0], said(t[2]["observation"])[1]) for t in turns]
    assert 1 < most_at_once(resets) <= 2
    assert 1 < most_at_once(loops) <= 4
    assert 1 < most_at_once(scored_in(rows)) <= 3


def said(observation: str) -> tuple[float, float]:
    """When an environment was busy, as it said."""
    began, ended = map(float, observation.split())
    return began, ended


def scored_in(rows: pl.DataFrame) -> list[tuple[float, float]]:
    """From when to when each trajectory was scored, as the reward said."""
    parts = [
        {part["name"]: part["value"] for part in row} for row in rows["reward_parts"].to_list()
    ]
    return [(row["began"], row["ended"]) for row in parts]


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Most spans of time that overlap."""
    ends = [(at, change) for span in spans for at, change in zip(span, (1, -1), strict=True)]
    return max(accumulate(change for _, change in sorted(ends)))
