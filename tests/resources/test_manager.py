"""Who is granted what, on a Ray cluster of several nodes: H800s, H20s and CPUs."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray

from rollart_flow.errors import SettingsError
from rollart_flow.resources import (
    CPU,
    ActorGen,
    ActorTrain,
    Cluster,
    Environment,
    Kind,
    Placement,
    ResourceManager,
    Reward,
    WorkerHandle,
    hw_mapping,
    register,
)
from rollart_flow.resources.classes import GPU
from rollart_flow.resources.dispatch import Call
from rollart_flow.resources.pools import live_pools

pytestmark = pytest.mark.usefixtures("ray_of_nodes")

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


class Train(ActorTrain):
    """The first part of ROLLART's Listing 1."""

    @register(mode="execute_all")
    def compute_gradients(self, input_tensor: list[float]) -> list[float]:
        """Gradients of every worker's replica."""
        return [self.placement.rank + each for each in input_tensor]

    @register(mode="rank_zero")
    def save(self) -> str:
        """Which worker writes the checkpoint."""
        return self.placement.worker

    @register(mode="split")
    def forward(self, rows: list[int]) -> list[str]:
        """Who computed each row."""
        return [f"{row}@{self.placement.rank}" for row in rows]

    @register(
        dispatch=lambda ranks, args, kwargs: [((rank,), {}) for rank in range(2)], collect=sum
    )
    def squares(self, number: int = 0) -> int:
        """A pair of the user's own."""
        return number * 10


class HeteroGen(ActorGen):
    """The second part of Listing 1."""

    @hw_mapping(hw_affinity={"frozenlake": "H800", "default": "H20"})
    def generate(self, input_ids: list[int], tag_name: str = "default") -> str:
        """The class that generates."""
        return self.placement.granted

    @register(mode="execute_all")
    @hw_mapping(hw_affinity={"frozenlake": "H800", "default": "H20"})
    def warm_up(self, tag_name: str) -> str:
        """All workers of a class."""
        return self.placement.worker


def test_the_pools_are_those_of_rays_node_table() -> None:
    pools = live_pools()
    assert {"H800", "H20", CPU} <= pools.keys()
    assert (pools["H800"].total, pools["H20"].total, pools[CPU].total) == (4, 3, 4)
    assert len(pools["H20"].nodes) == 1
    assert len(pools[CPU].nodes) == 3
    assert not {"memory", "object_store_memory"} & pools.keys()
    assert ResourceManager().accelerators() == ("H20", "H800")
    assert ResourceManager({}).accelerators() == (CPU,)


def test_listing_1_one_controller_calls_every_worker_of_its_pool() -> None:
    cluster = Cluster(ResourceManager({"H800": range(2)}), Train)
    assert [w.placement.granted for w in cluster.workers] == ["H800", "H800"]
    assert cluster.compute_gradients([0.5]) == [[0.5], [1.5]]
    assert cluster.compute_gradients.__doc__ == "Gradients of every worker's replica."
    assert cluster.compute_gradients.__annotations__["return"] == list[float]
    assert cluster.save() == "training-h800-0"
    assert cluster.forward([5, 6, 7]) == ["5@0", "6@1", "7@1"]
    assert cluster.squares() == 10
    cluster.shutdown()


def test_workers_of_one_rank_compute_the_same_rows() -> None:
    placements = [Placement(f"w-{i}", "training", CPU) for i in range(4)]
    cluster = Cluster(placements, Train, data_parallel=2)
    assert cluster.forward([1, 2]) == ["1@0", "2@2"]
    cluster.shutdown()
    with pytest.raises(SettingsError, match="data_parallel is 3, but must divide the 4 workers"):
        Cluster(placements, Train, data_parallel=3)


def test_listing_1_each_call_is_routed_by_its_tag() -> None:
    manager = ResourceManager({"H800": range(1), "H20": range(8, 10)})
    cluster = Cluster(manager, HeteroGen)
    assert cluster.generate([1], tag_name="frozenlake") == "H800"
    assert cluster.generate([1]) == "H20"
    assert asyncio.run(cluster.generate.aio([1], "web")) == "H20"
    assert cluster.warm_up("web") == ["generation-h20-0", "generation-h20-1"]
    nodes = {row["granted"]: row["node"] for row in cluster.bindings()}
    assert nodes == {name: live_pools()[name].nodes[0] for name in ("H800", "H20")}
    assert manager.pools()["H20"].free == 0, "of the two that it may use"
    with pytest.raises(TypeError, match="generate is routed; call it, or start it on one worker"):
        cluster.generate.begin([1])
    cluster.shutdown()


def test_the_workers_of_the_cluster_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    (*_, text) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    made: dict[str, Any] = {"__name__": "page"}
    exec(compile(text, str(PAGE), "exec"), made)
    assert capsys.readouterr().out == "go on H800\n"
    made["generators"].shutdown()


def raising(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`ray.get` that raises an error which was put, as it does for one of an actor."""

    def got(reference: Any, **options: Any) -> Any:
        value = get(reference, **options)
        if isinstance(value, ray.exceptions.RayError):
            raise value
        return value

    return got


def kill(worker: WorkerHandle[HeteroGen]) -> None:
    """Kill a worker; returns once it answers no more."""
    worker.kill()
    with suppress(ray.exceptions.ActorDiedError):
        while True:
            ray.get(worker.actor.node.remote())


def test_a_call_whose_worker_died_is_run_by_another_class() -> None:
    cluster = Cluster(ResourceManager({"H800": 1, "H20": 1}), HeteroGen, max_restarts=0)
    cluster.wait_until_ready()
    kill(cluster.workers[0])
    assert cluster.generate([1], "frozenlake") == "H20"
    kill(cluster.workers[1])
    with pytest.raises(ray.exceptions.ActorDiedError):
        cluster.generate([1], "frozenlake")
    cluster.shutdown()


def test_a_call_ends_where_no_worker_can_be_reached() -> None:
    cluster = Cluster(ResourceManager({"H800": 1, "H20": 1}), HeteroGen)
    asked: list[str] = []

    def unreachable(worker: WorkerHandle[HeteroGen], call: Call) -> Any:
        asked.append(worker.placement.granted)
        return ray.put(ray.exceptions.ActorUnavailableError("restarting", None))

    with pytest.MonkeyPatch.context() as patched:
        # Ray's own restarts take as long as they like: here both are in one at the same time.
        patched.setattr(cluster.generate, "_send", unreachable)
        patched.setattr(ray, "get", raising(ray.get))
        with pytest.raises(ray.exceptions.ActorUnavailableError):
            cluster.generate([1], "frozenlake")
    assert asked == ["H800", "H20"], "each once"
    assert cluster.generate([1], "frozenlake") == "H800", "they are asked again by the next call"
    cluster.shutdown()


def test_roles_are_placed_where_they_run_best() -> None:
    manager = ResourceManager()
    assert manager.preferred(ActorTrain) == "H800"
    assert manager.preferred(ActorGen) == "H20"
    assert manager.preferred(Environment) == CPU
    assert manager.preferred(Reward) == GPU
    assert ResourceManager({"H800": 4, "H20": 3}).preferred(Reward) == CPU
    ours = ResourceManager({"H20": 3}, kinds={"H20": Kind.LOCAL})
    assert ours.preferred(Reward) == "H20"
    assert ours.preferred(ActorTrain) == CPU


def granted(manager: ResourceManager, wanted: str, workers: int = 1) -> list[Placement]:
    return manager.place("generation", {"default": wanted}, workers)


def test_a_class_that_is_full_or_missing_falls_back_to_a_compatible_one() -> None:
    manager = ResourceManager(grace_s=2)
    both = manager.place("generation", {"web": "H800", "default": "H800"}, workers=4)
    assert [p.granted for p in both] == ["H800"] * 4
    assert [r.domain for r in both[0].requests] == ["web", "default"]
    instead = granted(manager, "H800", 2)
    assert [(p.granted, p.requests[0].resource) for p in instead] == [("H20", "H800")] * 2
    missing = granted(manager, "H200")
    assert missing[0].granted == "H20", "there is no H200"
    assert granted(manager, "H20")[0].granted == CPU, "all is granted"
    manager.release(both)
    patient = ResourceManager()
    again = granted(patient, "H800", 2)
    assert [p.granted for p in again] == ["H800", "H800"], "what is released is there again"
    assert granted(ResourceManager(compatible={}), "H200")[0].granted == CPU
    for placements in (instead, missing, again):
        manager.release(placements)


def test_whoever_asks_may_say_what_stands_in() -> None:
    manager = ResourceManager(grace_s=2)
    asked = {"web": "A800", "default": "H800"}
    placements = manager.place("generation", asked, stand_ins={"A800": ("H20",)})
    assert [(p.granted, sorted(p.stands_for)) for p in placements] == [
        ("H20", ["A800", "H20"]), ("H800", ["H800"]),
    ]  # fmt: skip
    manager.release(placements)


def test_domains_that_fall_back_to_cpus_share_the_workers() -> None:
    placements = ResourceManager({}).place("generation", {"a": "H800", "b": "H20"}, workers=2)
    assert [p.worker for p in placements] == ["generation-cpu-0", "generation-cpu-1"]
    assert {(r.domain, r.resource) for r in placements[0].requests} == {("a", "H800"), ("b", "H20")}


def test_a_class_that_stands_in_has_its_own_workers_and_the_others() -> None:
    manager = ResourceManager({"H20": 3})
    placements = manager.place("generation", {"web": "H800", "default": "H20"}, {"H20": 2})
    assert [p.worker for p in placements] == [f"generation-h20-{i}" for i in range(3)]
    assert {(r.domain, r.resource) for r in placements[0].requests} == {
        ("web", "H800"),
        ("default", "H20"),
    }
    manager.release(placements)


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    manager = ResourceManager(compatible={})
    assert [p.granted for p in granted(manager, "H800", 5)] == [CPU] * 5, "there are four"
    gang = granted(manager, "H800", 4)
    assert [p.granted for p in gang] == ["H800"] * 4
    manager.release(gang)


def test_a_worker_may_hold_several_units() -> None:
    manager = ResourceManager({"H20": 3}, compatible={})
    (pair,) = manager.place("generation", {"default": "H20"}, units=2)
    assert (pair.granted, pair.gpus) == ("H20", 2.0)
    (other,) = manager.place("generation", {"default": "H20"}, units=2)
    assert (other.granted, other.gpus) == (CPU, 0.0), "one is left"
    cluster = Cluster([pair], HeteroGen)
    assert cluster.bindings()[0]["gpus"] == 2.0
    cluster.shutdown()
    manager.release([pair, other])
    (again,) = manager.place("generation", {"default": "H20"}, units=3)
    assert again.granted == "H20", "what is released is there again"
    manager.release([again])


def test_a_pool_has_at_least_no_unit() -> None:
    with pytest.raises(SettingsError, match="pool H20 has -1 units"):
        ResourceManager({"H20": -1})
