"""Clusters: workers as Ray actors, called as one."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from rollart_flow.errors import RunFailedError, StoreError
from rollart_flow.resources import CPU, Cluster, Placement, Request, Worker, register
from rollart_flow.resources.reasons import is_ours, reason

H20 = "H20"


class Counter(Worker):
    """Counts; its constructor may fail."""

    def __init__(self, placement: Placement, *, start: int = 0, fail: str = "") -> None:
        super().__init__(placement)
        if fail:
            raise ValueError(fail)
        self.count = start

    def add(self, number: int, *, times: int = 1) -> str:
        """Add a number some times."""
        self.count += number * times
        return f"{self.placement.worker}={self.count}"

    @register("first_result")
    def reset(self) -> str:
        """Start from 0 again."""
        self.count = 0
        return self.placement.worker

    def stumble(self) -> None:
        """Raise an error of somebody else."""
        raise KeyError("nothing")

    def refuse(self) -> None:
        """Raise an error of this library."""
        raise StoreError("the disk is full")

    @register(retries=-1)
    def pid(self) -> int:
        """Its process; asked for again where that has died meanwhile."""
        return os.getpid()


class Caller:
    """Calls a cluster that another process started."""

    def pid(self, cluster: Cluster[Counter]) -> int:
        """Process of the cluster's only worker."""
        (pid,) = cluster.pid()
        return int(pid)


def counters(*names: str, **arguments: object) -> Cluster[Counter]:
    placements = [Placement(name, "counting", CPU) for name in names]
    return Cluster(placements, Counter, arguments=arguments)


@pytest.fixture(scope="module", autouse=True)
def machine(ray_of_classes: None) -> Iterator[None]:
    """A Ray of this machine that has H20s, besides its CPUs."""
    # Loads torch, which workers that load this module should not.
    from rollart_flow.runner.executors.ray_cluster import ray_cluster

    with ray_cluster():  # uses what is connected, and leaves it
        yield


def test_one_call_reaches_every_worker_in_order() -> None:
    cluster = counters("a", "b", start=1)
    assert cluster.add(2, times=3) == ["a=7", "b=7"]
    assert cluster.execute_all("add", 1) == ["a=8", "b=8"]
    assert asyncio.run(cluster.add.aio(1)) == ["a=9", "b=9"]
    assert cluster.add.__doc__ == "Add a number some times."
    cluster.shutdown()


def test_first_result_runs_on_every_worker_and_returns_what_the_first_one_returned() -> None:
    cluster = counters("a", "b", start=1)
    assert cluster.reset() == "a"
    assert cluster.add(2) == ["a=2", "b=2"], "both were reset"
    assert asyncio.run(cluster.reset.aio()) == "a"
    cluster.shutdown()


def test_a_cluster_travels_to_those_who_call_it() -> None:
    cluster = counters("a")

    @ray.remote(num_cpus=0)
    def call(travelled: Cluster[Counter]) -> list[str]:
        added: list[str] = travelled.add(5)
        return added

    assert ray.get(call.remote(cluster)) == ["a=5"]
    cluster.shutdown()


@pytest.mark.parametrize("name", ["substract", "_hidden", "count"])
def test_what_the_workers_do_not_have_the_cluster_has_not_either(name: str) -> None:
    cluster = counters()
    with pytest.raises(AttributeError, match=f"Cluster has no method '{name}'"):
        getattr(cluster, name)


def test_a_worker_that_cannot_start_says_which_and_why() -> None:
    with pytest.raises(RunFailedError) as caught:
        counters("bad", fail="no such model").wait_until_ready()
    assert str(caught.value) == "worker bad cannot start: ValueError: no such model"


def test_bindings_say_who_asked_for_what_and_got_which() -> None:
    requests = (Request("web", "H800"), Request("default", H20))
    cluster = Cluster([Placement("w", "generation", H20, requests)], Counter)
    web, default = cluster.bindings()
    assert (web["worker"], web["domain"], web["requested"], web["granted"]) == (
        "w", "web", "H800", H20,
    )  # fmt: skip
    assert (web["fallback"], default["fallback"]) == (True, False)
    assert web["node"] == ray.get_runtime_context().get_node_id()
    cluster.shutdown()


def test_a_killed_worker_is_started_again_once() -> None:
    cluster = counters("a", start=4)
    (first,) = cluster.pid()
    os.kill(first, signal.SIGKILL)
    (second,) = cluster.pid()
    assert first != second
    assert cluster.add(1) == ["a=5"], "it starts as it did the first time"
    os.kill(second, signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        cluster.pid()
    assert reason(caught.value) == "The actor died unexpectedly before finishing this task."


def test_others_who_call_a_killed_worker_wait_for_it_too() -> None:
    cluster = counters("a")
    remote: Any = ray.remote(Caller)
    caller = remote.remote()  # a process that has only the handles
    pid = ray.get(caller.pid.remote(cluster))
    os.kill(pid, signal.SIGKILL)
    assert ray.get(caller.pid.remote(cluster)) != pid
    cluster.shutdown()


def test_an_error_of_ours_is_found_inside_what_ray_raises() -> None:
    cluster = counters("a")
    with pytest.raises(StoreError) as caught:
        cluster.refuse()
    assert "\n" in str(caught.value), "Ray's wrapper says more than one line"
    assert reason(caught.value) == "the disk is full"
    assert is_ours(caught.value)
    with pytest.raises(KeyError) as foreign:
        cluster.stumble()
    assert reason(foreign.value) == "KeyError: 'nothing'"
    assert not is_ours(foreign.value)
    cluster.shutdown()
