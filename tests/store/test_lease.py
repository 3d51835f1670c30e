"""The lease of a run in a folder: one process drives it, and what a lost one held is taken over."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from rollart_flow.errors import FencedError, RunFailedError
from rollart_flow.store import Owner, RunStatus, RunWriter, lease, open_run, owner, read_info
from rollart_flow.store.lease import Lease, lease_file
from rollart_flow.store.local_lease import LocalLeaseFile
from tests.builders import trajectories
from tests.runs import ids, new_writer
from tests.store.lease_conformance import LeaseConformance, held_by_another, said_by
from tests.store.leases import driving, state, taken

DRIVE = """
import sys
from rollart_flow.errors import RollartError
from rollart_flow.store import RunWriter
from rollart_flow.store.lease import Lease
from tests.builders import trajectories
try:
    with Lease(sys.argv[1]) as lease:
        writer = RunWriter.open(sys.argv[1], lease.tenure)
        for number in range(1000):
            writer.commit("trajectories", trajectories(range(number, number + 1)))
            print(f"t{number}", flush=True)
            sys.stdin.readline()
except RollartError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    try:
        RunWriter.open(sys.argv[1], lease.tenure)
    except RollartError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run that this process has made."""
    return new_writer(tmp_path).uri


def forget_renewals(run: str, seconds: float = 90.0) -> None:
    """Let the lease and `run.json` look as if nothing had been written for some time."""
    for path in (*Path(run).glob("lease-*.json"), Path(run) / "run.json"):
        moment = path.stat().st_mtime - seconds
        os.utime(path, (moment, moment))


def elsewhere(run: str, **changes: str) -> None:
    """Let the holder of a lease be another one, as another machine or container would write it."""
    (path,) = Path(run).glob("lease-*.json")
    said = json.loads(path.read_text())
    said["owner"] |= changes
    path.write_text(json.dumps(said))


class TestLocalLease(LeaseConformance):
    """A lease in a local folder."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> str:
        return new_writer(tmp_path).uri

    def taken_by(self, run: str, owner: Owner) -> None:
        (Path(run) / "lease-000007.json").write_text(json.dumps(said_by(owner, 7)))


def test_the_files_of_earlier_terms_are_removed(run: str) -> None:
    assert [taken(run), taken(run)] == [1, 2]
    assert [path.name for path in Path(run).glob("*lease*")] == ["lease-000002.json"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs namespaces")
def test_a_driver_in_another_pid_namespace_does_not_read_as_gone(run: str) -> None:
    with held_by_another(run, *CONTAINER) as container:
        driving(run)
        there = state(run).tenure.owner
        assert (there.pid, there.here, there.gone) == (1, False, False)
        assert read_info(run).status is RunStatus.RUNNING
        with pytest.raises(RunFailedError, match=r"^run a is running \(process 1 on "):
            taken(run)
        forget_renewals(run)
        with pytest.raises(RunFailedError, match=r"has not renewed its lease for 9. s; stop it"):
            taken(run)
        container.kill()
        assert container.stdout is not None
        assert container.stdout.read() == b"", "all processes of the container have ended"
        assert read_info(run).status is RunStatus.INTERRUPTED
        assert taken(run) == 2, "its lock ended with it"


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "gone", "started": "another-boot/1"},
        {"namespace": "pid:[1]", "started": f"{Owner.this_process().started}0"},
    ],
    ids=["machine", "container"],
)
def test_who_cannot_be_seen_drives_until_the_lease_has_run_out(
    run: str, changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollart_flow.store.local_lease._lock", lambda *_: False)
    with Lease(run):
        elsewhere(run, **changes)
        driving(run)
        assert read_info(run).status is RunStatus.RUNNING
        for take_over in (False, True):
            with pytest.raises(RunFailedError, match="and renewed its lease 0 s ago"):
                taken(run, take_over=take_over)
        forget_renewals(run)
        assert read_info(run).status is RunStatus.INTERRUPTED
        assert taken(run) == 2


def test_a_stopped_driver_is_taken_over_on_request_and_told(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.05)
    told: SimpleQueue[str] = SimpleQueue()
    go_on = threading.Event()
    renew = LocalLeaseFile.renew

    def stopped(self: LocalLeaseFile, *arguments: object) -> str | None:
        go_on.wait()
        return renew(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalLeaseFile, "renew", stopped)
    with Lease(run) as mine:
        mine.on_lost(told.put)
        late = RunWriter.open(run, mine.tenure)
        late.commit("trajectories", trajectories(range(1)))
        forget_renewals(run)
        with pytest.raises(RunFailedError, match="stop it first, or `rollart resume a"):
            taken(run)
        monkeypatch.setattr(LocalLeaseFile, "renew", renew)
        with Lease(run, take_over=True) as other:
            assert other.tenure.term == 2
            writer = RunWriter.open(run, other.tenure)
            go_on.set()
            assert told.get(timeout=60).startswith("this process does not drive run ")
            with pytest.raises(FencedError):
                late.commit("trajectories", trajectories(range(1, 2)))
            with pytest.raises(FencedError, match="another writer has taken over"):
                RunWriter.open(run, mine.tenure)
            writer.commit("trajectories", trajectories(range(2, 3)))
            late.close(RunStatus.FAILED, "late")
            assert read_info(run).status is RunStatus.RUNNING
            assert read_info(run).term == 2
    assert ids(open_run(run).trajectories) == ["t0", "t2"]
    assert not state(run).held


def test_of_two_processes_that_drive_a_run_the_one_that_was_stopped_writes_nothing_more(
    run: str,
) -> None:
    command = [sys.executable, "-c", DRIVE, run]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stopped:
        assert stopped.stdin is not None
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "t0\n"
        stopped.send_signal(signal.SIGSTOP)
        forget_renewals(run)
        with Lease(run, take_over=True) as mine:
            writer = RunWriter.open(run, mine.tenure)
            stopped.send_signal(signal.SIGCONT)
            said, _ = stopped.communicate("go on\n", timeout=60)
            assert [line.partition(":")[0] for line in said.splitlines()] == ["FencedError"] * 2
            writer.commit("trajectories", trajectories(range(7, 8)))
    assert ids(open_run(run).trajectories) == ["t0", "t7"]


def test_a_renewal_makes_a_lease_young(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()
    renew = LocalLeaseFile.renew

    def seen(self: LocalLeaseFile, *arguments: object) -> str | None:
        tag = renew(self, *arguments)  # type: ignore[arg-type]
        renewed.set()
        return tag

    with Lease(run):
        forget_renewals(run)
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    monkeypatch.setattr(LocalLeaseFile, "renew", seen)
    with Lease(run):
        forget_renewals(run)
        renewed.clear()
        assert renewed.wait(60)
        assert state(run).age_s < 60


def test_a_lease_whose_file_was_removed_is_lost(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    told: SimpleQueue[str] = SimpleQueue()
    with Lease(run) as mine:
        mine.on_lost(told.put)
        (Path(run) / "lease-000001.json").unlink()
        assert told.get(timeout=60).endswith("its lease was removed")
    assert lease_file(run).look() is None


def test_a_term_is_higher_than_that_of_the_last_driver_also_where_its_lease_is_gone(
    run: str,
) -> None:
    with Lease(run, term=4) as mine:
        assert mine.tenure.term == 5


def test_a_lease_that_was_given_back_drives_nothing_whatever_run_json_says(run: str) -> None:
    with Lease(run):
        assert read_info(run).status is RunStatus.RUNNING
    assert read_info(run).status is RunStatus.INTERRUPTED, "a full disk refused its last status"


def test_a_damaged_lease_is_free_once_it_has_run_out(run: str) -> None:
    (Path(run) / "lease-000007.json").write_text("{ torn")
    with pytest.raises(RunFailedError, match="process 0 on an unknown machine"):
        taken(run)
    forget_renewals(run)
    assert taken(run) == 8


def test_a_process_is_itself_where_proc_shows_another_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as after `unshare --pid` without a /proc of its own."""
    monkeypatch.setattr(owner, "_own_proc", lambda: False)
    here = Owner.this_process()
    assert here.started
    assert not replace(here, pid=os.getppid()).gone, "it exists; more cannot be known"
