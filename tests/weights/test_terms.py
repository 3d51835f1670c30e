"""Names of versions and checkpoints: those of a driver that lost its run are not in force."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_flow.errors import RunFailedError
from rollart_flow.store.lease import Lease
from rollart_flow.trainers.checkpoint.retention import checkpoint_folder, remove_checkpoints_after
from rollart_flow.weights.folder_store import names_in
from rollart_flow.weights.local import LocalWeightStore
from rollart_flow.weights.terms import (
    FIRST,
    FolderTerm,
    folder_name,
    in_force,
    numbered,
    term_of,
)
from tests.runs import new_writer
from tests.weights.conformance import assert_is_version, tensors_of


def forced(*names: str) -> dict[int, str]:
    """Folders in force of versions."""
    return in_force(numbered(names, "v"))


def test_a_name_says_its_number_and_its_driver() -> None:
    term = FolderTerm(2, 30)
    assert folder_name("v", 31, term) == "v000031.000002-000030"
    (found,) = numbered(["v000031.000002-000030", "000031", "v31", ".lock", "vapour"], "v")
    assert (found.number, found.term) == (31, term)
    assert term_of("anything") == FIRST
    assert folder_name("", 7) == "000007"


def test_the_folders_of_one_driver_are_in_force() -> None:
    assert forced("v000002", "v000000") == {0: "v000000", 2: "v000002"}


def test_a_driver_inherits_up_to_the_version_from_which_it_continues() -> None:
    found = forced("v000000", "v000001", "v000002", "v000003", "v000001.000002-000001")
    assert found == {0: "v000000", 1: "v000001.000002-000001"}


def test_what_a_lost_driver_adds_later_is_never_in_force() -> None:
    own = ("v000008.000002-000001", "v000009.000002-000001")
    assert forced(*own, "v000002", "v000008", "v000010") == {8: own[0], 9: own[1]}


def test_the_lowest_of_later_continuations_counts() -> None:
    """The third driver continued from 4, and the second one from 6."""
    names = ("v000005", "v000004", "v000005.000002-000006", "v000007.000002-000006")
    assert forced(*names, "v000004.000003-000004") == {4: "v000004.000003-000004"}


DRIVE = """
import sys
from pathlib import Path
from rollart_flow.store.lease import Lease
from rollart_flow.trainers.checkpoint.retention import checkpoint_folder
from rollart_flow.weights.local import LocalWeightStore
from tests.weights.conformance import tensors_of

run, store = sys.argv[1], LocalWeightStore(sys.argv[1] + "/weights")

def step(number):
    store.publish(number, tensors_of(100 + number if number > 1 else number))
    Path(checkpoint_folder(run + "/checkpoints", number)).mkdir(parents=True)
    print(number, flush=True)

with Lease(run):
    step(1)
    sys.stdin.readline()
    step(2)
    store.retain(1)
    step(3)
"""


def test_a_stopped_driver_whose_run_was_taken_over_gives_it_no_version_and_no_checkpoint(
    tmp_path: Path,
) -> None:
    run = new_writer(tmp_path).uri
    command = [sys.executable, "-c", DRIVE, run]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stopped:
        assert stopped.stdin is not None
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "1\n"
        stopped.send_signal(signal.SIGSTOP)
        (lease,) = Path(run).glob("lease-*.json")
        os.utime(lease, (0, 0))
        with pytest.raises(RunFailedError, match="stop it first"), Lease(run):
            pass
        with Lease(run, take_over=True) as mine:
            term = FolderTerm(mine.tenure.term, 1)
            own, checkpoints = LocalWeightStore(f"{run}/weights"), f"{run}/checkpoints"
            own.begin_term(term)
            remove_checkpoints_after(checkpoints, 1, term)
            own.publish(1, tensors_of(1))
            stopped.send_signal(signal.SIGCONT)
            said, _ = stopped.communicate("go on\n", timeout=60)
            assert said == "2\n3\n", "it goes on to write"

            reader = LocalWeightStore(f"{run}/weights")
            assert reader.versions() == (1,), "what it published is not there"
            own.publish(2, tensors_of(2))
            assert_is_version(reader.read(2), 2)
            assert reader.versions() == (1, 2), "what it removed was its own"
            Path(checkpoint_folder(checkpoints, 2, term)).mkdir()
            there = in_force(numbered(names_in(checkpoints), ""))
            assert there == {1: "000001", 2: f"000002{term.suffix}"}
