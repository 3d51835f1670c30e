"""Long runs with a kill of the driver every 10,240 trajectories: what a process holds stays flat.

Engine, environment and trainer do nothing, so that only the way of trajectories counts. The table
of measures, one row for each kill, is printed and written to `chaos-long.json`.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from rollart_flow.schema import TABLES
from rollart_flow.store import open_run
from rollart_flow.store.table import data_files, open_table
from tests.benchmarks.bench_rate import PIPELINE, PLUGINS
from tests.chaos.held import Held
from tests.chaos.matrix import scenario, wait_until
from tests.chaos.place import NONE, Place, Variables, at, ended
from tests.runner.shell import Shell

ROW = "length of run"
BATCH, LIFE = 512, 20
"""Trajectories of a step, and steps between two kills."""
ROWS = int(os.environ.get("ROLLART_CHAOS_ROWS", 4 * LIFE * BATCH))
SLACK = {
    "memory_mb": 32,
    "handles": 16,
    "threads": 16,
    "reading_threads": 512,
    "open_calls": 200,
    "live_files": 60,
    "open_ms": 100,
}
"""By how much a measure may exceed its earlier maximum: it depends on the moment of the kill."""
READING = "tokio-rt-worker"
"""Name of the threads of deltalake."""
STOP = at("row", LIFE, "stop")
CHECKPOINTED = PIPELINE.replace("checkpoint_every=1000", f"checkpoint_every={LIFE}")


@dataclass(frozen=True, slots=True)
class Measures:
    """What there is when the driver is killed."""

    trajectories: int
    memory_mb: int
    """Resident memory of the largest process of the run."""
    handles: int
    """Open file descriptors of all processes of the run."""
    threads: int
    """Threads of all processes but those that read files of Delta tables."""
    reading_threads: int
    """Threads of the pools of deltalake, one for each log entry that is read at a time; each ends
    after ten idle seconds, and so is there if the run has just checkpointed a log."""
    open_calls: int
    """Tasks in the loop of the coordinator, which has one for each call that waits."""
    live_files: int
    """Data files of all tables."""
    files: int
    """Files in the folder of the run."""
    open_ms: float
    """CPU time to open the run and take a snapshot."""


def measured(place: Place, driver: Shell) -> Measures:
    """Measure a run whose processes are alive."""
    alive = [psutil.Process(pid) for pid in driver.processes()]
    began = time.process_time()
    now = open_run(place.uri).snapshot()
    open_ms = 1000 * (time.process_time() - began)
    return Measures(
        trajectories=int(now.trajectories.select("seq").collect().height),
        memory_mb=max(process.memory_info().rss for process in alive) >> 20,
        handles=sum(process.num_fds() for process in alive),
        threads=sum(name != READING for process in alive for name in thread_names(process.pid)),
        reading_threads=sum(
            name == READING for process in alive for name in thread_names(process.pid)
        ),
        open_calls=[line["calls"] for line in place.record.lines() if "calls" in line][-1],
        live_files=sum(len(data_files(open_table(place.uri, table))) for table in TABLES),
        files=sum(path.is_file() for path in Path(place.uri).rglob("*")),
        open_ms=round(open_ms, 1),
    )


def thread_names(pid: int) -> list[str]:
    """Names of the threads of a process."""
    return [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]


def long_run(place: Place, rows: int) -> Held:
    """Run with kills to the end, and compare what there is at the last with the second one."""
    sys.path.insert(0, str(PLUGINS))
    place.environment["PYTHONPATH"] += f"{os.pathsep}{PLUGINS}"
    kills = rows // (LIFE * BATCH) - 1
    found: list[Measures] = []
    for number in range(kills + 1):
        last = number == kills
        with started(place, rows, first=number == 0, more=NONE if last else STOP) as driver:
            if last:
                ended(driver)
                break
            wait_until(lambda: stops(place) > len(found), "the next stop", 600)
            found.append(measured(place, driver))
            place.record.fault("SIGKILL")
            driver.kill()
            driver.wait_until_all_are_gone(60)
    shown(found)
    held = place.held(batch_size=BATCH)
    check_flat(found)
    return replace(held, note=f"{kills} kills; {found[-1].memory_mb} MB at the last")


def started(place: Place, rows: int, *, first: bool, more: Variables) -> Shell:
    """Begin or resume the run."""
    if not first:
        return place.resume(more=more)
    values = {"batch": BATCH, "every": 0, "checkpoint_every": LIFE}
    return place.run(CHECKPOINTED, steps=rows // BATCH, values=values, more=more)


def stops(place: Place) -> int:
    """How often a driver has stopped itself."""
    return sum(line.get("fault") == "stop" for line in place.record.lines())


def check_flat(found: list[Measures]) -> None:
    """What a run holds does not grow: the second half of its lives has no more than the first.

    Files that were replaced are kept for ten minutes, which is not looked at here.
    """
    middle = (len(found) + 1) // 2
    for name, slack in SLACK.items():
        early, late = (
            max(getattr(each, name) for each in half)
            for half in (found[:middle], found[middle:] or found[-1:])
        )
        assert late <= 1.25 * early + slack, f"{name} grew from {early} to {late}"


def shown(found: list[Measures]) -> None:
    """Print the measures, and write them to a file."""
    rows = [asdict(each) for each in found]
    Path("chaos-long.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=120, stderr=True).print(table)


@scenario(ROW, limit_s=max(600, ROWS / 50))
def long(folder: Path) -> Held:
    return long_run(Place(folder, forked=False), ROWS)


@scenario(ROW, limit_s=max(600, ROWS / 50))
def long_on_ray(folder: Path) -> Held:
    return long_run(Place(folder, executor="ray"), max(ROWS // 4, 2 * LIFE * BATCH))
