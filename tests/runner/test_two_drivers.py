"""Two processes that drive one run: one goes on, the other is told and writes nothing more."""

import os
import signal
from pathlib import Path

import polars as pl
import pytest

from rollart_flow.store import RunStatus, open_run
from tests.runner.shell import Shell, said_by
from tests.runner.world import source

pytestmark = pytest.mark.whole


def test_a_driver_that_was_stopped_is_taken_over_and_ends_without_harm(tmp_path: Path) -> None:
    file = tmp_path / "coins.py"
    file.write_text(source(tmp_path, steps=1000, every=1000))
    inline = ("--executor", "inline")
    with Shell("run", str(file), "--name", "a", *inline, store=tmp_path) as late:
        late.wait_for("step 1/")
        os.kill(late.pid, signal.SIGSTOP)
        refused = {"resume": "wait for it", "--take-over": "60 s after its last renewal"}
        for option, said_of in refused.items():
            options = [option] if option.startswith("-") else []
            code, said = said_by("resume", "a", *options, *inline, store=tmp_path)
            assert (code, said.count("\n")) == (1, 1)
            assert said.startswith(f"error: run a is running (process {late.pid} on ")
            assert said_of in said
        (lease,) = (tmp_path / "a").glob("lease-*.json")
        os.utime(lease, (0, 0))
        with Shell("resume", "a", "--take-over", *inline, store=tmp_path) as shell:
            shell.wait_for("rolling out")
            os.kill(late.pid, signal.SIGCONT)
            assert late.end() == 1, late.said
            assert any(
                said in late.said.splitlines()[-1]
                for said in ("does not drive run", "another writer has taken over")
            )
            assert open_run(tmp_path / "a").info.status is RunStatus.RUNNING
            shell.wait_for("step 100/")
            shell.interrupt()
            assert shell.end() == 128 + signal.SIGINT, shell.said
    run = open_run(tmp_path / "a")
    assert run.info.status is RunStatus.INTERRUPTED
    assert run.info.term > 2
    steps = run.steps.sort("step").collect()["step"]
    assert steps.to_list() == list(range(1, len(steps) + 1))
    assert run.trajectories.select(pl.col("trajectory_id").is_unique().all()).collect().item()
