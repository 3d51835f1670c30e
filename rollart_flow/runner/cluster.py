"""The Ray that a run uses: one of its own on this machine, or the one that is connected already."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

import ray

from rollart_flow.errors import RunFailedError

_ENVIRONMENT = {
    # Many small processes share few CPUs here; Ray's limit is one start per CPU, and it says so.
    "RAY_worker_maximum_startup_concurrency": "16",
    # Errors reach us as exceptions; the native log repeats them, and more, on the terminal.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
}


_REACH_S = 10.0
"""Longest time to wait for a cluster's address to answer [s]."""


@contextmanager
def ray_cluster(address: str | None = None) -> Iterator[bool]:
    """Connect to Ray for as long as the context lasts; whether others share it and nodes may join.

    A cluster that the caller has connected to is used and left as it is. Without an address, and
    without one in $RAY_ADDRESS, a local one is started, which ends with this process. Where that is
    killed, the kernel ends the cluster; two idle agents of Ray, which hold nothing of a run, may
    follow only after a minute.

    Args:
        address: of a running cluster, such as "auto" for the one of this machine, or HOST:PORT.

    Raises:
        RunFailedError: there is no cluster at the address, or none can be started.
    """
    if ray.is_initialized():
        yield True
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = address or os.environ.get("RAY_ADDRESS")
    _start(address)
    try:
        yield address is not None
    finally:
        ray.shutdown()


def _start(address: str | None) -> None:
    _check_reachable(address)
    try:
        with _native_stderr_held_back():
            if address is None:
                ray.init(
                    "local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
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


def _check_reachable(address: str | None) -> None:
    """Ray itself would try for many minutes to reach an address where nobody listens."""
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
    """Keep what native code writes to stderr off the terminal unless the block raises."""
    sys.stderr.flush()
    kept = os.dup(2)
    with TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
