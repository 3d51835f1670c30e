"""Ray in the process of a test.

A process of pytest runs one Ray at a time. Tests that need the same kind of it share one: fixtures
of `tests.conftest` start a kind of `KINDS` when the first test asks for it, and it runs until a
test needs another one or its group of files has ended. A test whose Ray is no one else's starts it
with `own_ray` or `ray_nodes`. The order of modules in `tests.spread` sees to it that each kind is
started once.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

# A thread that outlives its Ray, as Ray Serve's may, would start another one by a call of its own.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

import ray
from ray.cluster_utils import Cluster as RayCluster

del os.environ["RAY_ENABLE_AUTO_CONNECT"]

_STARTS = 3
"""How often a Ray is started before a test fails."""
_RESERVED = ("GPU", "H800", "H20")
"""What tests reserve of a Ray that they share."""
_RELEASED_S = 60.0
"""Longest time until Ray counts as free what was released [s]."""


class SharedRay:
    """The Ray that the tests of one process of pytest share."""

    def __init__(self) -> None:
        self._cluster = ExitStack()
        self._kind = ""

    def start(self, kind: str) -> None:
        """Start a kind of `KINDS`, unless it runs, and end another one."""
        if self._kind == kind:
            _wait_until_released()
            return
        self.end()
        self._cluster.enter_context(KINDS[kind]())
        self._kind = kind

    def end(self) -> None:
        """End the one that runs, if any."""
        self._kind = ""
        self._cluster.close()


SHARED_RAY = SharedRay()


@contextmanager
def own_ray(**settings: Any) -> Iterator[None]:
    """A Ray of this machine with two CPUs, unless settings of `ray.init` say otherwise."""
    SHARED_RAY.end()
    few: dict[str, Any] = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False}

    def start() -> None:
        with _without_watchers():
            ray.init("local", **few | settings)

    _tried(start, ray.shutdown)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def ray_nodes(*nodes: dict[str, Any]) -> Iterator[RayCluster]:
    """A Ray of several nodes, each with its settings, the first without a dashboard."""
    SHARED_RAY.end()
    started: list[RayCluster] = []

    def start() -> None:
        started.append(cluster := RayCluster())
        with _without_watchers():
            for number, settings in enumerate(nodes):
                quiet = {"include_dashboard": False} if number == 0 else {}
                cluster.add_node(**settings, **quiet)
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()

    def end() -> None:
        ray.shutdown()
        started.pop().shutdown()

    _tried(start, end)
    try:
        yield started[-1]
    finally:
        end()


def _wait_until_released() -> None:
    """Return once Ray counts as free what the tests before have released; it tells nobody."""
    end = time.monotonic() + _RELEASED_S
    while reserved := _reserved():
        assert time.monotonic() < end, f"a test has left reserved for {_RELEASED_S:g} s: {reserved}"
        time.sleep(0.02)


def _reserved() -> str:
    """Return what is reserved of the running Ray, with its actors; empty if nothing is."""
    total, free = ray.cluster_resources(), ray.available_resources()
    taken = {name: total.get(name, 0) - free.get(name, 0) for name in _RESERVED}
    taken = {name: count for name, count in taken.items() if count > 0}
    if not taken:
        return ""
    said = ", ".join(f"{count:g} of {total[name]:g} {name}" for name, count in taken.items())
    return f"{said}; named actors: {ray.util.list_named_actors(all_namespaces=True)}"


def _tried(start: Callable[[], None], end: Callable[[], None]) -> None:
    """Start a Ray, and again if its processes were late, as under much load.

    Ray waits for them for a time that no setting of its own changes.
    """
    for tries_left in reversed(range(_STARTS)):
        try:
            start()
        except Exception:  # Ray raises a bare Exception where its node is late
            end()
            if not tries_left:
                raise
        else:
            return


def _without_watchers() -> AbstractContextManager[None]:
    # Loads torch, which workers that load the module of a test should not.
    from rollart_flow.runner.executors.ray_cluster import without_watchers

    return without_watchers()


def _ray_of_runs() -> AbstractContextManager[object]:
    # Loads torch, which workers that load the module of a test should not.
    from rollart_flow.runner.executors.ray_cluster import ray_cluster

    return ray_cluster()


CLASSES = {"H800": 8.0, "H20": 24.0}
"""Units of the two resource classes of the Ray `classes`, as in ROLLART's Listing 1."""
KINDS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "run": _ray_of_runs,
    "gpus": partial(own_ray, num_gpus=2),
    "classes": partial(own_ray, num_cpus=4, num_gpus=0, resources=CLASSES),
    "nodes": partial(
        ray_nodes,
        {"num_cpus": 2, "num_gpus": 0},
        {"num_cpus": 1, "num_gpus": 4, "resources": {"H800": 4}},
        {"num_cpus": 1, "num_gpus": 0, "resources": {"H20": 3}},
    ),
}
"""Each Ray that tests share: as a run starts it; with two GPUs and no resource class; with two
classes; and of three nodes, where the H800s are GPUs and the H20s only say so."""
