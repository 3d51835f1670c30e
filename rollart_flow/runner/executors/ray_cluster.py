"""The Ray cluster that a run uses: a local one, one at an address, or the connected one."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from tempfile import TemporaryFile

import ray
from ray._private import utils, worker
from ray._private.node import Node

from rollart_flow.errors import RunFailedError
from rollart_flow.runner.executors.private_ray import private_ray

_ENVIRONMENT = {
    # Many small processes share few CPUs, whereas Ray starts one process per CPU at a time.
    "RAY_worker_maximum_startup_concurrency": "16",
    # Errors arrive as exceptions; the native log would repeat them, and more, on the terminal.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
}


_STARTS = 3
"""How often a local cluster is started before the run gives up."""
_REACH_S = 10.0
"""Longest time to wait for a cluster's address to answer [s]."""


@contextmanager
def ray_cluster(
    address: str | None = None, *, left: Callable[[], bool] = lambda: False
) -> Iterator[bool]:
    """Connect to Ray for the duration of the context.

    A cluster that the caller has already connected to is used and left unchanged. Without an
    address, and without one in $RAY_ADDRESS, a local cluster starts, which ends with this process.
    It listens on loopback and requires a token (`private_ray`).
    If this process is killed, the kernel ends the cluster; two idle Ray agents, which hold no data
    of a run, may end up to a minute later.

    Args:
        address: address of a running cluster, such as HOST:PORT, or "auto" for this machine's one.
        left: returns, at the end, whether to leave Ray to the end of this process: a thread that
            still calls Ray after `ray.shutdown` would start another cluster.

    Yields:
        Whether the cluster may have other users, and nodes may join it.

    Raises:
        RunFailedError: there is no cluster at the address, or none can be started.
    """
    if ray.is_initialized():
        yield True
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = address or os.environ.get("RAY_ADDRESS")
    with private_ray() if address is None else nullcontext():
        _start(address)
        try:
            yield address is not None
        finally:
            if not left():
                ray.shutdown()


def _start(address: str | None) -> None:
    _check_reachable(address)
    try:
        with _native_stderr_held_back(), _error_messages_not_printed():
            if address is None:
                _start_local()
            else:
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises a bare Exception where its node is late
        lines = str(error).splitlines() or [type(error).__name__]
        if address is not None:
            raise RunFailedError(
                f"there is no Ray cluster at {address}: {lines[0]}; start one with "
                "`ray start --head`, or leave the address out"
            ) from error
        raise RunFailedError(f"Ray cannot be started: {lines[0]}; try again") from error


def _start_local() -> None:
    """Start a local cluster; try again if its processes are late, as on a machine with much load.

    Ray waits for them for a time that no setting of its own changes.
    """
    for tries_left in reversed(range(_STARTS)):
        try:
            with without_watchers():
                ray.init(
                    "local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except Exception:  # Ray raises a bare Exception where its node is late
            ray.shutdown()
            if not tries_left:
                raise
        else:
            return


@contextmanager
def without_watchers() -> Iterator[None]:
    """Keep a Ray that starts in the context from starting what a run on one machine has no use for.

    Three processes forward logs to the driver, which asks for none, ask a cloud for more nodes, and
    answer questions about the cluster over HTTP. The agent of a node, which there has to be, starts
    as that of a Ray installed without its extra `default`: without metrics and a port.
    """
    missing = ImportError("ray[default]")
    changed = [
        (Node, "start_log_monitor", lambda _: None),
        (Node, "start_monitor", lambda _: None),
        (Node, "start_api_server", lambda _, **__: None),
        (utils, "get_dashboard_dependency_error", lambda: missing),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changed]
    try:
        for owner, name, value in changed:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def _error_messages_not_printed() -> Iterator[None]:
    """Keep a Ray that starts in the context from printing errors of calls to stdout.

    A run reports its failures itself, and its output may be read as JSON.
    """
    listen = worker.listen_error_messages
    worker.listen_error_messages = lambda *_: None
    try:
        yield
    finally:
        worker.listen_error_messages = listen


def _check_reachable(address: str | None) -> None:
    """Fail early if no process listens at an address; Ray itself would retry for many minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise RunFailedError(
            f"there is no Ray cluster at {address}: {error}; start one with "
            "`ray start --head`, or leave the address out"
        ) from error


@contextmanager
def _native_stderr_held_back() -> Iterator[None]:
    """Keep native code's stderr output off the terminal unless the block raises."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
