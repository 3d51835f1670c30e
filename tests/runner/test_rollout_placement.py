"""Where the processes that drive environments and score attempts are: a class of their own."""

import json
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.errors import PipelineError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.resources import CPU, ResourceManager, ResourcePool
from rollart_flow.runner.placement import Grant, preview
from rollart_flow.runner.rollout_workers import place_rollout, rollout_bindings
from rollart_flow.types import EventKind
from tests.local_ray import ray_nodes
from tests.runner.local import events, run_with
from tests.runner.world import source

HOSTED = """
import sys


class HostedEnvironment(CoinEnvironment):
    def reset(self, seed, task):
        super().reset(seed, task)
        ray = sys.modules.get("ray")
        node = ray.get_runtime_context().get_node_id() if ray and ray.is_initialized() else ""
        return f"coin on {node}", {}


@dataclass(frozen=True)
class Hosted(Coin):
    environment: ClassVar[type[Environment]] = HostedEnvironment

    def make(self):
        return HostedEnvironment()


policy = Policy.tiny(hidden=32, layers=1, heads=2, warm_start=0, max_context=512)
prompts = tasks(Hosted(), group_size=4)
trajectories = rollout(
    prompts, policy, max_tokens=4, workers=2, worker_affinity=("hosts", "spare", "CPU")
)
batches = buffer(reward(trajectories, tokens_seen), batch_size=8, alpha=1)
pipeline = Pipeline("coins", train(batches, policy, gated, steps=<steps>))
"""


class Machine(ResourceManager):
    """Two CPUs."""

    def pools(self) -> dict[str, ResourcePool]:
        return {CPU: ResourcePool(CPU, 2.0, 2.0, ("node",))}


def pipeline(**settings: object) -> Pipeline:
    policy = Policy.tiny()
    attempts = rollout(tasks(Arithmetic()), policy, **settings)  # type: ignore[arg-type]
    return Pipeline("p", train(buffer(reward(attempts)), policy, grpo(), steps=1))


def test_without_a_class_they_are_on_any_node_and_nothing_is_reserved() -> None:
    assert place_rollout(pipeline(workers=2), Machine()) == []
    assert rollout_bindings([]) == []


def test_a_class_that_is_missing_falls_back_to_cpus() -> None:
    placed = place_rollout(pipeline(workers=2, worker_affinity="hosts"), Machine())
    rows = rollout_bindings(placed)
    assert [(row["worker"], row["requested"], row["granted"]) for row in rows] == [
        ("rollout-cpu-0", "hosts", CPU), ("rollout-cpu-1", "hosts", CPU),
    ]  # fmt: skip
    assert {(row["fallback"], row["node"]) for row in rows} == {(True, "any")}


def test_the_plan_shows_the_class_and_the_shell_sets_it() -> None:
    changed = pipeline().override({"rollout.worker_affinity": '["hosts", "CPU"]'})
    assert changed.rollout.worker_affinity == ("hosts", "CPU")
    named = changed.override({"worker_affinity": "spare"}).plan()
    wanted = [want for stage in named.stages for want in stage.wants]
    assert ("environments and rewards", "spare") in {(w.domain, w.resource) for w in wanted}


@pytest.mark.parametrize("wrong", [(), "", 3, ("hosts", "")])
def test_a_wrong_class_is_refused_when_the_pipeline_is_built(wrong: object) -> None:
    with pytest.raises(PipelineError, match="worker_affinity"):
        pipeline(worker_affinity=wrong)


def test_a_run_without_the_class_says_so_in_its_tables(tmp_path: Path) -> None:
    run = run_with(source(tmp_path, HOSTED, steps=3), tmp_path, executor="inline")
    rows = run.bindings.filter(pl.col("role") == "rollout").collect()
    assert set(rows["granted"]) == {CPU}
    (fallback,) = events(run, EventKind.FALLBACK).to_dicts()
    assert json.loads(fallback["detail"])["workers"] == ["rollout-cpu-0", "rollout-cpu-1"]


@pytest.mark.whole
def test_environments_and_rewards_are_on_the_nodes_of_their_class(tmp_path: Path) -> None:
    text = source(tmp_path, HOSTED, steps=3)
    with ray_nodes({"num_cpus": 2}, {"num_cpus": 2, "resources": {"spare": 4}}) as cluster:
        grants = preview(load_source(text, tmp_path / "coins.py").pipeline)
        assert Grant("rollout", "default", "hosts", "spare", 2) in grants
        spare = cluster.list_all_nodes()[1].node_id
        run = run_with(text, tmp_path)
    rows = run.bindings.filter(pl.col("role") == "rollout").collect()
    assert set(rows.select("granted", "node").rows()) == {("spare", spare)}
    first = run.trajectories.select(pl.col("turns").list.first().struct.field("observation"))
    assert set(first.drop_nulls().collect()["observation"]) == {f"coin on {spare}"}


@pytest.mark.whole
def test_other_nodes_drive_environments_once_theirs_are_gone(tmp_path: Path) -> None:
    with ray_nodes({"num_cpus": 2}) as cluster:
        spare = cluster.add_node(num_cpus=2, resources={"hosts": 2})
        cluster.wait_for_nodes()

        def after_step(step: int) -> None:
            if step == 2:
                cluster.remove_node(spare)

        run = run_with(source(tmp_path, HOSTED, steps=6), tmp_path, after_step)
    assert run.steps.collect()["step"].sort().to_list() == [*range(1, 7)]
    first = run.trajectories.sort("seq").select(
        pl.col("turns").list.first().struct.field("observation")
    )
    seen = first.drop_nulls().collect()["observation"].unique(maintain_order=True).to_list()
    assert len(seen) == 2
    assert seen[0] == f"coin on {spare.node_id}"
