"""Rebinding where a class has come that the run cannot use after all."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest
import ray

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.engines.worker import EngineWorker
from rollart_flow.models.policy import Policy
from rollart_flow.operators.rebinding import Rebinding, Spawning
from rollart_flow.resources import CPU, Placement, Request, WorkerHandle
from rollart_flow.types import EventKind, Reason
from tests.control.workers import Commanded
from tests.dst.log import EventLog

STAND_IN = Placement("engine-cpu-0", "generation", CPU, (Request("default", "H800"),))

pytestmark = pytest.mark.usefixtures("ray_of_classes")


async def test_those_that_stand_in_serve_on_where_the_workers_that_came_cannot_start() -> None:
    arguments: dict[str, Any] = {
        "run": "/nowhere", "policy": Policy.tiny(), "folder": "/nowhere", "weights": "local",
        "weights_uri": "", "seed": 0,
    }  # fmt: skip
    log, stands_in = EventLog(), Commanded(STAND_IN.worker)
    bound: list[pa.Table] = []
    before = ray.util.placement_group_table().keys()
    fleet = EngineGroup([stands_in], 0, log)
    handles: dict[str, WorkerHandle[EngineWorker]] = {STAND_IN.worker: WorkerHandle(STAND_IN, None)}
    spawning = Spawning(arguments, max_concurrency=8, workers={"generation": 1}, units=1)

    await asyncio.wait_for(Rebinding(handles, fleet, spawning, log, bound.append).run(), 120)

    (crash,) = log.of(EventKind.CRASH)
    assert (crash.subject, crash.reason) == ("H800", Reason.WORKER_LOST)
    assert "worker engine-h800-0 cannot start: " in str(crash.detail["error"])
    assert (list(handles), fleet.workers, bound) == ([STAND_IN.worker], (stands_in,), [])
    assert stands_in.drawing
    groups = ray.util.placement_group_table()
    (added,) = groups.keys() - before
    assert groups[added]["state"] == "REMOVED"
