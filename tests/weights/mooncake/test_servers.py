"""The servers of a Mooncake store end with whoever started them, however that ends."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_flow.errors import WeightsError
from rollart_flow.weights.mooncake import servers
from rollart_flow.weights.mooncake.servers import (
    LEAST_SEGMENT_BYTES,
    MooncakeServers,
    segment_bytes,
)
from tests.extras import with_mooncake

ROOT = Path(__file__).parents[3]
OWNER = """
import signal
from rollart_flow.weights.mooncake.servers import LEAST_SEGMENT_BYTES, MooncakeServers
print(*MooncakeServers(LEAST_SEGMENT_BYTES).pids, flush=True)
signal.pause()
"""


def ends(pidfd: int) -> bool:
    """Whether a process ends within a minute."""
    with open(pidfd, closefd=True):
        return bool(select.select([pidfd], [], [], 60)[0])


@with_mooncake
def test_they_end_where_their_owner_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", OWNER]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        watched = [os.pidfd_open(pid) for pid in pids]
        owner.kill()
    assert len(pids) == 2
    assert all(ends(pidfd) for pidfd in watched)


@with_mooncake
def test_one_that_is_killed_is_replaced_once_and_close_ends_both() -> None:
    run = MooncakeServers(LEAST_SEGMENT_BYTES)
    first = run.pids
    assert run.starts == 1
    os.kill(first[0], signal.SIGKILL)
    assert run.restarted.wait(60)
    second = run.pids
    assert run.lost
    assert not set(first) & set(second)
    run.close()
    run.close()
    assert run.pids == ()
    for pid in (*first, *second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_cannot_be_started_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that refuses its options stands for a library of the system that is missing."""
    for name in ("mooncake_master", "mooncake_client"):
        (tmp_path / name).write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(servers, "package_folder", lambda: tmp_path)
    with pytest.raises(WeightsError, match=r"cannot be started at .*: no such library") as caught:
        MooncakeServers(LEAST_SEGMENT_BYTES)
    assert "\n" not in str(caught.value)


def test_memory_is_for_what_is_kept_published_and_still_read() -> None:
    assert segment_bytes(1000, 4) == LEAST_SEGMENT_BYTES
    assert 6 << 30 < segment_bytes(1 << 30, 4) < 7 << 30
