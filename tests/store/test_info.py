"""`run.json`: what is written is read, and what cannot be understood is refused."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.errors import RunExistsError, RunNotFoundError, StoreError
from rollart_flow.schema import SCHEMA_VERSION
from rollart_flow.store import Owner, Parent, RunInfo, RunStatus, read_info
from rollart_flow.store.info import write_info
from tests.runs import info


def test_information_comes_back_as_it_was_written(tmp_path: Path) -> None:
    given = RunInfo(
        name="a",
        pipeline="two-domains",
        seed=3,
        settings={"buffer": {"alpha": 1.5}},
        overrides={"steps": 20},
        parent=Parent("s3://bucket/runs/b", 41),
        status=RunStatus.FAILED,
        error="no space left",
    )
    write_info(str(tmp_path), given)
    assert read_info(str(tmp_path)) == given
    assert given.versions["polars"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_run_is_claimed_once(tmp_path: Path) -> None:
    write_info(str(tmp_path), info("first"), new=True)
    with pytest.raises(RunExistsError, match="choose another name"):
        write_info(str(tmp_path), info("second"), new=True)
    assert read_info(str(tmp_path)).name == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_run_whose_owner_is_gone_is_interrupted(tmp_path: Path) -> None:
    code = "from rollart_flow.store import Owner; o = Owner.this_process(); print(o.pid, o.started)"
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    pid, started = out.stdout.split()
    here = Owner.this_process()
    owners = {
        Owner(here.host, int(pid), started): RunStatus.INTERRUPTED,
        replace(here, started="a process before this one"): RunStatus.INTERRUPTED,
        Owner("another-host", int(pid), started): RunStatus.RUNNING,
        here: RunStatus.RUNNING,
    }
    for owner, expected in owners.items():
        write_info(str(tmp_path), replace(info(), owner=owner))
        assert read_info(str(tmp_path)).status is expected
    write_info(str(tmp_path), replace(info(), owner=owner, status=RunStatus.FINISHED))
    assert read_info(str(tmp_path)).status is RunStatus.FINISHED


def test_a_process_that_died_and_was_not_waited_for_is_gone() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert Owner(Owner.this_process().host, child, "any").gone
    os.waitpid(child, 0)


def test_a_newer_schema_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    values = json.loads(info().to_json()) | {"schema_version": SCHEMA_VERSION + 1, "mood": "good"}
    (tmp_path / "run.json").write_text(json.dumps(values))
    with pytest.raises(
        StoreError, match=rf"version {SCHEMA_VERSION + 1}, .* reads up to {SCHEMA_VERSION}; upgrade"
    ):
        read_info(str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": "a"}', "\udcff"])
def test_damaged_information_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StoreError, match=r"run\.json is damaged .*; restore it") as caught:
        read_info(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_no_information_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match=r"there is no run\.json"):
        read_info(str(tmp_path / "nothing"))
