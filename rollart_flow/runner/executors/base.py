"""`Executor`: the base of all executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar

import pyarrow as pa

from rollart_flow.operators.sources import NextBlock
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import Placement, Remote, ResourceManager, TypedCluster, Worker
from rollart_flow.resources.handles import WorkerHandle

if TYPE_CHECKING:
    from rollart_flow.trainers.worker import TrainWorker

A = TypeVar("A")
P = ParamSpec("P")
W = TypeVar("W", bound=Worker)


@dataclass(frozen=True, slots=True)
class OperatorStage:
    """An operator of a stream: a class whose `__call__`, plain or async, maps blocks to blocks.

    It may have an async method `close`, which is called after its last block in a process that goes
    on; Ray ends the operator's process instead.
    """

    operator: type[Any]
    arguments: tuple[Any, ...] = ()
    """Positional arguments of the operator's constructor."""
    workers: int = 1
    """Maximum number of processes that apply the operator."""
    in_flight: int = 1
    """Maximum number of blocks that are in flight at a time."""
    nodes: frozenset[str] = frozenset()
    """Nodes of the processes, which others replace once they are gone; empty: any node."""


@dataclass(frozen=True, slots=True)
class StreamSource:
    """Source of a stream without a fixed end."""

    part: Callable[[int, int], NextBlock]
    """Function from a number and a maximum number of blocks to the blocks of that part."""
    more: Callable[[], bool]
    """Returns whether another part would have any rows."""
    abandon: Callable[[], None] = field(compare=False)
    """Ends the parts that are being read, since one has failed."""


class Executor(ABC):
    """Context in which runs are executed.

    Args:
        address: address of a cluster, for an executor that uses one.
    """

    nodes_may_join: bool = False
    """Whether machines may join while a run goes on."""
    isolates: ClassVar[bool] = True
    """Whether code of users runs in processes of its own, which can be killed."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._abandoned = False

    def abandon(self) -> None:
        """Leave what the executor started to the end of this process: a hanging thread uses it."""
        self._abandoned = True

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def on_lost(self, tell: Callable[[str], object]) -> None:  # noqa: B027  some cannot be lost
        """Call a function once, in another thread, with a line if what executes runs is gone.

        The notice ends with the context.
        """

    @abstractmethod
    def check(self, pipeline: Pipeline) -> None:
        """Refuse a pipeline that the executor cannot run.

        Raises:
            SettingsError: names the setting to change.
        """

    @abstractmethod
    def resources(self) -> ResourceManager:
        """Return the manager that grants workers their resources."""

    @abstractmethod
    def start(self, actor_class: Callable[P, A]) -> Callable[P, Remote[A]]:
        """Return a function that starts an actor that a run has one of."""

    @abstractmethod
    def cluster(
        self,
        placements: Sequence[Placement],
        worker_class: type[W],
        arguments: Mapping[str, Any],
        *,
        max_restarts: int = 1,
    ) -> TypedCluster[W]:
        """Start the workers of a class without waiting for them."""

    @abstractmethod
    def stream(self, name: str, next_block: NextBlock, stage: OperatorStage) -> Iterator[pa.Table]:
        """Apply an operator to one block after the other and yield the results, until the end."""

    @abstractmethod
    def produce(self, name: str, source: StreamSource, stage: OperatorStage) -> Iterator[int]:
        """Apply an operator to many blocks at a time, and yield the number of rows of each result.

        Raises:
            Exception: the error of the operator or of the source.
        """

    @abstractmethod
    def gone(
        self, actors: Mapping[str, Remote[Any]], ranks: Sequence[WorkerHandle[TrainWorker]]
    ) -> tuple[str, ...]:
        """Return the names of the actors and of the ranks of a trainer that died or hang."""
