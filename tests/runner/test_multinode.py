"""One pipeline on a Ray cluster of several nodes: hardware by domain, and a node that leaves."""

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from ray.cluster_utils import Cluster as RayCluster

from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.placement import Grant, preview
from rollart_flow.store import Run, RunStatus
from rollart_flow.types import EventKind
from tests.local_ray import ray_nodes
from tests.runner.local import events, run_with
from tests.runner.world import source

STEPS = 40
"""Enough that steps are left when the node leaves, a moment after the second."""

TWO_DOMAINS = """

@dataclass(frozen=True)
class Token(Coin):
    name: ClassVar[str] = "token"


prompts = tasks(Coin(), Token(), group_size=4)
affinity = {"coin": "H800", "default": "H20"}
trajectories = rollout(prompts, policy, max_tokens=6, hw_affinity=affinity, engine_timeout_s=16)
batches = buffer(reward(trajectories, tokens_seen), batch_size=8, alpha=1)
pipeline = Pipeline("coins", train(batches, policy, gated, steps=<steps>))
"""


@pytest.fixture
def nodes() -> Iterator[RayCluster]:
    """A head with CPUs, and a node each with an H800 and with two H20s."""
    with ray_nodes({"num_cpus": 2}, {"num_cpus": 1, "resources": {"H20": 2}}) as cluster:
        yield cluster


def hardware(run: Run) -> set[tuple[str, str]]:
    """(domain, class) of every turn that was generated."""
    turns = run.trajectories.select("domain", "turns").explode("turns").drop_nulls().collect()
    return set(turns.select("domain", pl.col("turns").struct.field("hardware")).unique().rows())


@pytest.mark.whole
def test_domains_are_generated_where_they_ask_for_and_elsewhere_once_that_is_gone(
    nodes: RayCluster, tmp_path: Path
) -> None:
    text = source(tmp_path, TWO_DOMAINS, steps=STEPS)
    compute = nodes.add_node(num_cpus=1, resources={"H800": 1})
    nodes.wait_for_nodes()
    assert preview(load_source(text, tmp_path / "coins.py").pipeline) == [
        Grant("generation", "default", "H20", "H20", 1),
        Grant("generation", "coin", "H800", "H800", 1),
        Grant("training", "default", "H800", "H20", 1),
    ]
    seen: list[set[tuple[str, str]]] = []

    def after_step(step: int) -> None:
        if step == 2:
            seen.append(hardware(Run(str(tmp_path / "coins"))))
            nodes.remove_node(compute)

    run = run_with(text, tmp_path, after_step)
    assert run.info.status is RunStatus.FINISHED
    assert seen == [{("coin", "H800"), ("token", "H20")}]
    assert hardware(run) == {("coin", "H800"), ("token", "H20"), ("coin", "H20")}
    assert run.steps.collect()["step"].sort().to_list() == list(range(1, STEPS + 1))
    bindings = run.bindings.select("worker", "domain", "requested", "granted", "node").collect()
    assert bindings.select("domain", "granted").rows() == [
        ("default", "H20"), ("coin", "H800"), ("default", "H20"),
    ]  # fmt: skip
    assert bindings["node"].n_unique() == 2
    removed = events(run, EventKind.CRASH)
    assert "engine-h800-0" in removed["subject"].to_list()
    trained = run.batches.join(run.trajectories, on="trajectory_id").collect()
    assert len(trained) == 8 * STEPS


@pytest.mark.whole
def test_generation_moves_to_the_class_that_it_asks_for_once_a_node_brings_it(
    nodes: RayCluster, tmp_path: Path
) -> None:
    nodes.wait_for_nodes()
    moved = {("coin", "H20"), ("token", "H20"), ("coin", "H800")}

    def after_step(step: int) -> None:
        if step == 1:
            nodes.add_node(num_cpus=1, resources={"H800": 1})
        if hardware(Run(str(tmp_path / "coins"))) == moved:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_with(source(tmp_path, TWO_DOMAINS, steps=500), tmp_path, after_step)
    run = Run(str(tmp_path / "coins"))
    fallbacks = events(run, EventKind.FALLBACK).select("subject", "detail").rows()
    generation, training = (json.loads(detail) for _, detail in fallbacks)
    assert (generation["requested"], generation["granted"]) == ("H800", "H20")
    assert (training["requested"], training["granted"]) == ("H20", "CPU")
    assert events(run, EventKind.REBIND)["subject"].to_list() == ["H800"]
    newest = run.trajectories.filter(pl.col("domain") == "coin").sort("seq").tail(1).collect()
    assert newest["turns"][0][-1]["hardware"] == "H800"
    bindings = run.bindings.filter(pl.col("domain") == "coin").sort("seq").collect()
    assert bindings["granted"].to_list() == ["H20", "H20", "H800"]
    assert bindings["fallback"].to_list() == [True, True, False]
    assert events(run, EventKind.CRASH).is_empty()
