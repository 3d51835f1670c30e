"""Whole runs in S3, from the shell: killed and resumed elsewhere, then asked all that can be asked.

One starts Ray several times and takes minutes, so these are marked `whole`.
"""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.store.lease import lease_file
from rollart_flow.store.s3.blobs import S3Blobs
from tests.runner.shell import Shell, said_by
from tests.runner.world import check_sound, source
from tests.s3.server import BUCKET, S3Server, s3_server

pytestmark = pytest.mark.whole

GONE_S = 60.0
STEPS = 6


def asked(*arguments: str, store: str) -> Any:
    """What a command prints as JSON."""
    code, said = said_by(*arguments, "--json", store=store)
    assert code == 0, said
    return json.loads(said)


@pytest.mark.timeout(900)
def test_a_run_is_killed_resumed_elsewhere_and_asked(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "coins.py"
    file.write_text(source(tmp_path, steps=STEPS, every=3, warm_start=1))
    with Shell("run", str(file), "--name", "coins", store=remote) as shell:
        shell.wait_for("step 4/")
        shell.kill()
        assert shell.end() == -9
        assert shell.wait_until_all_are_gone(GONE_S) == []
    run = open_run("coins", store=remote)
    assert run.status is RunStatus.INTERRUPTED
    before = run.trajectories.sort("seq").collect()
    assert S3Blobs(run.uri).look("lease.json") is not None, "a kill leaves its lease"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    file.unlink()
    with Shell("resume", "coins", store=remote) as shell:
        assert shell.end() == 0, shell.said
    check_sound(run, STEPS)
    assert run.trajectories.sort("seq").collect().head(before.height).equals(before)
    there = lease_file(run.uri).look()
    assert there is not None
    assert there.released
    asked_of(run, remote)
    forked_from(run, remote, tmp_path)
    assert not list(tmp_path.glob("*/rollart_flow/workshop/*/*")), "every checkpoint was put"
    assert not Path("s3:").exists()


def asked_of(run: Run, store: str) -> None:
    """What is recomputed elsewhere is what was recorded."""
    (listed,) = asked("runs", store=store)
    assert (listed["name"], listed["status"], listed["steps"]) == ("coins", "finished", STEPS)
    for step in ("2", "5"):
        again = asked("replay", "coins", "--step", step, store=store)
        assert again["equal"] is True
    played = run.trajectories.filter(pl.col("split") == "train").sort("seq").head(1).collect()
    trajectory = played["trajectory_id"][0]
    code, said = said_by("replay", "coins", "--trajectory", trajectory, store=store)
    assert code == 0, said
    code, said = said_by("show", "coins", "--trajectory", trajectory, store=store)
    assert code == 0, said
    assert "coin " in said, "the transcript is spelled by the run's tokenizer"
    query = "SELECT max(b.staleness) AS n FROM batches b"
    assert asked("query", f"{store}/coins", query, store=store)[0]["n"] <= 1
    assert run.as_of(step=2).steps.collect().height == 2
    assert asked("simulate", "--from", "coins", store=store)


def forked_from(parent: Run, store: str, folder: Path) -> None:
    """A fork stands for itself."""
    file = folder / "other.py"
    file.write_text(source(folder, steps=4, every=4))
    with Shell("fork", "coins", str(file), "--step", "3", "--name", "fork", store=store) as shell:
        assert shell.end() == 0, shell.said
    child = open_run("fork", store=store)
    assert child.info.parent is not None
    assert child.info.parent.uri == parent.uri
    assert child.steps.collect()["step"].to_list() == [4]


@pytest.mark.timeout(900)
def test_a_run_goes_on_when_the_server_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "server") as server:
        server.client().create_bucket(Bucket=BUCKET)
        told_of(server, tmp_path, monkeypatch)
        file = tmp_path / "coins.py"
        file.write_text(source(tmp_path, steps=STEPS, every=6))
        store = f"s3://{BUCKET}/away"
        with Shell("run", str(file), "--name", "coins", store=store) as shell:
            shell.wait_for("step 2/")
            server.kill()
            server.start()
            assert shell.end() == 0, shell.said
        check_sound(open_run("coins", store=store), STEPS)


def told_of(server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and those that it starts find a server."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
