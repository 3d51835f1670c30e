"""The executor in this process, without Ray: for laptops, notebooks, breakpoints and tests.

The actors with async methods (buffer, coordinator, engines) and the environments share one event
loop in a thread; the trainer and the batches have threads of their own. Code of users runs here
too, so that `breakpoint()` stops in it; a call that hangs can be abandoned, but not killed.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar

import pyarrow as pa

from rollart_flow.errors import SettingsError
from rollart_flow.operators.sources import NextBlock
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import (
    CPU,
    Placement,
    Remote,
    ResourceManager,
    ResourcePool,
    TypedCluster,
    Worker,
)
from rollart_flow.resources.garbage import excluded_by_caller
from rollart_flow.resources.handles import WorkerHandle
from rollart_flow.resources.local import LocalActor, LoopThread, wait
from rollart_flow.resources.nodes import node_id
from rollart_flow.runner.executors.base import Executor, OperatorStage, StreamSource
from rollart_flow.weights.registry import transport_of

if TYPE_CHECKING:
    from rollart_flow.trainers.worker import TrainWorker

A = TypeVar("A")
P = ParamSpec("P")
W = TypeVar("W", bound=Worker)


_SWITCH_S = 0.0005
"""Longest time that a thread holds Python's lock while another one waits for it [s]. The trainer
asks for it after each operator, and would wait up to Python's own 5 ms for the event loop."""


class MachineResources(ResourceManager):
    """Grants this machine's CPUs to all workers; they share its GPU if the policy is on one."""

    def pools(self) -> dict[str, ResourcePool]:
        cpus = float(os.cpu_count() or 1)
        return {CPU: ResourcePool(CPU, cpus, cpus, (node_id(),))}

    def to_gpus(self, placements: Sequence[Placement]) -> list[Placement]:
        return list(placements)


class InlineExecutor(Executor):
    """Runs in this process."""

    isolates: ClassVar[bool] = False

    def __enter__(self) -> Self:
        # As in Ray's processes: the trainer pins its own number of threads, all others have one.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._excluded = excluded_by_caller()
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._loop = LoopThread()
        wait(self._loop.start(_one_thread()), "start of the event loop")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.close()
        sys.setswitchinterval(self._switch_s)
        if not self._excluded:  # else it is the caller who wants no garbage looked for there
            gc.unfreeze()

    def check(self, pipeline: Pipeline) -> None:
        if self._address is not None:
            raise SettingsError("executor=inline uses no cluster; leave out the address")
        train, said = pipeline.train, "needs processes of its own; run it with executor=ray"
        if train.ranks > 1:
            raise SettingsError(f"train.ranks={train.ranks} {said}, or set train.ranks=1")
        if transport_of(train.weights).capabilities.sends:
            raise SettingsError(f"train.weights={train.weights!r} {said}, or leave it out")

    def resources(self) -> ResourceManager:
        return MachineResources()

    def start(self, actor_class: Callable[P, A]) -> Callable[P, Remote[A]]:
        def start(*args: P.args, **kwargs: P.kwargs) -> Remote[A]:
            make = partial(actor_class, *args, **kwargs)
            return Remote(LocalActor(self._loop, make), actor_class.__name__)

        return start

    def cluster(
        self,
        placements: Sequence[Placement],
        worker_class: type[W],
        arguments: Mapping[str, Any],
        *,
        max_restarts: int = 1,
    ) -> TypedCluster[W]:
        def spawn(kind: type[Worker], placement: Placement, given: Mapping[str, Any]) -> LocalActor:
            return LocalActor(self._loop, partial(kind, placement, **given))

        return TypedCluster(placements, worker_class, arguments=arguments, spawn=spawn)

    def stream(self, name: str, next_block: NextBlock, stage: OperatorStage) -> Iterator[pa.Table]:
        with self._operator(stage) as operator:
            for index in count():
                if (block := next_block(index)) is None:
                    return
                answer = operator(block)
                if inspect.iscoroutine(answer):
                    answer = wait(self._loop.start(answer), f"operator of {name}")
                yield answer

    @contextmanager
    def _operator(self, stage: OperatorStage) -> Iterator[Any]:
        """Make the operator of a stage, and close it when the stream ends."""
        operator = stage.operator(*stage.arguments)
        try:
            yield operator
        finally:
            if hasattr(operator, "close"):
                wait(self._loop.start(operator.close()), f"close of {stage.operator.__name__}")

    def produce(self, name: str, source: StreamSource, stage: OperatorStage) -> Iterator[int]:
        messages: SimpleQueue[Future[pa.Table] | None] = SimpleQueue()
        next_block = source.part(0, sys.maxsize)
        finished = 0

        def read() -> int:
            """Start the operator on each block, and return the number of blocks."""
            for index in count():
                if (block := next_block(index)) is None:
                    return index
                started: Any = self._loop.start(operator(block))
                started.add_done_callback(messages.put)
            return 0

        with (
            self._operator(stage) as operator,
            ThreadPoolExecutor(1, thread_name_prefix=name) as thread,
        ):
            reader = thread.submit(read)
            reader.add_done_callback(lambda _: messages.put(None))
            try:
                ended = None
                while ended is None or finished < ended:
                    if (message := messages.get()) is None:
                        ended = reader.result()
                    else:
                        finished += 1
                        yield message.result().num_rows
            except BaseException:
                source.abandon()
                raise

    def gone(
        self, actors: Mapping[str, Remote[Any]], ranks: Sequence[WorkerHandle[TrainWorker]]
    ) -> tuple[str, ...]:
        return ()


async def _one_thread() -> None:
    """Let torch, if it is loaded, compute with one thread in this loop."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
