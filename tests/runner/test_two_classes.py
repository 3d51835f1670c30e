"""A run on a cluster of two hardware classes that finds by itself which domain suits which."""

import json
from pathlib import Path

import polars as pl
import pytest

from rollart_flow.types import EventKind
from tests.local_ray import own_ray
from tests.runner import hardware
from tests.runner.local import events, run_with
from tests.runner.world import check_sound, source

FOUND = """
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6, hw_affinity="auto")
batches = buffer(reward(trajectories, tokens_seen), batch_size=16, alpha=1)
pipeline = Pipeline("coins", train(batches, policy, gated, steps=6))
"""


LAKE_AND_MATH = """


class LakeEnvironment(CoinEnvironment):
    def reset(self, seed, task):
        self.left = 3
        return "see " * 60, {}

    def step(self, action):
        _, reward, over, cut, info = super().step(action)
        return "see " * 60, reward, over, cut, info


@dataclass(frozen=True)
class Lake(Coin):
    name: ClassVar[str] = "lake"

    def make(self):
        return LakeEnvironment()


@dataclass(frozen=True)
class Math(Coin):
    name: ClassVar[str] = "math"


policy = Policy.tiny(hidden=32, layers=1, heads=2, warm_start=0, max_context=2048)
prompts = tasks(Lake(), Math(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=10, hw_affinity="auto", engine_workers=1)
batches = buffer(reward(trajectories, tokens_seen), batch_size=32, alpha=1)
pipeline = Pipeline("both", train(batches, policy, gated, steps=6))
"""


@pytest.mark.whole
def test_prefill_goes_to_compute_and_decoding_to_bandwidth_within_a_few_steps(
    tmp_path: Path,
) -> None:
    """ROLLART section 7.3 binds FrozenLake to H800s and math to H20s; here the run finds it."""
    hook = {"worker_process_setup_hook": hardware.install}
    with own_ray(resources={"H800": 1.0, "H20": 1.0}, runtime_env=hook):
        run = run_with(source(tmp_path, LAKE_AND_MATH), tmp_path)
    bound = events(run, EventKind.AFFINITY)
    found = {row["subject"]: json.loads(row["detail"])["hardware"] for row in bound.to_dicts()}
    assert found == {"lake": "H800", "math": "H20"}
    assert len(bound) == len(found), "nothing is bound twice"
    third = run.steps.filter(pl.col("step") == 3).collect()["seq"].item()
    assert bound["seq"].max() < third


@pytest.mark.whole
def test_engine_workers_stand_on_every_class_and_domains_are_bound_as_they_are_seen(
    tmp_path: Path,
) -> None:
    classes = {"H800": 1.0, "H20": 1.0}
    with own_ray(resources=classes):
        run = run_with(source(tmp_path, FOUND), tmp_path)
    check_sound(run, 6, batch_size=16)
    bindings = run.bindings.filter(pl.col("role") == "generation").collect()
    assert sorted(bindings.select("worker", "granted", "fallback").rows()) == [
        ("engine-h20-0", "H20", False), ("engine-h800-0", "H800", False),
    ]  # fmt: skip
    bound = events(run, EventKind.AFFINITY)
    assert set(bound["subject"]) == {"coin"}
    turns = run.trajectories.sort("seq").collect()["turns"]
    assert {turn["hardware"] for each in turns for turn in each} == set(classes)
