"""What the lease of a run promises in every kind of store. The test of a store subclasses
`LeaseConformance`, gives the fixture `run` and `left_by`, and inherits every test.
"""

import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

import pytest

from rollart_flow.errors import RunFailedError
from rollart_flow.store import Owner, RunStatus, lease, lease_file, read_info
from rollart_flow.store.lease import Lease
from rollart_flow.store.lease_file import LeaseFile, LeaseState
from tests.store.leases import driving, state, taken

ELSEWHERE = Owner("another-machine", 1, "another-boot/1")
HOLD = """
import sys
from rollart_flow.store.lease import Lease
with Lease(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another(run: str, *inside: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lease of a run, and reads from its input until it ends."""
    with subprocess.Popen(
        [*inside, sys.executable, "-c", HOLD, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder
        holder.kill()


def said_by(owner: Owner, term: int) -> dict[str, Any]:
    """The content of a lease of another process."""
    return {
        "owner": asdict(owner), "term": term, "token": "another's", "released": False
    }  # fmt: skip


class LeaseConformance(ABC):
    """The tests."""

    @pytest.fixture
    @abstractmethod
    def run(self) -> str:
        """The address of a run without a lease."""

    @abstractmethod
    def taken_by(self, run: str, owner: Owner) -> None:
        """Let another process have taken the lease just now, whoever had it."""

    def test_a_lease_is_held_once_and_given_back(self, run: str) -> None:
        with Lease(run) as mine:
            driving(run)
            with pytest.raises(
                RunFailedError, match=rf"^run a is running \(process {os.getpid()} on .*; wait for"
            ):
                taken(run)
            with pytest.raises(RunFailedError, match="--take-over` 60 s after its last renewal"):
                taken(run, take_over=True)
            assert mine.tenure.term == 1
            assert read_info(run).status is RunStatus.RUNNING
        assert state(run).released
        assert taken(run) == 2, "a later holder has a higher term"

    def test_of_many_who_want_it_at_once_one_gets_it(self, run: str) -> None:
        got, refused = [], []
        everyone, done = threading.Barrier(6), threading.Barrier(6)

        def take() -> None:
            everyone.wait()
            try:
                with Lease(run):
                    got.append(1)
                    done.wait()
            except RunFailedError:
                refused.append(1)
                done.wait()

        threads = [threading.Thread(target=take) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(got), len(refused)) == (1, 5)

    def test_what_a_killed_process_of_this_machine_held_is_free_at_once(self, run: str) -> None:
        with held_by_another(run) as holder:
            driving(run)
            with pytest.raises(RunFailedError, match=rf"running \(process {holder.pid} "):
                taken(run)
            holder.kill()
            holder.wait()
            assert read_info(run).status is RunStatus.INTERRUPTED
            assert taken(run) == 2

    def test_what_another_machine_held_is_free_once_it_has_run_out(
        self, run: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.taken_by(run, ELSEWHERE)
        driving(run)
        assert read_info(run).status is RunStatus.RUNNING
        for take_over in (False, True):
            with pytest.raises(
                RunFailedError, match=r"process 1 on another-machine\) and renewed its lease"
            ):
                taken(run, take_over=take_over)
        monkeypatch.setattr(lease_file, "EXPIRES_S", -1.0)
        assert read_info(run).status is RunStatus.INTERRUPTED
        assert taken(run) == 8

    def test_a_lease_is_renewed_while_it_is_held(
        self, run: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        renewed: SimpleQueue[str | None] = SimpleQueue()
        kind = type(lease.lease_file(run))
        renew = kind.renew

        def seen(self: LeaseFile, *arguments: Any) -> str | None:
            tag = renew(self, *arguments)
            renewed.put(tag)
            return tag

        monkeypatch.setattr(lease, "RENEW_S", 0.05)
        monkeypatch.setattr(kind, "renew", seen)
        with Lease(run):
            tags = [renewed.get(timeout=60) for _ in range(2)]
        assert None not in tags
        assert state(run).released

    def test_a_holder_that_loses_the_lease_is_told_and_leaves_it_to_the_taker(
        self, run: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "RENEW_S", 0.05)
        told: SimpleQueue[str] = SimpleQueue()
        with Lease(run) as mine:
            mine.on_lost(told.put)
            self.taken_by(run, ELSEWHERE)
            assert told.get(timeout=60).endswith("process 1 on another-machine took it over")
        there: LeaseState = state(run)
        assert there.tenure.owner.host == ELSEWHERE.host
        assert not there.released
