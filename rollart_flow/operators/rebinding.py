"""Brings generation to the class that was asked for, once that has room (ROLLART section 5.2).

A class that was full or gone when a run started is stood in for by another one. Its units are
reserved as soon as Ray can give them: a placement group waits for them, and nobody polls. The
invariant: the workers that stood in serve until the new ones do, and what they had in flight goes
on with the tokens that it has; where the new ones cannot start, they serve on.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import ray

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.protocols import Emit
from rollart_flow.engines.worker import PREFIXES, EngineWorker
from rollart_flow.errors import RunFailedError
from rollart_flow.operators.remote import RemoteCommands
from rollart_flow.resources import CPU, Cluster, Placement, Request, WorkerHandle
from rollart_flow.resources.classes import GPU
from rollart_flow.resources.manager import bundle_of, free_gangs
from rollart_flow.schema import to_table
from rollart_flow.types import Event, EventKind, Reason


@dataclass(frozen=True, slots=True)
class Spawning:
    """How an inference worker is made."""

    arguments: Mapping[str, Any]
    max_concurrency: int
    workers: Mapping[str, int]
    """For each class, by role."""
    units: int
    """Of its class, for each worker."""


class Rebinding:
    """Waits for the classes that others stand in for.

    Args:
        handles: inference workers by name; those that come and change are put there.
        fleet: commands them.
        spawning: how more of them are made.
        emit: where each move is reported.
        record: takes rows of `bindings`.
    """

    def __init__(
        self,
        handles: dict[str, WorkerHandle],
        fleet: EngineGroup,
        spawning: Spawning,
        emit: Emit,
        record: Callable[[pa.Table], None],
    ) -> None:
        self._handles = handles
        self._fleet = fleet
        self._spawning = spawning
        self._emit = emit
        self._record = record

    async def run(self) -> None:
        """Rebind every class that another one stands in for; returns once none is left."""
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
        cluster = Cluster(
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

    async def _move(self, role: str, wanted: str, new: Sequence[WorkerHandle]) -> None:
        """The new workers serve; those that stood in serve others only, or end."""
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
        await self._fleet.replace(keep, [RemoteCommands(handle) for handle in new])
        ended = [handle for handle in stood_in if not keep[handle.name]]
        for handle in ended:
            ray.kill(handle.actor)
        free_gangs([handle.placement for handle in ended])
        detail = {
            "requested": wanted,
            "replaced": sorted({handle.placement.granted for handle in stood_in}),
            "workers": [handle.name for handle in new],
        }
        self._emit(Event(EventKind.REBIND, wanted, detail=detail))


async def _reserved(wanted: str, units: int, cpus: float, count: int) -> tuple[Any, float]:
    """(placement group, GPUs of each bundle) once a class has room. Which GPUs its units are shows
    when its nodes are there, so that a group that was asked for before is asked for again."""
    while True:
        bundle = await asyncio.to_thread(bundle_of, wanted, units, cpus)
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


def _without(handle: WorkerHandle, wanted: str) -> WorkerHandle:
    """A worker that serves a class no more."""
    left: tuple[Request, ...] = tuple(
        request for request in handle.placement.requests if request.resource != wanted
    )
    return replace(handle, placement=replace(handle.placement, requests=left))
