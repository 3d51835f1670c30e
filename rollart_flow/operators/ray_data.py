"""Endless sources and one-row operators on Ray Data, and the settings a continuous stream needs.

Ray Data's defaults suit finite batch jobs. What is set here, and why, was measured: blocks are
held back until 128 MB unless the target size is tiny; an execution that waits is killed unless the
no-progress limit is off; the default CPU demands starve two pipelines in one driver on two cores;
memory is budgeted anew for each task that is started, and a thread watches that of each task, while
here the scheduler's credits bound what is in flight. Public settings, but for one.

Between operators a block is one Arrow IPC buffer: Ray serializes a table column by column and sends
its schema along, which for rows of `trajectories` costs more than what the operators do.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
from ray.data.block import BlockMetadata

from rollart_flow.operators.ipc import decode, encode
from rollart_flow.resources.nodes import beside_driver

NextRow = Callable[[int], pa.Table | None]
"""The index-th block of a stream, or None where the stream ends. Asked again, it answers again."""

_READ_AHEAD = "_max_num_blocks_in_streaming_gen_buffer"

SOURCE_CPUS = 0.01
OPERATOR_CPUS = 0.02


class EndlessSource(Datasource):
    """A source that asks `next_row` for one block after the other until it answers None."""

    def __init__(self, name: str, next_row: NextRow) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._next_row = next_row

    def get_name(self) -> str:
        """Name shown by Ray Data."""
        return self._name

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown: the stream has no end."""
        return None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """One task: the order of admission is the scheduler's."""
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        next_row = self._next_row
        return [ReadTask(lambda: _rows(next_row), metadata, per_task_row_limit=per_task_row_limit)]


def _rows(next_row: NextRow) -> Iterator[pa.Table]:
    _quiet()
    index = 0
    while (row := next_row(index)) is not None:
        yield row
        index += 1


_BUILDING = Lock()
"""The current settings of Ray Data are those of the process, and streams are built in threads."""


START_S = 600
"""Longest time that operators take to start, where the source waits for them."""


@contextmanager
def streaming_context(*, ready_first: bool = False) -> Iterator[None]:
    """Ray Data settings for datasets that are built inside; others keep theirs.

    Args:
        ready_first: the source is asked for nothing before every operator has started. Otherwise
            it is at once, and operators start side by side.
    """
    with _BUILDING, DataContext.current(_streaming_settings(ready_first)):
        yield


def _streaming_settings(ready_first: bool) -> DataContext:
    context = DataContext.get_current().copy()
    context.target_max_block_size = 1
    context.execution_no_progress_timeout_s = -1
    if ready_first:
        context.wait_for_min_actors_s = START_S
    context.op_resource_reservation_enabled = False
    context.memory_usage_poll_interval_s = None
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = False
    context.issue_detectors_config.detectors = []
    # The one setting that is not public: a source yields two blocks ahead and then waits for the
    # scheduler's next turn, 100 ms later, so that no more than 20 attempts begin in a second.
    # `bench_streams` measures it. Where Ray has it no more, streams are slower, not wrong.
    if hasattr(context, _READ_AHEAD):
        setattr(context, _READ_AHEAD, None)
    _quiet()
    return context


def _quiet() -> None:
    """Let Ray Data log nothing in this process: errors reach us as exceptions.

    Otherwise it writes lines about every block to a file, which costs a tenth of a light operator.
    """
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


def read_endless(name: str, next_row: NextRow) -> "ray.data.Dataset":
    """A dataset over an `EndlessSource`; call inside `streaming_context`.

    Its remote arguments differ from any other operator's, so that Ray Data does not fuse it. It
    runs beside the driver: begun anew elsewhere it would ask for its first rows again.
    """
    source = EndlessSource(name, next_row)
    dataset: ray.data.Dataset = ray.data.read_datasource(
        source,
        override_num_blocks=1,
        num_cpus=SOURCE_CPUS,
        label_selector=beside_driver(),
    )
    return dataset


@dataclass(frozen=True, slots=True)
class OperatorStage:
    """What an actor does with a block."""

    operator: type[Any]
    """Class whose `__call__`, plain or async, maps a `pa.Table` to a `pa.Table`."""
    arguments: tuple[Any, ...] = ()
    """Of its constructor."""


def map_rows(
    dataset: "ray.data.Dataset",
    *stages: OperatorStage,
    concurrency: int,
    workers: int = 1,
    here: bool = False,
) -> "ray.data.Dataset":
    """Run each one-row block through operators: one block, one actor task.

    What is done leaves by itself, out of order, and what a dead actor held is done again. Several
    stages run one after the other in the same actor, as Ray Data fuses operators that hold no
    actors: a block that moves on within a process costs neither a task nor a scheduler's turn.

    Args:
        dataset: of one-row blocks.
        stages: at least one.
        concurrency: blocks in one actor at a time; more than one needs an async operator.
        workers: actors.
        here: beside the driver, for what a run has one of.
    """
    mapped: ray.data.Dataset = dataset.map_batches(
        _packing(stages),
        batch_format="pyarrow",
        batch_size=None,
        num_cpus=OPERATOR_CPUS,
        compute=ActorPoolStrategy(
            size=workers,
            max_concurrent_calls_per_actor=concurrency,
            max_tasks_in_flight_per_actor=concurrency,
        ),
        label_selector=beside_driver() if here else None,
    )
    return mapped


def drain(dataset: "ray.data.Dataset") -> Iterator[pa.Table]:
    """Execute a dataset and yield its blocks as they come, until its source ends."""
    for bundle in dataset.iter_internal_ref_bundles():
        for entry in bundle.blocks:
            yield _unpack(ray.get(entry.ref))


def count_drained(dataset: "ray.data.Dataset") -> Iterator[int]:
    """Execute a dataset of one-row blocks; yields how many came out, without fetching them.

    `iter_batches` would fetch each one and report it to Ray Data's statistics actor: a quarter of
    what the driver does for a trajectory.
    """
    for bundle in dataset.iter_internal_ref_bundles():
        yield len(bundle.blocks)


_PACKED = "ipc"
"""The only column of a packed block."""


def _pack(block: pa.Table) -> pa.Table:
    return pa.table({_PACKED: pa.array([encode(block)], pa.large_binary())})


def _unpack(block: pa.Table) -> pa.Table:
    return decode(block[_PACKED][0].as_buffer()) if block.column_names == [_PACKED] else block


def _packing(stages: Sequence[OperatorStage]) -> type[Any]:
    """A class that takes packed blocks through all stages and gives packed ones."""

    class Chain:
        def __init__(self) -> None:
            _quiet()
            self._operators = [stage.operator(*stage.arguments) for stage in stages]

    if any(inspect.iscoroutinefunction(stage.operator.__call__) for stage in stages):

        class Packing(Chain):
            async def __call__(self, block: pa.Table) -> pa.Table:
                block = _unpack(block)
                for operator in self._operators:
                    answer = operator(block)
                    block = await answer if inspect.isawaitable(answer) else answer
                return _pack(block)

    else:

        class Packing(Chain):  # type: ignore[no-redef]
            def __call__(self, block: pa.Table) -> pa.Table:
                block = _unpack(block)
                for operator in self._operators:
                    block = operator(block)
                return _pack(block)

    Packing.__name__ = "->".join(stage.operator.__name__ for stage in stages)
    return Packing
