"""SIGKILL of a raylet, and of the head with the GCS, on a Ray cluster of three raylets."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import psutil

from rollart_flow.store import RunStatus
from rollart_flow.types import EventKind
from tests.chaos.faults.processes import gcs_of_driver, kill, of_clusters
from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import UNEVALUATED, Place, ended, last_line

ROW = "SIGKILL of a raylet, of the GCS"
STEPS = 20
ENDS_S = 60
HEAD = "ray::BufferActor"
"""A process that is on the driver's node."""
HARDWARE = UNEVALUATED.replace(
    "max_tokens=6, engine_workers=<engine_workers>",
    'max_tokens=6, hw_affinity={"coin": "H800", "default": "<default>"}, engine_timeout_s=16',
)
TRAINER = {"default": "H800"}
"""All engines on the node with an H800, so that the trainer is on the one with an H20."""
ENGINES = {"default": "H20"}
"""Engines on both nodes, so that those of one can go on for the other's."""
NODES: tuple[dict[str, Any], ...] = (
    {"num_cpus": 2},
    {"num_cpus": 1, "resources": {"H800": 1}},
    {"num_cpus": 1, "resources": {"H20": 1}},
)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Place, Any]]:
    """A Ray cluster whose processes note what they see, and a place whose runs use it."""
    import ray  # which the other scenarios do not need in this process

    from tests.local_ray import ray_nodes

    place = Place(folder, executor="ray")
    with patch.dict(os.environ, place.environment), ray_nodes(*NODES) as nodes:
        nodes.wait_for_nodes()
        place.environment["RAY_ADDRESS"] = nodes.address
        ray.shutdown()  # a process that is connected ends a minute after its head
        nodes.global_state.disconnect()
        yield place, nodes


def raylet_of(title: str) -> int:
    """The raylet that started the process with a title."""
    above = [
        each
        for each in psutil.Process(min(of_clusters(title))).parents()
        if each.name() == "raylet"
    ]
    return int(above[0].pid)


def kill_node(place: Place, raylet: int, title: str) -> None:
    """Kill a raylet and all processes that it started, as the end of their machine would."""
    started = psutil.Process(raylet).children(recursive=True)
    kill(place.record, raylet, f"node of {title}")
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def node_dies(folder: Path, title: str, values: Mapping[str, object]) -> Held:
    """Kill the node of a process; the run goes on, or is resumed."""
    with cluster(folder) as (place, _):
        with place.run(HARDWARE, steps=STEPS, values=values) as driver:
            place.wait_for_tenth(driver, 2)
            raylet = raylet_of(title)
            assert raylet != raylet_of(HEAD), f"{title} is on the driver's node"
            kill_node(place, raylet, title)
            code = ended(driver, 0, 1)
        if code:
            place.finish()
    if code:
        return replace(place.held(), note=f"stopped: {last_line(driver)}")
    crashes = place.opened().events.filter(pl.col("kind") == EventKind.CRASH).collect()
    assert crashes.height, f"no event tells that a process died:\n{driver.said}"
    return replace(place.held(), note=f"went on; died: {', '.join(crashes['subject'])}")


@scenario(ROW, limit_s=300)
def raylet_of_engines(folder: Path) -> Held:
    return node_dies(folder, "ray::EngineWorker", ENGINES)


@scenario(ROW, limit_s=300)
def raylet_of_the_trainer(folder: Path) -> Held:
    return node_dies(folder, "ray::TrainWorker", TRAINER)


@scenario(ROW, limit_s=300)
def gcs_alone(folder: Path) -> Held:
    """The GCS of a local Ray dies: the run ends in time with one line that says how to go on."""
    place = Place(folder, executor="ray")
    with place.run(UNEVALUATED, steps=100) as driver:
        place.wait_for_tenth(driver, 1)
        kill(place.record, gcs_of_driver(driver), "GCS")
        began = time.monotonic()
        code = driver.end()
        took_s = time.monotonic() - began
        said = last_line(driver)
        left = driver.wait_until_all_are_gone(ENDS_S)
    assert code == 1, driver.said
    assert said.startswith("error: "), driver.said
    assert f"rollart resume {place.uri}" in said, driver.said
    assert took_s < ENDS_S, f"it took {took_s:.0f} s"
    assert not left, f"processes {left} are left"
    assert place.opened().info.status is RunStatus.FAILED
    place.finish()
    return replace(place.held(), note=f"ended after {took_s:.1f} s; {said}")


@scenario(ROW, limit_s=300)
def head_with_the_gcs(folder: Path) -> Held:
    """The whole head dies: the driver ends in time, and the run is resumed without one."""
    with (
        cluster(folder) as (place, nodes),
        place.run(HARDWARE, steps=STEPS, values=TRAINER) as driver,
    ):
        place.wait_for_tenth(driver, 2)
        nodes.head_node.kill_gcs_server(check_alive=False)
        kill(place.record, raylet_of(HEAD), "head")
        driver.end()
        said = last_line(driver)
    assert f"rollart resume {place.uri}" in said, driver.said
    place.finish()
    return replace(place.held(), note=f"stopped: {said}")
