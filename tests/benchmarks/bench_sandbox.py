"""Boxes of bubblewrap: time to be ready, boxes a second, cost of a command, memory of idle ones.

Memory counts shared pages once (`Pss`), over the processes of the boxes and the growth of this one.
"""

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rollart_flow.sandbox.base import Sandbox, SandboxLimits, SandboxSpec
from rollart_flow.sandbox.registry import SANDBOXES, create_sandbox
from tests.benchmarks.records import CannotRunError, Record, record

READY, COMMANDS, IDLE = 60, 300, 1000
TOGETHER = 4
"""Boxes that are started at the same time, where boxes a second are counted."""


def run() -> Iterator[Record]:
    """Figures of `create_sandbox` and `Sandbox.exec`; takes about two minutes."""
    if problem := SANDBOXES.load("bubblewrap").problem():
        raise CannotRunError(problem)
    yield from asyncio.run(_measure())


async def _measure() -> list[Record]:
    await (await create_sandbox()).close()  # copies this Python at a machine's first box
    ready = [await _ready_s() for _ in range(READY)]
    rate = await _rate()
    commands, plain = await _commands()
    megabytes = await _idle_mb()
    return [
        record("sandbox: ready, median", statistics.median(ready) * 1e3, "ms", at_most=30),
        record("sandbox: made and closed, 4 at a time", rate, "boxes/s", at_least=50),
        record(
            "sandbox: exec beyond the command itself, median",
            (statistics.median(commands) - statistics.median(plain)) * 1e3,
            "ms",
            at_most=2,
            peer=f"/bin/true by subprocess {statistics.median(plain) * 1e3:.1f} ms",
        ),
        record(f"sandbox: {IDLE} idle boxes", megabytes / 1024, "GiB", at_most=8),
    ]


async def _ready_s() -> float:
    began = time.perf_counter()
    box = await create_sandbox()
    seconds = time.perf_counter() - began
    await box.close()
    return seconds


async def _rate() -> float:
    async def one_after_the_other() -> None:
        for _ in range(READY):
            await (await create_sandbox()).close()

    began = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(TOGETHER)))
    return READY * TOGETHER / (time.perf_counter() - began)


async def _commands() -> tuple[list[float], list[float]]:
    """Seconds of a command in a box, and of the same one outside, taken in turns."""
    inside, outside = [], []
    async with await create_sandbox() as box:
        for _ in range(COMMANDS):
            began = time.perf_counter()
            await box.exec(["/bin/true"])
            inside.append(time.perf_counter() - began)
            began = time.perf_counter()
            _run_outside()
            outside.append(time.perf_counter() - began)
    return inside, outside


def _run_outside() -> None:
    subprocess.run(["/bin/true"], capture_output=True, check=True)


async def _idle_mb() -> float:
    """Proportional memory of the boxes' processes [MiB]."""
    own_before, before = pss_kb(os.getpid()), set(_processes())
    spec = SandboxSpec(limits=SandboxLimits(memory_mb=64, disk_mb=16))
    boxes: list[Sandbox] = []
    try:
        for _ in range(0, IDLE, TOGETHER):
            boxes += await asyncio.gather(*(create_sandbox(spec) for _ in range(TOGETHER)))
        theirs = sum(pss_kb(pid) for pid in _processes() if pid not in before)
        return (theirs + pss_kb(os.getpid()) - own_before) / 1024
    finally:
        await asyncio.gather(*(box.close() for box in boxes))


def _processes() -> Iterator[int]:
    """Processes whose arguments name the agent of a box."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"/run/rollart/agent.pyc" in path.read_bytes():
                yield int(path.parent.name)


def pss_kb(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
