"""Messages of the threads of a session to its main thread, which alone receives signals."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from shlex import quote
from typing import Any

from rollart_flow.errors import ClusterLostError, RunFailedError
from rollart_flow.resources.reasons import failures, is_ours, reason
from rollart_flow.runner.processes import RunProcesses

Messages = SimpleQueue[Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """Message that a stream has ended or failed."""

    stream: str
    error: Exception | None = None


def follow(name: str, stream: Callable[[], Iterator[Any]], messages: Messages) -> None:
    """Run one stream in this thread, and send a message when it ends or fails."""
    error: Exception | None = None
    try:
        for item in stream():
            messages.put((name, item))
    except Exception as raised:  # noqa: BLE001  crosses a thread: raised again in the main one
        error = raised
    messages.put(Ended(name, error))


def watch_for_failure(processes: RunProcesses, messages: Messages) -> None:
    """Wait in this thread until the coordinator says that the run fails, and send a message."""
    try:
        failure = processes.coordinator.call.failed()
    except failures() as error:
        failure = f"the coordinator died: {reason(error)}"
    if failure is not None:
        messages.put(RunFailedError(failure))


def cluster_lost(said: str, uri: str) -> ClusterLostError:
    """Return the failure of a run whose cluster is gone, with the command that continues it."""
    return ClusterLostError(
        f"{said}; `rollart resume {quote(uri)}` continues the run from its tables"
    )


def as_run_failure(stream: str, error: BaseException) -> RunFailedError:
    """Convert an error to a RunFailedError; the message of a foreign error names its stream."""
    if isinstance(error, RunFailedError):
        return error
    said = reason(error)
    return RunFailedError(said if is_ours(error) else f"{stream}: {type(error).__name__}: {said}")
