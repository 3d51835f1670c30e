"""The lease of a run: one process drives it, and what a kill leaves is taken over."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from queue import SimpleQueue

import pytest

from rollart_flow.errors import RunFailedError, StoreError
from rollart_flow.store import Owner, RunStatus, lease, read_info
from rollart_flow.store.info import write_info
from rollart_flow.store.lease import Lease, lease_file
from rollart_flow.store.s3.blobs import S3Blobs
from tests.runs import info

ELSEWHERE = Owner("another-machine", 1, "")
HOLD = "import sys\nfrom rollart_flow.store.lease import Lease\n"
HOLD += "with Lease(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()\n"


@pytest.fixture
def run(remote: str) -> str:
    """A run that a process of another machine has made."""
    write_info(f"{remote}/a", replace(info(), owner=ELSEWHERE), new=True)
    return f"{remote}/a"


def left_by(owner: Owner, run: str) -> None:
    """A lease as a killed process leaves it."""
    content = {"owner": {"host": owner.host, "pid": owner.pid, "started": owner.started}}
    assert S3Blobs(run).claim("lease.json", json.dumps(content).encode())


def released(run: str) -> bool:
    """Whether the lease of a run was given back."""
    there = lease_file(run).look()
    assert there is not None
    return there.released


def test_a_lease_is_held_once_and_given_back(run: str) -> None:
    with Lease(run):
        with pytest.raises(RunFailedError, match=rf"running \(process {os.getpid()} on .*; wait"):
            Lease(run).__enter__()
        assert read_info(run).status is RunStatus.RUNNING
    with Lease(run) as again:
        assert again.tenure.term == 2, "a later holder has a higher term"
    assert released(run)


def test_of_many_who_want_it_at_once_one_gets_it(run: str) -> None:
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


def test_what_a_killed_process_of_this_machine_held_is_free_at_once(run: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunFailedError, match=rf"running \(process {holder.pid} "):
            Lease(run).__enter__()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with Lease(run):
        pass


def test_what_another_machine_held_is_free_once_it_gave_no_sign_of_life_for_long(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by(ELSEWHERE, run)
    assert read_info(run).status is RunStatus.RUNNING
    with pytest.raises(
        RunFailedError, match=r"process 1 on another-machine\) and renewed its lease"
    ):
        Lease(run).__enter__()
    monkeypatch.setattr("rollart_flow.store.lease_file.EXPIRES_S", -1.0)
    assert read_info(run).status is RunStatus.INTERRUPTED
    with Lease(run):
        pass


def test_a_lease_is_renewed_while_it_is_held(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()
    swap = S3Blobs.swap

    def seen(self: S3Blobs, name: str, data: bytes, tag: str) -> str | None:
        new = swap(self, name, data, tag)
        renewed.set()
        return new

    monkeypatch.setattr(lease, "RENEW_S", 0.05)
    monkeypatch.setattr(S3Blobs, "swap", seen)
    with Lease(run):
        first = S3Blobs(run).look("lease.json")
        assert renewed.wait(30)
        assert first is not None
        assert S3Blobs(run).look("lease.json") != first
    assert released(run)


def test_a_lease_that_was_lost_is_left_to_who_took_it(run: str) -> None:
    with Lease(run):
        S3Blobs(run).remove("lease.json")
        left_by(ELSEWHERE, run)
    assert not released(run)


def test_a_renewal_whose_answer_was_lost_is_known_to_be_ones_own(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = S3Blobs.swap
    put, lost_one, renewed = [], threading.Event(), threading.Event()

    def unanswered(self: S3Blobs, name: str, data: bytes, tag: str) -> str | None:
        new = swap(self, name, data, tag)
        put.append(new)
        if len(put) == 1:
            lost_one.set()
            raise OSError("the connection broke before the answer came")
        if new is not None:
            renewed.set()
        return new

    monkeypatch.setattr(lease, "RENEW_S", 0.05)
    monkeypatch.setattr(S3Blobs, "swap", unanswered)
    told: SimpleQueue[str] = SimpleQueue()
    with Lease(run) as mine:
        mine.on_lost(told.put)
        assert lost_one.wait(60)
        assert renewed.wait(60), "the lease is renewed after it"
    assert put[1] is None, "the second renewal still had the tag before the first"
    assert told.empty()
    assert released(run)


def test_a_lease_that_another_process_took_is_said_to_be_lost(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.05)
    told: SimpleQueue[str] = SimpleQueue()
    with Lease(run) as mine:
        mine.on_lost(told.put)
        S3Blobs(run).remove("lease.json")
        left_by(ELSEWHERE, run)
        assert told.get(timeout=60).endswith("process 1 on another-machine took it over")


def test_no_lease_is_taken_where_the_bucket_is_missing(remote: str) -> None:
    with pytest.raises(StoreError, match=r"^cannot take the lease of s3://nowhere/a: there is no"):
        Lease("s3://nowhere/a").__enter__()
