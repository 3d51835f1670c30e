"""ROLLART's Listing 1, as printed, on a Ray with eight H800s and twenty-four H20s.

`LISTING` is the text of the paper (section 5.1) without its line numbers. The tests change only the
imports, the placeholder of the endpoint's address, and one misprint: line 14 prints
`{"H20", list(...)}`, a set of a list, for the mapping `{"H20": list(...)}`. Line 22 reads a
`prompt` that the listing defines nowhere; here it is a name of the listing's module.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rollart_flow.resources import Cluster, Placement, ResourceManager
from rollart_flow.types import Trajectory
from tests.local_ray import CLASSES
from tests.serverless.servers import serving

LISTING = """
import rollart.distributed as rdist
from rdist.worker import ActorTrainCls, ActorGenCls,
  RewardCls
from rdist import ResourceManager as RM

# 1. Single Controller Example
class MyActorTrain(ActorTrainCls):
    @rdist.register(mode="execute_all")
    def compute_gradients(self, input_tensor):
        ...

# 2. Define actor_gen on heterogeneous GPUs
# 2.1 heterogeneous GPU allocation.
gen_rm=RM( {"H800": list(range(0, 8))},
           {"H20", list(range(8, 32))})
# 2.2 hardware affinity mapping
class HeteroActorGen(ActorGenCls):
    @rdist.hw_mapping(
        hw_affinity={"FrozenLake": "H800", "default": "H20"}
    )
    def generate(self, input_ids:List[int],
               tag_name:str="default"):
        return self.model.process(prompt)

# 3. Define a serverless reward computation func
class ServerlessRewardWorker(RewardCls):
    @rdist.register_serverless(
        attribute='reward_proxy',
        serverless_url='fc://xxx.xxx')
    def compute_rewards(self, traj: list):
        prompt = f"Evaluate the trajectory:{traj}"
        return ray.get(self.reward_proxy(prompt))
"""
PRINTED_IMPORTS = LISTING[: LISTING.index("# 1.")]
IMPORTS = """
from typing import List

import ray

import rollart_flow.resources as rdist
from rollart_flow.resources import ResourceManager as RM
from rollart_flow.resources.worker import ActorGenCls, ActorTrainCls, RewardCls

"""
PROMPT = "the prompt of line 22"


class Model:
    """A model that only says where it runs and what it was asked."""

    def __init__(self, hardware: str) -> None:
        self._hardware = hardware

    def process(self, prompt: str) -> tuple[str, str]:
        """The class of the worker, and the prompt."""
        return self._hardware, prompt


async def length(trajectory: Trajectory) -> float:
    """An endpoint's score: the length of its message."""
    return float(len(trajectory.task))


@contextmanager
def endpoint() -> Iterator[str]:
    """A reward function behind an HTTP address of this machine; yields HOST:PORT."""
    started: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(length) as url:
            started.append(url)
            ready.set()
            await asyncio.to_thread(over.wait)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert ready.wait(30)
        yield started[0].removeprefix("http://")
    finally:
        over.set()
        server.join()


@pytest.fixture(scope="module")
def listing(ray_of_classes: None) -> Iterator[dict[str, Any]]:
    """The names that the listing defines, and `address` of its endpoint."""
    with endpoint() as address:
        text = LISTING.replace(PRINTED_IMPORTS, IMPORTS)
        text = text.replace('{"H20", list', '{"H20": list').replace("xxx.xxx", address)
        # The module of these classes cannot be imported, so that Ray sends them by value.
        names: dict[str, Any] = {"__name__": "listing_1", "prompt": PROMPT}
        exec(compile(text, "Listing 1", "exec"), names)
        yield names


def test_execute_all_broadcasts_to_the_training_workers(listing: dict[str, Any]) -> None:
    cluster = Cluster(ResourceManager({"H800": 8}), listing["MyActorTrain"], units=4)
    placed = [(each.placement.granted, each.placement.gpus) for each in cluster.workers]
    assert placed == [("H800", 4.0)] * 2
    assert cluster.compute_gradients([0.5]) == [None, None], "`...` returns None on each worker"
    cluster.shutdown()


def test_the_resource_manager_takes_several_pools_and_generation_follows_the_tag(
    listing: dict[str, Any],
) -> None:
    manager: ResourceManager = listing["gen_rm"]
    pools = manager.pools()
    assert {name: pools[name].total for name in CLASSES} == CLASSES

    printed: Any = listing["HeteroActorGen"]

    class Generates(printed):  # type: ignore[misc]
        def __init__(self, placement: Placement) -> None:
            super().__init__(placement)
            self.model = Model(placement.granted)

    cluster = Cluster(manager, Generates, units=8)
    placed = [(each.placement.granted, each.placement.gpus) for each in cluster.workers]
    assert placed == [("H800", 8.0), *[("H20", 8.0)] * 3]
    assert cluster.generate([1, 2], tag_name="FrozenLake") == ("H800", PROMPT)
    assert cluster.generate([1, 2], "WebShop") == ("H20", PROMPT)
    assert cluster.generate([1, 2]) == ("H20", PROMPT)
    cluster.shutdown()


def test_rewards_are_computed_by_the_endpoint(listing: dict[str, Any]) -> None:
    cluster = Cluster(ResourceManager(), listing["ServerlessRewardWorker"])
    asked = '{"prompt": "Evaluate the trajectory:[1, 2]"}'
    assert cluster.compute_rewards([1, 2]) == len(asked)
    assert cluster.compute_rewards(traj=[1, 2, 3]) == len(asked) + len(", 3")
    cluster.shutdown()
