"""A record of what processes of a run saw, and faults at chosen points of their code.

`install` runs when Python starts, or in a forked process, and imports nothing of the library: a
module is patched when the process itself imports it, or at once if it was there before.
The environment variables of a process say what happens in it:

- `ROLLART_CHAOS`: folder of the record, one file of JSON lines for each process. A line is written
  with one system call, so that it outlives a SIGKILL of the process.
- `ROLLART_CHAOS_STRIKES`: folder of files "MOMENT.victim" with a process id; the next process
  that reaches that moment of `MOMENTS` takes the file away and kills that process.
- `ROLLART_CHAOS_AT`: "POINT NUMBER ACTION", such as "manifest 3 kill": the action is taken when the
  process reaches that point of `POINTS` for the third time.
"""

import asyncio
import errno
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

FOLDER, AT = "ROLLART_CHAOS", "ROLLART_CHAOS_AT"
FILL = "ROLLART_CHAOS_FILL"
"""File that the action `fill` writes until its disk is full."""


@dataclass(frozen=True, slots=True)
class Point:
    """A call at which a fault can happen."""

    module: str
    owner: str | None
    """Class of the method, or None for a function of the module."""
    name: str
    after: bool = True
    """Whether the fault happens after the call."""
    table: str | None = None
    """Table of the `TableLog` whose calls count, or None if all calls count."""


_LOG = ("rollart_flow.store.table_log", "TableLog", "append")
_MAINTENANCE = ("rollart_flow.store.maintenance", "TableMaintenance")
POINTS = {
    "data files": Point("rollart_flow.store.writer", None, "write_rows"),
    "half a group": Point(*_LOG, table="weights"),
    "manifest": Point(*_LOG, table="batches"),
    "version": Point(*_LOG, after=False, table="weights"),
    "row": Point(*_LOG, table="steps"),
    "log entry": Point(*_LOG, after=False, table="trajectories"),
    "merge": Point(*_MAINTENANCE, "_merge", after=False),
    "log checkpoint": Point(*_MAINTENANCE, "_checkpoint", after=False),
    "vacuum": Point(*_MAINTENANCE, "_vacuum", after=False),
    "checkpoint": Point("rollart_flow.trainers.worker", "TrainWorker", "begin_save"),
}
"""Points by name. A version's files are written before its row; `version` is between the two."""

STRIKES = "ROLLART_CHAOS_STRIKES"
FIRST = "before the first batch"
"""Moment at which processes wait for their victim, since the first batch would be formed first."""
MOMENTS = {
    FIRST: Point("rollart_flow.operators.sink", "BufferSink", "put", after=False),
    "while a batch is formed": Point(
        "rollart_flow.control.buffer.buffer_service", "BufferService", "get_batch", after=False
    ),
    "in mid-step": Point("rollart_flow.trainers.step.update", "Updater", "accumulate", after=False),
    "while publishing": Point(
        "rollart_flow.weights.local", "LocalWeightStore", "_publish", after=False
    ),
    "while committing": Point(*_LOG, after=False, table="steps"),
}
"""Moments of a step, in whatever process reaches them."""


def note(**said: Any) -> None:
    """Add a line to the record of this process."""
    line = json.dumps({"at": time.monotonic(), **said}) + "\n"
    path = os.path.join(os.environ[FOLDER], f"{os.getpid()}.jsonl")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _note_acknowledged(module: ModuleType) -> None:
    """Note the trajectories that the buffer has acknowledged, in the process that sent them."""
    send = module.BufferSink._send

    @functools.wraps(send)
    async def noting(self: Any, trajectories: Sequence[Any], durable: Any) -> None:
        await send(self, trajectories, durable)
        if durable.exception() is None:
            note(trajectories=[each.trajectory_id for each in trajectories])

    module.BufferSink._send = noting


def _note_recorded(module: ModuleType) -> None:
    """Note the steps whose rows were acknowledged, with their fingerprints."""
    from rollart_flow.operators.trained import read_trained

    operate = module.TrainOperator.__call__

    @functools.wraps(operate)
    def noting(self: Any, block: Any) -> Any:
        answer = operate(self, block)
        row = read_trained(answer).row
        note(step=row["step"], fingerprint=row["fingerprint"])
        return answer

    module.TrainOperator.__call__ = noting


def _note_calls(module: ModuleType) -> None:
    """Note how many tasks the loop of the coordinator has at the end of each step."""
    trained = module.CoordinatorActor.trained

    @functools.wraps(trained)
    async def noting(self: Any, *about: Any) -> Any:
        note(calls=len(asyncio.all_tasks()))
        return await trained(self, *about)

    module.CoordinatorActor.trained = noting


def _note_trained(module: ModuleType) -> None:
    """Note each training of a step, recorded or not."""
    train = module.TrainWorker.train_step

    @functools.wraps(train)
    def noting(self: Any, step: int, *batch: Any) -> Any:
        note(trained=step)
        return train(self, step, *batch)

    module.TrainWorker.train_step = noting


def _act(action: str) -> None:
    note(fault=action)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "fill":
        _fill(os.environ[FILL])
    else:
        number = getattr(errno, action)
        raise OSError(number, os.strerror(number))


def _fill(path: str) -> None:
    """Write to a file until its disk is full."""
    with open(path, "wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    stream.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def _fault_at(point: Point, number: int, action: str) -> Callable[[ModuleType], None]:
    """Return the patch that takes an action at a point when it is reached that many times."""

    def patch(module: ModuleType) -> None:
        owner = module if point.owner is None else getattr(module, point.owner)
        real = getattr(owner, point.name)
        reached = 0

        @functools.wraps(real)
        def reaching(*args: Any, **kwargs: Any) -> Any:
            nonlocal reached
            if point.table is None or args[0].table == point.table:
                reached += 1
            else:
                return real(*args, **kwargs)
            if reached == number and not point.after:
                _act(action)
            answer = real(*args, **kwargs)
            if reached == number and point.after:
                _act(action)
            return answer

        setattr(owner, point.name, reaching)

    return patch


def _strike_at(moment: str) -> Callable[[ModuleType], None]:
    """Return the patch that kills the victim of a moment when it is reached."""
    point, victim = MOMENTS[moment], f"{os.environ[STRIKES]}/{moment}.victim"

    def strike() -> None:
        while moment == FIRST and not any(map(os.path.exists, (victim, f"{victim}.taken"))):
            time.sleep(0.01)
        try:
            os.rename(victim, f"{victim}.taken")
        except FileNotFoundError:
            return
        with open(f"{victim}.taken") as file:
            pid = int(file.read())
        note(fault=f"SIGKILL {moment}")
        os.kill(pid, signal.SIGKILL)

    def patch(module: ModuleType) -> None:
        owner = getattr(module, point.owner or "")
        real = getattr(owner, point.name)

        @functools.wraps(real)
        def reaching(*args: Any, **kwargs: Any) -> Any:
            if point.table is None or args[0].table == point.table:
                strike()
            return real(*args, **kwargs)

        setattr(owner, point.name, reaching)

    return patch


class _Patching(MetaPathFinder):
    """Finds modules as usual, and patches some of them after they were executed."""

    def __init__(self, patches: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patches = self._patches.get(name, ())
        if not patches:
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is None or found.loader is None:
            return None
        execute = found.loader.exec_module

        def executing(module: ModuleType) -> None:
            execute(module)
            for patch in patches:
                patch(module)

        found.loader.exec_module = executing  # type: ignore[method-assign]
        return found


def install() -> None:
    """Patch what the environment variables of this process ask for."""
    if FOLDER not in os.environ:
        return
    patches: dict[str, list[Callable[[ModuleType], None]]] = {
        "rollart_flow.operators.sink": [_note_acknowledged],
        "rollart_flow.operators.coordinator": [_note_calls],
        "rollart_flow.operators.train": [_note_recorded],
        "rollart_flow.trainers.worker": [_note_trained],
    }
    if AT in os.environ:
        name, number, action = os.environ[AT].rsplit(" ", 2)
        point = POINTS[name]
        patch = _fault_at(point, int(number), action)
        patches.setdefault(point.module, []).append(patch)
    for moment, point in MOMENTS.items() if STRIKES in os.environ else ():
        patches.setdefault(point.module, []).append(_strike_at(moment))
    for name in patches.keys() & sys.modules.keys():  # this process was forked
        for patch in patches.pop(name):
            patch(sys.modules[name])
    sys.meta_path.insert(0, _Patching(patches))
