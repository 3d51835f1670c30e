"""Named waits of threads and loops, together."""

import asyncio
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from contextvars import Context
from pathlib import Path
from typing import TypeVarTuple

import pytest

from rollart_flow.blocked import blocking
from rollart_flow.control.loop.waits import waiting
from rollart_flow.resources import blocking as blocking_module
from rollart_flow.resources.blocking import (
    driver_waits,
    open_waits,
    report_for,
    reporting_waits,
    working,
)
from rollart_flow.store.waits import ProcessState, begin_waits, read_waits

Ts = TypeVarTuple("Ts")


def test_the_waits_of_threads_and_of_loops_are_listed_while_they_last() -> None:
    begun, over = threading.Event(), threading.Event()

    async def wait() -> None:
        with waiting("a wait of a loop"):
            begun.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    with blocking("a wait of a thread"):
        thread.start()
        begun.wait()
        named = {each.name for each in open_waits()}
        assert {"a wait of a thread", "a wait of a loop"} <= named
    over.set()
    thread.join()
    assert not {"a wait of a thread", "a wait of a loop"} & {each.name for each in open_waits()}


def test_the_work_of_a_thread_is_named_with_the_line_that_it_is_in() -> None:
    begun, over = threading.Event(), threading.Event()

    def compute() -> None:
        with working("step 3"):
            begun.set()
            over.wait()

    thread = threading.Thread(target=compute)
    thread.start()
    begun.wait()
    (name,) = (each.name for each in open_waits() if each.name.startswith("step 3"))
    over.set()
    thread.join()
    assert re.fullmatch(rf"step 3, in {re.escape(__file__)}:\d+ \(compute\)", name)


class PromptLoop(asyncio.SelectorEventLoop):
    """A loop that takes its turn before the thread that asked for it goes on."""

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        callback(*args)
        return asyncio.Handle(callback, args, self, context)


def test_a_loop_that_turns_at_once_is_not_taken_for_one_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking_module, "PERIOD_S", 0.0)
    with closing(PromptLoop()) as loop:
        beat = blocking_module._Beat(loop)
        beat.ask(loop)
        assert beat.stuck() is None


def reporters() -> int:
    return [each.name for each in threading.enumerate()].count("waits")


def test_only_the_outermost_report_of_a_process_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_module, "_reporter", [])  # other tests may have left one
    before = reporters()
    begin_waits(str(tmp_path))
    with reporting_waits(str(tmp_path), "driver"), reporting_waits(str(tmp_path), "buffer"):
        assert reporters() == before + 1
    assert reporters() == before
    assert {each.process for each in read_waits(str(tmp_path))} <= {"driver"}


def test_a_process_that_cannot_report_is_reported_by_the_one_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_module, "_reporter", [])
    monkeypatch.setattr(blocking_module, "PERIOD_S", 0.01)
    with subprocess.Popen(["sleep", "600"]) as server, driver_waits(str(tmp_path)):
        report_for("weight-servers", lambda: (server.pid,))
        states = {}
        for number, expected in (
            (signal.SIGSTOP, ProcessState.STOPPED),
            (signal.SIGKILL, ProcessState.GONE),
        ):
            server.send_signal(number)
            if number == signal.SIGKILL:
                server.wait()
            while (found := state_of(tmp_path, "weight-servers")) != expected:
                assert found in (None, ProcessState.RUNNING, ProcessState.STOPPED)
            states[number] = found
    assert [*states.values()] == [ProcessState.STOPPED, ProcessState.GONE]


def state_of(run: Path, process: str) -> ProcessState | None:
    return next((each.state for each in read_waits(str(run)) if each.process == process), None)
