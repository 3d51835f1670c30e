"""Engine workers that share the trainer's devices: they serve while training waits for a batch."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow.types import EventKind
from tests.runner.local import events, run_with
from tests.runner.world import check_sound, source

SLIDING = """
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6, sliding_workers=1)
batches = buffer(reward(trajectories, tokens_seen), batch_size=16, alpha=<alpha>)
pipeline = Pipeline("coins", train(batches, policy, gated, steps=6))
"""


@pytest.mark.whole
@pytest.mark.parametrize("alpha", [0, 1])
def test_they_go_over_to_training_with_each_batch_and_come_back_for_the_next(
    tmp_path: Path, shared_ray: None, alpha: int
) -> None:
    run = run_with(source(tmp_path, SLIDING, alpha=alpha), tmp_path)
    check_sound(run, 6, batch_size=16)
    bindings = run.bindings.filter(pl.col("role") == "generation").collect()
    assert bindings["worker"].to_list() == ["engine-cpu-0", "sliding-cpu-0"]
    slides = events(run, EventKind.SLIDE)
    assert set(slides["subject"]) == {"sliding-cpu-0"}
    sides = [json["to"] for json in slides["detail"].str.json_decode(pl.Struct({"to": pl.String}))]
    # with alpha 1 the next batch may be there whenever it is asked for
    assert len(sides) > 2 * (alpha == 0)
    assert sides == (["training", "rollout"] * len(sides))[: len(sides)]
    turns = run.trajectories.explode("turns").drop_nulls("turns").collect()
    drew = set(turns["turns"].struct.field("worker"))
    assert drew == {"engine-cpu-0", "sliding-cpu-0"}
    assert events(run, EventKind.CRASH).is_empty()
    moved = events(run, EventKind.RETRY)
    assert set(moved["reason"]) <= {"worker_left"}
