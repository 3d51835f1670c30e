"""A filter of groups in a real run: refused groups are replaced, and the same filter reads the run.

Tosses of an even number are never rewarded, so that their groups have no variance; of the others
every second attempt is.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from rollart_flow.algorithms.filters import varied
from rollart_flow.types import EventKind, Reason
from tests.runner.local import events, local_ray, run_with
from tests.runner.world import check_sound, source

STEPS = 3

VARIED = """
from rollart_flow.algorithms.filters import varied


async def every_second(trajectory):
    return float(int(trajectory.task_id.removeprefix("toss-")) % 2 and trajectory.attempt % 2)


trajectories = rollout(tasks(Coin(), group_size=2), policy, max_tokens=4)
scored = reward(trajectories, every_second)
judged = filter(scored, varied(), name="judged")
pipeline = Pipeline("varied", train(buffer(judged, batch_size=4), policy, gated, steps=<steps>))
"""


@pytest.fixture(scope="module", autouse=True)
def shared_ray() -> Iterator[None]:
    with local_ray():
        yield


def test_groups_without_variance_are_never_trained_on(tmp_path: Path) -> None:
    run = run_with(source(tmp_path, VARIED, steps=STEPS), tmp_path)
    check_sound(run, STEPS, batch_size=4)
    trained = run.trajectories.join(run.batches, on="trajectory_id", how="semi").collect()
    assert sorted(trained["reward"]) == [0.0] * 6 + [1.0] * 6
    assert run.steps.collect()["zero_variance_groups"].to_list() == [0] * STEPS

    evicted = events(run, EventKind.EVICT).filter(pl.col("reason") == Reason.GROUP_FILTERED)
    groups = [json.loads(detail) for detail in evicted["detail"]]
    assert {group["filter"] for group in groups} == {"judged"}
    assert not {group["group_id"] for group in groups} & set(trained["group_id"])
    assert evicted.height >= 2 * (STEPS * 4 // 2 - 1), "between two good groups is one of the other"

    seen = run.trajectories.filter(varied()).collect()
    assert set(trained["trajectory_id"]) <= set(seen["trajectory_id"])
    assert not set(evicted["subject"]) & set(seen["trajectory_id"])
