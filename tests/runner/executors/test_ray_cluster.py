"""A local Ray prints nothing of its own, starts no more than a run needs, and ends with its
executor unless a thread may call it."""

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from ray._private import utils, worker
from ray._private.node import Node

from rollart_flow.errors import RunFailedError
from rollart_flow.runner.executors import ray_cluster as module
from rollart_flow.runner.executors.ray import RayExecutor


@pytest.mark.usefixtures("shared_ray")
def test_no_thread_listens_for_errors_of_calls_to_print_them() -> None:
    assert "ray_listen_error_messages" not in {each.name for each in threading.enumerate()}


@pytest.mark.usefixtures("shared_ray")
def test_no_process_answers_over_http_forwards_logs_or_asks_for_nodes() -> None:
    commands = [child.cmdline() for child in psutil.Process().children()]
    started = {Path(argument).name for command in commands for argument in command}
    assert {"gcs_server", "raylet"} <= started
    assert not started & {"dashboard.py", "log_monitor.py", "monitor.py"}
    assert any("--minimal" in argument for command in commands for argument in command)


def test_a_ray_that_others_start_has_all_of_its_own() -> None:
    before = Node.start_api_server, utils.get_dashboard_dependency_error
    with module.without_watchers():
        assert Node.start_api_server is not before[0]
    assert before == (Node.start_api_server, utils.get_dashboard_dependency_error)


def test_ray_prints_errors_again_where_the_library_does_not_start_it() -> None:
    listen = worker.listen_error_messages
    with module._error_messages_not_printed():
        assert worker.listen_error_messages is not listen
    assert worker.listen_error_messages is listen


@pytest.mark.parametrize("abandoned", [True, False])
def test_an_abandoned_executor_leaves_ray_to_the_end_of_the_process(
    abandoned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that calls Ray after its end would start another cluster."""
    calls: list[str] = []
    ray = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: calls.append("shutdown"))
    monkeypatch.setattr(module, "ray", ray)
    monkeypatch.setattr(module, "_start", lambda address: calls.append("start"))
    with RayExecutor() as executor:
        if abandoned:
            executor.abandon()
    assert calls == (["start"] if abandoned else ["start", "shutdown"])


@pytest.mark.parametrize("late", [2, 3])
def test_a_local_ray_whose_processes_are_late_is_started_again(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def init(*_: object, **__: object) -> None:
        calls.append("init")
        if calls.count("init") <= late:
            raise Exception("the current node timed out during startup")

    ray = SimpleNamespace(init=init, shutdown=lambda: calls.append("shutdown"))
    monkeypatch.setattr(module, "ray", ray)
    said = "Ray cannot be started: the current node timed out"
    with nullcontext() if late < 3 else pytest.raises(RunFailedError, match=said):
        module._start(None)
    assert calls == ["init", "shutdown"] * late + ["init"] * (late < 3)
