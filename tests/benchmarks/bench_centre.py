"""What the centre of a run takes: coordinator and buffer, with commits on disk.

A load generator plays 64 rollout processes: each asks for blocks of attempts, for permission, and
sends micro-batches of trajectories of 2,000 tokens, two at a time. Engine and trainer do nothing.
The generator and the centre share the machine's cores; the CPU of each process says where a core
goes, and what more cores carry: the work of writers is shared by as many as there are. The last
figure is that of the stream of Ray Data that brings attempts to the rollout processes.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import psutil
import pyarrow as pa

from tests.benchmarks.bench_rate import PIPELINE, PLUGINS
from tests.benchmarks.records import Record, record
from tests.builders import trajectory

if TYPE_CHECKING:
    from rollart_flow.operators.coordinator import CoordinatorActor
    from rollart_flow.resources import Remote

PROCESSES, BLOCK, TOKENS = 64, 64, 2000
UNDER_WAY = 2
"""Blocks of a rollout process at a time; both of all processes are what alpha 1 admits."""
BATCH, STEPS, FIRST = 4096, 6, 2
BLOCKS, FIRST_BLOCK, ATTEMPTS = 300, 60, 256
"""Blocks of the producer, those that do not count, and attempts of a block."""
_IDLE = "ray::IDLE"
Parts = dict[str, float]
"""CPU milliseconds each, by name of the process."""
WRITERS = (0, 1, 2, 4)
"""Numbers of buffer writers; with 0, the buffer's process does all."""


def run() -> Iterator[Record]:
    """Rate of the centre and CPU of its processes, by writers; takes about three minutes."""
    sys.path.insert(0, str(PLUGINS))
    os.environ["PYTHONPATH"] = os.pathsep.join((str(PLUGINS), os.environ.get("PYTHONPATH", "")))
    yield from map(_of, WRITERS)
    yield _producer()


def _of(writers: int) -> Record:
    with tempfile.TemporaryDirectory() as folder:
        rate, parts = _measure(folder, writers)
    busiest = {name: ms for name, ms in parts.items() if name.startswith("ray::")}
    each = max(ms / writers if "Writer" in name else ms for name, ms in busiest.items())
    cpu = f"CPU ms each: {_said(parts)}, in all {sum(parts.values()):.2f}"
    if not writers:
        return record(
            f"centre: trajectories of {TOKENS} tokens from {PROCESSES} rollout processes",
            rate,
            "1/s",
            at_least=5000,
            peer=f"{cpu}; {1000 / each:.0f}/s with a core for each process",
        )
    return record(
        f"centre: the same with {writers} buffer writers and a core for each process",
        1000 / each,
        "1/s",
        at_least=9000 if writers == WRITERS[-1] else None,
        peer=f"{cpu}; {rate:.0f}/s on {os.cpu_count()} cores",
    )


def _rows() -> pa.Table:
    """A micro-batch of trajectories, whose ids are to be replaced."""
    from rollart_flow.rows import trajectories_table

    rng = np.random.default_rng(0)
    half = TOKENS // 2
    return trajectories_table(
        trajectory(
            token_ids=tuple(np.minimum(rng.zipf(1.3, TOKENS), 32_000).tolist()),
            action_mask=(False,) * half + (True,) * half,
            logprobs=(0.0,) * half + tuple((-rng.exponential(0.5, half)).tolist()),
            token_versions=(-1,) * half + (0,) * half,
        )
        for _ in range(BLOCK)
    )


def _measure(folder: str, writers: int) -> tuple[float, Parts]:
    """Trajectories per second from step `FIRST` on, and CPU milliseconds of each by process."""
    from rollart_flow.pipeline.loading import load_source
    from rollart_flow.runner.executors import executor_for
    from rollart_flow.runner.processes import RunProcesses, start_processes
    from rollart_flow.runner.setup import create_run
    from rollart_flow.telemetry import ignore_progress

    text = PIPELINE.replace("<batch>", str(BATCH)).replace("<steps>", str(STEPS))
    text = text.replace("alpha=1)", f"alpha=1, writers={writers})")
    loaded = load_source(text, Path(folder) / "centre.py")
    with executor_for(loaded.pipeline) as executor:
        uri = create_run(loaded, store=folder, name="centre", on_progress=ignore_progress)
        processes: RunProcesses = start_processes(executor, loaded.pipeline, uri)
        try:
            processes.begin()
            return asyncio.run(_Load(processes, uri).run())
        finally:
            processes.shutdown()


class _Load:
    """The rollout processes and the train operator of one run."""

    def __init__(self, processes: object, uri: str) -> None:
        from rollart_flow.operators.batch_rows import BatchRows
        from rollart_flow.operators.sink import RowSender
        from rollart_flow.rows import to_ipc
        from rollart_flow.runner.processes import RunProcesses

        assert isinstance(processes, RunProcesses)
        self._coordinator = cast("Remote[CoordinatorActor]", processes.coordinator)
        self._senders = [RowSender(processes.buffer, processes.writers) for _ in range(PROCESSES)]
        self._batch_rows = BatchRows(processes.buffer, processes.writers, uri)
        self._trainers = processes.trainers
        self._rows = _rows()
        self._row = to_ipc(self._rows.slice(0, 1))
        self._served = 0

    async def run(self) -> tuple[float, Parts]:
        """Train all steps; the rate, and CPU by process."""
        clients = [
            asyncio.create_task(self._client(number, place))
            for number in range(PROCESSES)
            for place in range(UNDER_WAY)
        ]
        started, cpu = 0.0, _cpu_s()
        for step in range(1, STEPS + 1):
            self._served = max(0, step - 2)
            batch = await self._coordinator.call.next_batch.aio(step)
            assert batch is not None
            assert await asyncio.to_thread(self._batch_rows, batch)
            await self._trainers.call.train_step.aio(step, self._row)
            await self._trainers.call.publish.aio(lasting=False)
            await self._coordinator.call.trained.aio(step, 0.0)
            if step == FIRST:
                started, cpu = time.monotonic(), _cpu_s()
        seconds, count = time.monotonic() - started, (STEPS - FIRST) * BATCH
        used = _cpu_s()
        await self._coordinator.call.stop.aio()
        await asyncio.gather(*clients)
        return count / seconds, _each_ms(cpu, used, count)

    async def _client(self, number: int, place: int) -> None:
        from rollart_flow.rows import to_ipc

        name, source, index = f"rollout-{number}", f"tasks-{number}-{place}", 0
        while block := await self._coordinator.call.admit.aio(source, index, BLOCK):
            ids = [each.trajectory_id for each in block]
            version = self._served
            await self._coordinator.call.permit.aio(name, ids, [(each, version) for each in ids])
            rows = self._rows.slice(0, len(block))
            for column, values in (
                ("trajectory_id", ids),
                ("group_id", [each.group_id for each in block]),
                ("attempt", [each.attempt for each in block]),
                ("policy_version_start", [version] * len(ids)),
                ("policy_version_end", [version] * len(ids)),
            ):
                place = rows.schema.get_field_index(column)
                field = rows.schema.field(place)
                rows = rows.set_column(place, field, pa.array(values, field.type))
            await self._senders[number].send(to_ipc(rows))
            index += 1


def _producer() -> Record:
    """The producer with a source and an operator that do nothing but read and write attempts."""
    from rollart_flow.runner.executors.base import OperatorStage, StreamSource
    from rollart_flow.runner.executors.ray import RayExecutor

    answers = iter((True, False))
    source = StreamSource(lambda *_: _attempts, lambda: next(answers), lambda: None)
    stage = OperatorStage(Reading, workers=2, in_flight=256)
    with RayExecutor() as executor:
        for place, _ in enumerate(executor.produce("tasks", source, stage)):
            if place == FIRST_BLOCK:
                before = _cpu_s()
            elif place == BLOCKS - FIRST_BLOCK:
                after = _cpu_s()
    parts = _each_ms(before, after, BLOCKS - 2 * FIRST_BLOCK)
    busiest = max(ms for name, ms in parts.items() if "MapWorker" not in name)
    return record(
        f"centre: attempts of one producer in blocks of {ATTEMPTS}, with a core for each process",
        1000 * ATTEMPTS / busiest,
        "1/s",
        at_least=9000,
        peer=f"CPU ms a block: {_said(parts)}",
    )


def _attempts(index: int) -> pa.Table | None:
    from rollart_flow.operators.sources import write_assignments
    from rollart_flow.types import Assignment, Sampling, Task

    if index >= BLOCKS:
        return None
    sampling = Sampling()
    names = [(f"g{index * ATTEMPTS + each // 8:08d}", each % 8) for each in range(ATTEMPTS)]
    return write_assignments(
        [
            Assignment(f"{name}-{each:02d}", name, Task(name, "nothing"), each, 0, sampling)
            for name, each in names
        ]
    )


class Reading:
    """An operator that reads attempts, and returns their ids."""

    async def __call__(self, block: pa.Table) -> pa.Table:
        from rollart_flow.operators.sources import read_assignments

        return pa.table({"trajectory_id": [each.trajectory_id for each in read_assignments(block)]})


def _each_ms(before: Mapping[int, float], after: Mapping[int, float], count: int) -> Parts:
    """CPU milliseconds each of the busiest processes, by name."""
    parts: defaultdict[str, float] = defaultdict(float)
    for pid, seconds in after.items():
        parts[_NAMES[pid]] += 1000 * (seconds - before.get(pid, 0.0)) / count
    return dict(sorted(parts.items(), key=lambda part: -part[1])[:5])


def _said(parts: Parts) -> str:
    return ", ".join(f"{name.removeprefix('ray::')} {ms:.2f}" for name, ms in parts.items())


_NAMES = {os.getpid(): "driver"}
"""Names of this process and of those of Ray, which change their names."""


def _cpu_s() -> dict[int, float]:
    """CPU seconds of the processes of the run, by number."""
    used = {}
    for process in (this := psutil.Process(), *this.children(recursive=True)):
        name = (process.cmdline() or [process.name()])[0].rsplit("/", 1)[-1]
        if _NAMES.get(process.pid, _IDLE) == _IDLE:
            _NAMES[process.pid] = re.split(r"[.(-]", name)[0]
        used[process.pid] = sum(process.cpu_times()[:2])
    return used


if __name__ == "__main__":
    for row in run():
        print(row, file=sys.stderr)
