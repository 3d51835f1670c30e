"""Moves generation to the requested resource class once it has room (ROLLART section 5.2).

If a resource class is full or absent when a run starts, workers of another class serve as
fallbacks. A placement group then waits, without polling, until Ray can reserve the units of the
requested class. Invariant: the fallback workers serve until the new ones do, and their requests in
flight continue with the tokens generated so far; if the new workers cannot start, the fallback
workers continue to serve.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.protocols import Emit
from rollart_flow.engines.worker import PREFIXES, EngineWorker
from rollart_flow.errors import RunFailedError
from rollart_flow.operators.remote import RemoteCommands
from rollart_flow.resources import CPU, Placement, Request, TypedCluster, WorkerHandle
from rollart_flow.resources.classes import GPU
from rollart_flow.resources.manager import bundle_of, free_gangs
from rollart_flow.schema import to_table
from rollart_flow.types import Event, EventKind, Reason


@dataclass(frozen=True, slots=True)
class Spawning:
    """Settings for starting inference workers."""

    arguments: Mapping[str, Any]
    max_concurrency: int
    workers: Mapping[str, int]
    """Number of workers for each resource class, by role."""
    units: int
    """Units of its resource class for each worker."""


class Rebinding:
    """Waits for the requested resource classes that fallback workers serve in place of.

    Args:
        handles: inference workers by name; new and changed workers are stored in it.
        engines: engine group that commands the workers.
        spawning: settings for starting more workers.
        emit: function that reports an event for each move.
        record: function that records rows of `bindings`.
    """

    def __init__(
        self,
        handles: dict[str, WorkerHandle[EngineWorker]],
        engines: EngineGroup,
        spawning: Spawning,
        emit: Emit,
        record: Callable[[pa.Table], None],
    ) -> None:
        self._handles = handles
        self._engines = engines
        self._spawning = spawning
        self._emit = emit
        self._record = record

    async def run(self) -> None:
        """Rebind every resource class that has fallback workers; return once none is left."""
        missing = {
            (handle.placement.role, request.resource): handle.placement
            for handle in self._handles.values()
            for request in handle.placement.requests
            if request.resource not in (handle.placement.granted, CPU)
        }
        async with asyncio.TaskGroup() as classes:
            for (_, wanted), stand_in in missing.items():
                classes.create_task(self._rebind(wanted, stand_in))

    async def _rebind(self, wanted: str, stand_in: Placement) -> None:
        role, cpus = stand_in.role, stand_in.cpus
        count = self._spawning.workers[role]
        units = self._spawning.units
        group, devices = await _reserved(wanted, units, cpus, count)
        requests = tuple(r for r in stand_in.requests if r.resource == wanted)
        there = [handle.placement for handle in self._handles.values()]
        first = sum(p.role == role and p.granted == wanted for p in there)
        placements = [
            Placement(
                f"{PREFIXES[role]}-{wanted.lower()}-{first + bundle}",
                role,
                wanted,
                requests,
                cpus,
                float(units),
                group=group,
                bundle=bundle,
                devices=devices,
            )
            for bundle in range(count)
        ]
        cluster = TypedCluster(
            placements,
            EngineWorker,
            arguments=self._spawning.arguments,
            max_concurrency=self._spawning.max_concurrency,
        )
        try:
            rows = await asyncio.to_thread(cluster.bindings)
        except RunFailedError as error:
            cluster.shutdown()
            detail = {"requested": wanted, "error": str(error)}
            self._emit(Event(EventKind.CRASH, wanted, reason=Reason.WORKER_LOST, detail=detail))
            return
        self._handles.update((handle.name, handle) for handle in cluster.workers)
        await self._move(role, wanted, cluster.workers)
        self._record(to_table("bindings", rows))

    async def _move(
        self, role: str, wanted: str, new: Sequence[WorkerHandle[EngineWorker]]
    ) -> None:
        """Let the new workers serve a class; fallback workers keep their other classes, or end."""
        stood_in = [
            handle
            for handle in self._handles.values()
            if handle.placement.role == role
            and wanted != handle.placement.granted
            and wanted in handle.placement.stands_for
        ]
        narrowed = {handle.name: _without(handle, wanted) for handle in stood_in}
        self._handles.update(narrowed)
        keep = {name: bool(handle.placement.requests) for name, handle in narrowed.items()}
        await self._engines.replace(keep, [RemoteCommands(handle) for handle in new])
        ended = [handle for handle in stood_in if not keep[handle.name]]
        for handle in ended:
            handle.kill()
        free_gangs([handle.placement for handle in ended])
        detail = {
            "requested": wanted,
            "replaced": sorted({handle.placement.granted for handle in stood_in}),
            "workers": [handle.name for handle in new],
        }
        self._emit(Event(EventKind.REBIND, wanted, detail=detail))


async def _reserved(wanted: str, units: int, cpus: float, count: int) -> tuple[Any, float]:
    """Wait until a class has room; return (placement group, number of GPUs of each bundle).

    The GPUs behind the units of a class are known only once its nodes have joined. If the bundle
    differs by then from the one requested, the group is requested again.
    """
    while True:
        bundle = await asyncio.to_thread(bundle_of, wanted, units, cpus)
        import ray

        group = ray.util.placement_group([bundle] * count, strategy="PACK")
        try:
            await group.ready()
            now = await asyncio.to_thread(bundle_of, wanted, units, cpus)
        except BaseException:
            ray.util.remove_placement_group(group)
            raise
        if now == bundle:
            return group, bundle.get(GPU, 0.0)
        ray.util.remove_placement_group(group)


def _without(handle: WorkerHandle[EngineWorker], wanted: str) -> WorkerHandle[EngineWorker]:
    """Return a worker's handle without its requests for one resource class."""
    left: tuple[Request, ...] = tuple(
        request for request in handle.placement.requests if request.resource != wanted
    )
    return replace(handle, placement=replace(handle.placement, requests=left))
