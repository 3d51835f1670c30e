"""Endless sources and operators on Ray Data, with the settings for continuous streams.

Ray Data's defaults suit finite batch jobs. Measurements led to the settings in this module: Ray
Data holds blocks back until 128 MB unless the target size is tiny; it kills an execution that waits
unless the no-progress limit is off; its default CPU demands starve two pipelines in one driver on
two cores; it computes a memory budget for each task that it starts and watches the task's memory
in a thread, whereas the scheduler's credits bound the rows in flight here. All settings but one are
public.

Between operators a block is a table of one row that holds another table as an Arrow IPC buffer. Ray
Data cuts larger tables to the target size, and costs about 20 ms of CPU a block, whatever the block
holds; packed, a block of many rows passes whole.
"""

import inspect
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
from ray.data.block import BlockMetadata

from rollart_flow.operators.sources import NextBlock
from rollart_flow.resources.nodes import ANYWHERE, beside_driver, on_nodes
from rollart_flow.rows import from_ipc, to_ipc

_READ_AHEAD = "_max_num_blocks_in_streaming_gen_buffer"

SOURCE_CPUS = 0.01
OPERATOR_CPUS = 0.02


class EndlessSource(Datasource):
    """Data source that reads blocks in order from `next_block` until that returns None."""

    def __init__(self, name: str, next_block: NextBlock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._next_block = next_block

    def get_name(self) -> str:
        """Return the name that Ray Data displays."""
        return self._name

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: the size is unknown, since the stream has no fixed end."""
        return None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """Return a single read task, since the scheduler determines the order of admission."""
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        next_block = self._next_block
        return [
            ReadTask(lambda: _blocks(next_block), metadata, per_task_row_limit=per_task_row_limit)
        ]


def _blocks(next_block: NextBlock) -> Iterator[pa.Table]:
    _quiet()
    index = 0
    while (block := next_block(index)) is not None:
        yield _pack(block)
        index += 1


_BUILDING = Lock()
"""Lock for building streams in threads: Ray Data's current settings are global to the process."""


START_S = 600
"""Longest time that a source waits for the operators to start [s]."""


@contextmanager
def streaming_context(*, ready_first: bool = False) -> Iterator[None]:
    """Apply Ray Data settings to datasets built inside the context; others keep their settings.

    Args:
        ready_first: read from the source only after every operator has started; otherwise read at
            once, while the operators start.
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
    # The one setting that is not public. By default a source yields two blocks ahead and then waits
    # 100 ms for the scheduler's next iteration, so that at most 20 attempts start per second.
    # `bench_streams` measures it. Without the setting in Ray, streams are only slower.
    if hasattr(context, _READ_AHEAD):
        setattr(context, _READ_AHEAD, None)
    _quiet()
    return context


def _quiet() -> None:
    """Silence Ray Data's log in this process; errors arrive as exceptions.

    Otherwise Ray Data writes lines about every block to a file, which takes a tenth of the time of
    a light operator.
    """
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


def read_endless(name: str, next_block: NextBlock) -> "ray.data.Dataset":
    """Create a dataset over an `EndlessSource`; call this inside `streaming_context`.

    The remote arguments of the source differ from those of every operator, so that Ray Data does
    not fuse them. The source runs on the driver's node: restarted on another node, it would request
    its first rows again.
    """
    source = EndlessSource(name, next_block)
    dataset: ray.data.Dataset = ray.data.read_datasource(
        source,
        override_num_blocks=1,
        num_cpus=SOURCE_CPUS,
        label_selector=beside_driver(),
    )
    return dataset


def map_blocks(
    dataset: "ray.data.Dataset",
    operator: type[Any],
    *arguments: Any,
    concurrency: int,
    workers: int = 1,
    here: bool = False,
    nodes: Collection[str] = (),
) -> "ray.data.Dataset":
    """Apply an operator to each block, as one actor task per block.

    Finished blocks leave one by one, out of order, and the blocks of a dead actor run again.

    Args:
        dataset: dataset of packed blocks.
        operator: class whose `__call__`, plain or async, maps a `pa.Table` to a `pa.Table`.
        arguments: positional arguments of the operator's constructor.
        concurrency: blocks in one actor at a time; more than one needs an async operator.
        workers: number of actors.
        here: place the actors on the driver's node, for operators that a run has one of.
        nodes: ids of the nodes to place the actors on, which any other replaces once they are gone;
            empty: any node.
    """
    mapped: ray.data.Dataset = dataset.map_batches(
        _packing(operator, arguments),
        batch_format="pyarrow",
        batch_size=None,
        num_cpus=OPERATOR_CPUS,
        compute=ActorPoolStrategy(
            size=workers,
            max_concurrent_calls_per_actor=concurrency,
            max_tasks_in_flight_per_actor=concurrency,
        ),
        label_selector=beside_driver() if here else on_nodes(nodes),
        fallback_strategy=ANYWHERE if nodes else None,
    )
    return mapped


def drain(dataset: "ray.data.Dataset") -> Iterator[pa.Table]:
    """Execute a dataset and yield its blocks as they finish, until its source ends."""
    for bundle in dataset.iter_internal_ref_bundles():
        for entry in bundle.blocks:
            yield _unpack(ray.get(entry.ref))


_PACKED = "ipc"
"""Name of the only column of a packed block."""


def _pack(block: pa.Table) -> pa.Table:
    return pa.table({_PACKED: pa.array([to_ipc(block)], pa.large_binary())})


def _unpack(block: pa.Table) -> pa.Table:
    return from_ipc(block[_PACKED][0].as_buffer()) if block.column_names == [_PACKED] else block


def _packing(operator: type[Any], arguments: tuple[Any, ...]) -> type[Any]:
    """Create an operator class that takes packed blocks and returns packed ones."""

    class Packed:
        def __init__(self) -> None:
            _quiet()
            # Ray has a thread for each block in flight, and Arrow's own pools keep 270 KB for each.
            pa.set_memory_pool(pa.system_memory_pool())
            self._operator = operator(*arguments)

    class AsyncPacked(Packed):
        async def __call__(self, block: pa.Table) -> pa.Table:
            return _pack(await self._operator(_unpack(block)))

    class BlockingPacked(Packed):
        def __call__(self, block: pa.Table) -> pa.Table:
            return _pack(self._operator(_unpack(block)))

    waits = inspect.iscoroutinefunction(operator.__call__)
    packing: type[Any] = AsyncPacked if waits else BlockingPacked
    packing.__name__ = operator.__name__
    return packing
