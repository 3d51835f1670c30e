"""Handles: typed calls of one actor. mypy checks the types that `assert_type` names."""

import asyncio
from typing import Any, Protocol, assert_type

import pytest
import ray

from rollart_flow.resources import (
    Placement,
    Remote,
    TypedCluster,
    Worker,
    WorkerHandle,
    register,
    start_actor,
)
from rollart_flow.resources.local import early


class Buffered(Protocol):
    """A port of the control plane."""

    async def put(self, item: str) -> int:
        """Add an item; return the number of items."""


class Store:
    """An actor that a run has one of."""

    def __init__(self, first: str) -> None:
        self._items = [first]

    @register("rank_zero")
    async def put(self, item: str) -> int:
        """Add an item; return the number of items."""
        self._items.append(item)
        return len(self._items)

    @register("rank_zero")
    async def refuse(self) -> None:
        """Raise an error."""
        raise KeyError("nothing")


class Adder(Worker):
    """A worker of a cluster."""

    @register()
    def add(self, number: int) -> int:
        """Add the worker's rank."""
        return number + self.placement.rank

    @register("first_result")
    async def name(self) -> str:
        """Return the worker's name."""
        return self.placement.worker


pytestmark = pytest.mark.usefixtures("shared_ray")


def ask_without_end(store: Remote[Store]) -> None:
    while True:
        ray.get(store.answer())


def test_an_actor_is_called_with_its_own_arguments_and_results() -> None:
    store = start_actor(Store, num_cpus=0)("a")
    assert_type(store, Remote[Store])
    assert assert_type(store.call.put("b"), int) == 2
    assert ray.get(assert_type(store.call.put.start("c"), ray.ObjectRef[int])) == 3
    assert assert_type(store.call.put.begin("d")(), int) == 4
    put, refused = store.call.put.start("e"), store.call.refuse.start()
    ray.wait([put, refused], num_returns=2)
    assert (early(put), early(refused)) == (5, None)
    with pytest.raises(KeyError):
        store.call.refuse()
    with pytest.raises(TypeError):
        store.call.put(1, 2)  # type: ignore[call-arg, arg-type]
    with pytest.raises(AttributeError):
        store.call.get()  # type: ignore[attr-defined]
    store.kill()
    with pytest.raises(ray.exceptions.ActorDiedError):
        ask_without_end(store)  # a call may still overtake the end of the process


def test_an_actor_is_a_port_of_the_control_plane() -> None:
    store = start_actor(Store, num_cpus=0)("a")
    port: Buffered = store.port

    async def both() -> tuple[int, int]:
        return await port.put("b"), await store.call.put.aio("c")

    assert asyncio.run(both()) == (2, 3)

    @ray.remote(num_cpus=0)
    def elsewhere(travelled: Remote[Store]) -> int:
        return travelled.call.put("d")

    sent: Any = elsewhere
    assert ray.get(sent.remote(store)) == 4, "a handle travels"
    store.kill()


def test_a_clusters_calls_have_the_types_that_their_modes_declare() -> None:
    placements = [Placement(name, "adding", "CPU") for name in ("a", "b")]
    cluster = TypedCluster(placements, Adder)
    assert assert_type(cluster.call.add(5), list[int]) == [5, 6]
    assert assert_type(cluster.call.name(), str) == "a"
    assert asyncio.run(cluster.call.name.aio()) == "a"
    assert assert_type(cluster.call.add.begin(5)(), list[int]) == [5, 6], "all workers"
    assert ray.get(cluster.call.add.start(5)) == 5, "the first worker alone"
    second: WorkerHandle[Adder] = cluster.workers[1]
    assert ray.get(assert_type(second.call.add.start(5), ray.ObjectRef[int])) == 6
    assert ray.get(second.call.name.start()) == "b", "whatever the mode"
    with pytest.raises(AttributeError, match="no public method 'subtract'"):
        cluster.call.subtract(1)  # type: ignore[attr-defined]
    cluster.shutdown()
