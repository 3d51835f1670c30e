"""Named waits of threads and loops, together."""

import asyncio
import threading
from pathlib import Path

import pytest

from rollart_flow.control.loop.waits import waiting
from rollart_flow.resources import blocking as blocking_module
from rollart_flow.resources.blocking import blocking, open_waits, reporting_waits
from rollart_flow.store.waits import begin_waits, read_waits


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
