"""What importing the library takes, and a process for a user's environment (CPU seconds, MB)."""

import asyncio
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rollart_flow.envs import FrozenLake
from rollart_flow.envs.process import ProcessEnvironment
from rollart_flow.types import Split
from tests.benchmarks.records import Record, record

ROUNDS = 7
IMPORT = "from rollart_flow import Pipeline, rollout, tasks; Pipeline, rollout, tasks"
GOAL_S, GOAL_MB = 0.25, 60

Cost = tuple[float, float]
"""CPU seconds and MB."""


def run() -> list[Record]:
    """An import of the library, and an environment that was reset once in its own process."""
    return [
        *_records("the library", _interpreter, (GOAL_S, GOAL_MB)),
        *_records("nothing, as any Python starts", lambda: _interpreter("pass"), None),
        *_records("a process of an environment", lambda: asyncio.run(_environment()), None),
    ]


def _records(name: str, once: Callable[[], Cost], goals: Cost | None) -> list[Record]:
    """Medians of some rounds."""
    once()  # compiles what was changed
    seconds, megabytes = zip(*(once() for _ in range(ROUNDS)), strict=True)
    most_s, most_mb = goals or (None, None)
    return [
        record(f"import: {name}, CPU", statistics.median(seconds), "s", at_most=most_s),
        record(f"import: {name}, memory", statistics.median(megabytes), "MB", at_most=most_mb),
    ]


def _interpreter(code: str = IMPORT) -> Cost:
    """Run code in a fresh interpreter."""
    process = subprocess.Popen([sys.executable, "-c", code])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


async def _environment() -> Cost:
    """Start an environment's process and reset it."""
    domain = FrozenLake(size=4)
    environment = ProcessEnvironment(domain, 60.0)
    await environment.reset(0, next(iter(domain.tasks(Split.TRAIN, 0))).payload)
    assert environment._process is not None
    folder = Path("/proc") / str(environment._process.pid)
    after_name = (folder / "stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(after_name[11]) + int(after_name[12])
    peak = next(line for line in (folder / "status").read_text().splitlines() if "VmHWM" in line)
    await environment.close()
    return ticks / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) / 1024
