"""Ray in the process of a test.

A process of pytest runs one Ray at a time. Tests of runs share one (`shared_ray`, a fixture of
`tests.conftest`), which starts when the first of them asks for it. A test that needs other
resources starts its own with `own_ray` or `ray_nodes`, which end the shared one first; the order
of modules in `tests.conftest` sees to it that this happens once.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import ray
from ray._private.node import Node
from ray.cluster_utils import Cluster as RayCluster

_STARTS = 3
"""How often a Ray is started before a test fails."""


class SharedRay:
    """The Ray of this machine that the tests of one process of pytest share."""

    def __init__(self) -> None:
        self._cluster = ExitStack()
        self._running = False

    def start(self) -> None:
        """Start it, unless it runs."""
        # Loads torch, which workers that load the module of a test should not.
        from rollart_flow.runner.executors.ray_cluster import ray_cluster

        if not self._running:
            self._cluster.enter_context(ray_cluster())
            self._running = True

    def end(self) -> None:
        """End it, if it runs."""
        if self._running:
            self._running = False
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

    def end() -> None:
        ray.shutdown()
        started.pop().shutdown()

    _tried(start, end)
    try:
        yield started[-1]
    finally:
        end()


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


@contextmanager
def _without_watchers() -> Iterator[None]:
    """A Ray that is started here lacks three processes, which are half of what its start takes.

    They forward logs to the driver, ask a cloud for nodes, and serve the dashboard: no test of a
    run has these. The Ray that tests share is started as a run starts it.
    """
    with ExitStack() as patches:
        for starts in ("start_log_monitor", "start_monitor", "start_api_server"):
            patches.enter_context(patch.object(Node, starts, lambda *_, **__: None))
        yield
