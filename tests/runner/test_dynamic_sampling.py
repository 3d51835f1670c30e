"""A filter of groups and a curriculum in a real run: what teaches nothing is replaced and avoided.

One of two tasks is always solved, so that its groups have no variance; of the other's attempts
every second one is.
"""

import json
from pathlib import Path

import polars as pl

from rollart_flow.algorithms.filters import varied
from rollart_flow.types import EventKind, Reason
from tests.runner.local import events, run_with
from tests.runner.world import check_sound, source

STEPS = 4

PIPELINE = """
from rollart_flow.algorithms import Curriculum
from rollart_flow.algorithms.filters import varied


async def of_name(trajectory):
    return float(trajectory.task_id == "solved" or trajectory.attempt % 2)


names = [Task(name, "coin") for name in ("solved", "even")]
chosen = Curriculum(easy=0.05, window=4)
prompts = tasks(names, domains=[Coin()], group_size=2, curriculum=chosen)
scored = reward(rollout(prompts, policy, max_tokens=4), of_name)
judged = filter(scored, varied(), name="judged")
pipeline = Pipeline("varied", train(buffer(judged, batch_size=4), policy, gated, steps=<steps>))
"""


def test_what_is_always_solved_is_never_trained_on_and_comes_up_less(tmp_path: Path) -> None:
    text = source(tmp_path, PIPELINE, steps=STEPS).replace('"success": False', '"left": 0')
    run = run_with(text, tmp_path, executor="inline")
    check_sound(run, STEPS, batch_size=4)
    trained = run.trajectories.join(run.batches, on="trajectory_id", how="semi").collect()
    assert set(trained["task_id"]) == {"even"}
    assert run.steps.collect()["zero_variance_groups"].to_list() == [0] * STEPS

    evicted = events(run, EventKind.EVICT).filter(pl.col("reason") == Reason.GROUP_FILTERED)
    assert evicted.height > 0
    assert {json.loads(detail)["filter"] for detail in evicted["detail"]} == {"judged"}
    scored = run.trajectories.filter(pl.col("reward").is_not_null())
    refused = scored.filter(~varied()).collect()
    assert set(evicted["subject"]) <= set(refused["trajectory_id"]), "the same filter, offline"
    assert not set(trained["trajectory_id"]) & set(refused["trajectory_id"])

    names = [json.loads(detail)["task_id"] for detail in events(run, EventKind.ADMIT)["detail"]]
    assert "solved" in names[:2], "as long as it is new, it is admitted"
    assert names.count("solved") < names.count("even")
