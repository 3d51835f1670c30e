"""The end of a session whose processes and threads hang: it goes on without them, and says so."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from rollart_flow.errors import ClusterLostError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.resources import Remote
from rollart_flow.resources.local import LocalActor, LoopThread
from rollart_flow.runner import session as module
from rollart_flow.runner.executors.inline import InlineExecutor
from rollart_flow.runner.processes import RunProcesses, start_processes
from rollart_flow.runner.session import Session
from rollart_flow.runner.setup import create_run
from rollart_flow.store import RunStatus, read_info
from rollart_flow.store.lease import Lease
from rollart_flow.telemetry import ignore_progress
from tests.runner.world import source
from tests.runs import new_writer


class HangingBuffer:
    """A buffer that was stopped: it never answers."""

    async def close(self, status: RunStatus, error: str | None) -> None:
        await asyncio.get_running_loop().create_future()


class LostExecutor(InlineExecutor):
    """An executor whose cluster is lost once its streams begin."""

    def on_lost(self, tell: Callable[[str], object]) -> None:
        tell("the GCS of Ray at 127.0.0.1:1 is gone")


class OnlyBuffer:
    """The processes of a run, as far as the end of a session needs them."""

    def __init__(self, buffer: Remote[Any]) -> None:
        self.buffer = buffer

    def end_sandboxes(self, limit_s: float) -> None:
        """There are none."""

    def shutdown(self) -> None:
        self.buffer.kill()


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session of a run that nothing has started."""
    monkeypatch.setattr(module, "_CLOSE_S", 0.05)
    monkeypatch.setattr(module, "_THREADS_S", 0.05)
    uri = new_writer(tmp_path).uri
    pipeline = load_source(source(tmp_path), tmp_path / "coins.py").pipeline
    with Lease(uri) as lease:
        yield Session(InlineExecutor(), pipeline, uri, None, ignore_progress, lease)


def ended(session: Session, monkeypatch: pytest.MonkeyPatch, *, by: type[BaseException]) -> None:
    def attempt(*_: object, **__: object) -> tuple[str, ...]:
        raise by

    monkeypatch.setattr(session, "_attempt", attempt)
    with pytest.raises(by):
        session.run()


def test_a_buffer_that_hangs_does_not_keep_a_run_from_ending_as_interrupted(
    session: Session, loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer: Remote[Any] = Remote(LocalActor(loop, partial(HangingBuffer)))
    session._processes = cast("Any", OnlyBuffer(buffer))
    ended(session, monkeypatch, by=KeyboardInterrupt)
    assert read_info(session._uri).status is RunStatus.INTERRUPTED


@pytest.mark.parametrize("hangs", [True, False])
def test_a_thread_that_hangs_at_the_end_abandons_the_executor(
    hangs: bool, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread: Future[None] = Future()
    if not hangs:
        thread.set_result(None)
    session._running_streams = [thread]
    ended(session, monkeypatch, by=KeyboardInterrupt)
    assert session._executor._abandoned is hangs


def test_a_run_whose_cluster_is_lost_ends_with_the_command_that_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is called, ended or started again: each call would block."""
    started: list[object] = []

    def starting(*arguments: Any) -> RunProcesses:
        processes = start_processes(*arguments)
        started.append(processes)
        return processes

    monkeypatch.setattr(module, "start_processes", starting)
    loaded = load_source(source(tmp_path), tmp_path / "coins.py")
    uri = create_run(loaded, store=str(tmp_path), name="mine", on_progress=ignore_progress)
    with Lease(uri) as lease, LostExecutor() as executor:
        session = Session(executor, loaded.pipeline, uri, None, ignore_progress, lease)
        with pytest.raises(ClusterLostError, match=f"; `rollart resume {uri}` continues the run"):
            session.run()
    assert (len(started), executor._abandoned) == (1, True)
    info = read_info(uri)
    assert info.status is RunStatus.FAILED
    assert "GCS of Ray" in (info.error or "")
