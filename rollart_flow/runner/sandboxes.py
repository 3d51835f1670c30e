"""The pools of boxes of a run: their placement, start and end."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from rollart_flow.errors import RollartError
from rollart_flow.operators.buffer import BufferActor
from rollart_flow.operators.sandboxes import SandboxWorker
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import Placement, Remote, ResourceManager, TypedCluster
from rollart_flow.resources.local import wait
from rollart_flow.resources.reasons import failures
from rollart_flow.runner.executors import Executor
from rollart_flow.sandbox.boxes import default_variant
from rollart_flow.sandbox.pool_demand import PoolSettings

_RESTARTS = 10
"""How often Ray restarts a pool of boxes; each time only the attempts that hold its boxes fail."""


def place_sandboxes(pipeline: Pipeline, manager: ResourceManager) -> list[Placement]:
    """Place the workers that make boxes, the same number for each requested resource class.

    There are none if no domain opens boxes. Those on CPUs go to different nodes if they can.
    """
    names, settings = pipeline.pooled_domains, pipeline.sandboxes
    if not names:
        return []
    placements = manager.place(
        SandboxWorker.role,
        {name: settings.sandbox_class(name) for name in names},
        settings.sandbox_workers,
        stand_ins=settings.sandbox_stand_ins(),
    )
    return [replace(each, spread=each.group is None) for each in placements]


def start_sandboxes(
    executor: Executor,
    pipeline: Pipeline,
    uri: str,
    buffer: Remote[BufferActor],
    placements: Sequence[Placement],
) -> TypedCluster[SandboxWorker] | None:
    """Start the pools of boxes without waiting for them; return None if there are none."""
    if not placements:
        return None
    arguments = {"run": uri, "settings": _pool_settings(pipeline), "buffer": buffer}
    return executor.cluster(placements, SandboxWorker, arguments, max_restarts=_RESTARTS)


def _pool_settings(pipeline: Pipeline) -> PoolSettings:
    settings = pipeline.sandboxes
    return PoolSettings(
        variant=settings.sandbox or default_variant(),
        maximum=settings.max_sandboxes,
        minimum=settings.min_sandboxes,
        failures=settings.max_sandbox_failures,
    )


def end_sandboxes(sandboxes: TypedCluster[SandboxWorker], limit_s: float) -> None:
    """End all boxes and have their rows committed, as far as the pools answer in time.

    Attempts that still have boxes fail.
    """
    ends = [worker.call.drain.start() for worker in sandboxes.workers]
    with suppress(TimeoutError, *failures(RollartError)):
        wait(ends, "end of the sandboxes", limit_s)
