"""The executor on Ray: a process for each actor and worker, and streams of Ray Data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

import pyarrow as pa
import ray

from rollart_flow.operators.ray_data import drain, map_blocks, read_endless, streaming_context
from rollart_flow.operators.sources import NextBlock
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import (
    Placement,
    Remote,
    ResourceManager,
    TypedCluster,
    Worker,
    start_actor,
)
from rollart_flow.resources.handles import WorkerHandle
from rollart_flow.resources.local import has_async_methods
from rollart_flow.resources.nodes import beside_driver
from rollart_flow.runner.device_turns import check_one_class
from rollart_flow.runner.executors.base import Executor, OperatorStage, StreamSource
from rollart_flow.runner.executors.gcs_watch import GcsWatch
from rollart_flow.runner.executors.liveness import gone
from rollart_flow.runner.executors.ray_cluster import ray_cluster
from rollart_flow.runner.executors.rolling_producer import RollingProducer
from rollart_flow.runner.settings import CONCURRENT_CALLS

if TYPE_CHECKING:
    from rollart_flow.trainers.worker import TrainWorker

A = TypeVar("A")
P = ParamSpec("P")
W = TypeVar("W", bound=Worker)


_PATIENCE_S = 20.0
"""How long the GCS of a shared cluster may be away; after a minute Ray ends this process [s]."""
SINGLE_RESTARTS = 10
"""How often Ray restarts the buffer and the coordinator alone, each; then all processes restart."""


class RayExecutor(Executor):
    """Runs on the Ray cluster at an address, or on a local one that ends with the context."""

    _watch: GcsWatch | None = None

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            self.nodes_may_join = entered.enter_context(
                ray_cluster(self._address, left=lambda: self._abandoned)
            )
            entered.callback(self._end_watch)
            self._leave = entered.pop_all()
        return self

    def on_lost(self, tell: Callable[[str], object]) -> None:
        self._end_watch()
        address = ray.get_runtime_context().gcs_address
        said = f"the GCS of Ray at {address} is gone, and the cluster with it"
        patience_s = _PATIENCE_S if self.nodes_may_join else 0.0
        self._watch = GcsWatch(address, lambda: tell(said), patience_s)

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave.__exit__(kind, error, trace)

    def check(self, pipeline: Pipeline) -> None:
        check_one_class(pipeline)  # all else falls back to what the cluster has

    def resources(self) -> ResourceManager:
        return ResourceManager()

    def start(self, actor_class: Callable[P, A]) -> Callable[P, Remote[A]]:
        return start_actor(
            actor_class,
            num_cpus=0,
            max_concurrency=CONCURRENT_CALLS,
            label_selector=beside_driver(),
            max_restarts=SINGLE_RESTARTS,
            max_task_retries=-1,
        )

    def cluster(
        self,
        placements: Sequence[Placement],
        worker_class: type[W],
        arguments: Mapping[str, Any],
        *,
        max_restarts: int = 1,
    ) -> TypedCluster[W]:
        return TypedCluster(
            placements,
            worker_class,
            arguments=arguments,
            max_concurrency=CONCURRENT_CALLS if has_async_methods(worker_class) else 1,
            max_restarts=max_restarts,
        )

    def stream(self, name: str, next_block: NextBlock, stage: OperatorStage) -> Iterator[pa.Table]:
        with streaming_context():
            blocks = map_blocks(
                read_endless(name, next_block),
                stage.operator,
                *stage.arguments,
                concurrency=1,
                here=True,
            )
        return drain(blocks)

    def produce(self, name: str, source: StreamSource, stage: OperatorStage) -> Iterator[int]:
        def execute(number: int, limit: int) -> Iterator[int]:
            # No row is read from a later part before its operators have started.
            with streaming_context(ready_first=number > 0):
                blocks = map_blocks(
                    read_endless(name, source.part(number, limit)),
                    stage.operator,
                    *stage.arguments,
                    concurrency=math.ceil(stage.in_flight / stage.workers),
                    workers=stage.workers,
                    nodes=stage.nodes,
                )
            return (block.num_rows for block in drain(blocks))

        chain = RollingProducer(execute, source.more, source.abandon, in_flight=stage.in_flight)
        return chain.run()

    def gone(
        self, actors: Mapping[str, Remote[Any]], ranks: Sequence[WorkerHandle[TrainWorker]]
    ) -> tuple[str, ...]:
        return gone(actors, ranks)
