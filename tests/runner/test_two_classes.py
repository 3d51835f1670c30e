"""A run on a cluster of two hardware classes that finds by itself which domain suits which."""

from pathlib import Path

import polars as pl
import pytest
import ray

from rollart_flow.types import EventKind
from tests.local_ray import tolerating_ray
from tests.runner.local import events, run_with
from tests.runner.world import check_sound, source

FOUND = """
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6, hw_affinity="auto")
batches = buffer(reward(trajectories, tokens_seen), batch_size=16, alpha=1)
pipeline = Pipeline("coins", train(batches, policy, gated, steps=6))
"""


@pytest.mark.whole
def test_engine_workers_stand_on_every_class_and_domains_are_bound_as_they_are_seen(
    tmp_path: Path,
) -> None:
    classes = {"H800": 1.0, "H20": 1.0}
    with tolerating_ray():
        ray.init(
            "local", num_cpus=2, resources=classes, include_dashboard=False, log_to_driver=False
        )
        try:
            run = run_with(source(tmp_path, FOUND), tmp_path)
        finally:
            ray.shutdown()
    check_sound(run, 6, batch_size=16)
    bindings = run.bindings.filter(pl.col("role") == "generation").collect()
    assert sorted(bindings.select("worker", "granted", "fallback").rows()) == [
        ("engine-h20-0", "H20", False), ("engine-h800-0", "H800", False),
    ]  # fmt: skip
    bound = events(run, EventKind.AFFINITY)
    assert set(bound["subject"]) == {"coin"}
    turns = run.trajectories.sort("seq").collect()["turns"]
    assert {turn["hardware"] for each in turns for turn in each} == set(classes)
