"""Whatever hangs is named while the run goes on, and Ctrl-C or SIGTERM end it as interrupted.

A run that was interrupted on Ray goes on in one process; `test_sandboxes` has the other way.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollart_flow import runner
from rollart_flow.runner import session
from rollart_flow.store import RunStatus, open_run, read_info
from rollart_flow.store.waits import ProcessState, ProcessWaits, is_stopped, read_waits
from tests.cli.shell import COMMAND, rollart
from tests.runner.shell import Shell
from tests.runner.world import check_sound

MINUTE_S = 60.0
BRIEF = (
    sys.executable,
    "-c",
    "import sys; from rollart_flow.cli import main; from rollart_flow.runner import session; "
    "session._STREAMS_S = session._THREADS_S = session._CLOSE_S = 1.0; sys.exit(main())",
)
"""The command with short limits of a run's end, for ends at which each is reached."""

PIPELINE = """
import time
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.types import Task


class Question(Environment):
    inline = True
    version = "question/1"

    def reset(self, seed, task):
        return "odd or even?", {}

    def step(self, action):
        if <hang_environment>:
            time.sleep(3600)
        return "", float(len(action) % 2), True, False, {}


@dataclass(frozen=True)
class Questions(Domain):
    name: ClassVar[str] = "questions"
    environment: ClassVar[type[Environment]] = Question
    max_turns: ClassVar[int] = 1

    def make(self):
        return Question()

    def tasks(self, split, seed):
        count = 0
        while True:
            if count == <hang_after>:
                time.sleep(3600)
            yield Task(f"q-{count}", self.name)
            count += 1


policy = Policy.tiny(hidden=16, layers=1, heads=2)
trajectories = rollout(tasks(Questions(), group_size=4), policy, max_tokens=4)
batches = buffer(reward(trajectories), batch_size=8, alpha=1)
pipeline = Pipeline("questions", train(batches, policy, grpo(), steps=100000))
"""


def started(
    folder: Path,
    executor: str,
    *,
    hang_after: int = -1,
    environment: bool = False,
    command: Sequence[str] = COMMAND,
) -> Shell:
    text = PIPELINE.replace("<hang_after>", str(hang_after))
    file = folder / "questions.py"
    file.write_text(text.replace("<hang_environment>", str(environment)))
    options = ("--name", "mine", "--executor", executor)
    return Shell("run", str(file), *options, store=folder, command=command)


def waits_of(folder: Path, process: str) -> ProcessWaits | None:
    found = [each for each in read_waits(str(folder / "mine")) if each.process == process]
    return found[-1] if found else None


def names(folder: Path, process: str) -> str:
    report = waits_of(folder, process)
    return "" if report is None else "; ".join(wait.name for wait in report.waits)


def ends_interrupted(shell: Shell, folder: Path) -> None:
    """It ends within a minute, and `run.json` says so itself."""
    began = time.monotonic()
    assert shell.end() == 130, shell.said
    assert time.monotonic() - began < MINUTE_S
    recorded = json.loads((folder / "mine" / "run.json").read_text())
    assert recorded["status"] == "interrupted"
    assert read_info(str(folder / "mine")).status is RunStatus.INTERRUPTED
    assert shell.wait_until_all_are_gone(30) == []


def test_all_limits_of_the_end_together_are_less_than_a_minute() -> None:
    """The buffer's limit is also that of the sandboxes."""
    limits = (session._STREAMS_S, session._THREADS_S, 2 * session._CLOSE_S)
    assert sum(limits) < MINUTE_S


def test_a_task_source_that_hangs_is_named_and_stops_nothing_else(tmp_path: Path) -> None:
    with started(tmp_path, "inline", hang_after=6) as shell:
        shell.wait_for("step 1/")
        shell.wait_until(lambda: "next task of source questions" in names(tmp_path, "driver"))
        said = rollart("show", "mine", "--waits", "--store", str(tmp_path))
        assert said.code == 0
        assert "next task of source questions" in said.out
        (driver,) = json.loads(
            rollart("show", "mine", "--waits", "--store", str(tmp_path), "--json").out
        )
        assert (driver["process"], driver["state"], driver["pid"]) == (
            "driver",
            "running",
            shell.pid,
        )
        waits: list[dict[str, Any]] = driver["waits"]
        assert all(wait["seconds"] >= 0 for wait in waits)
        assert open_run(str(tmp_path / "mine")).trajectories.collect().height == 24
        shell.interrupt()
        ends_interrupted(shell, tmp_path)


def test_a_loop_that_users_code_holds_is_named_with_its_line(tmp_path: Path) -> None:
    with started(tmp_path, "inline", environment=True, command=BRIEF) as shell:
        shell.wait_until(lambda: "event loop, stuck in" in names(tmp_path, "driver"))
        assert "questions.py:" in names(tmp_path, "driver")
        assert "(step)" in names(tmp_path, "driver")
        os.kill(shell.pid, signal.SIGTERM)
        ends_interrupted(shell, tmp_path)


PROCESSES = {
    *("driver", "buffer", "coordinator", "rollout", "train", "source"),
    *("engine-cpu-0", "trainer-cpu-0"),
}
"""Every process of the run above."""


def test_stopped_processes_are_named_and_the_run_ends_and_goes_on_in_one_process(
    tmp_path: Path,
) -> None:
    with started(tmp_path, "ray", command=BRIEF) as shell:
        shell.wait_for("step 1/")
        run = str(tmp_path / "mine")
        shell.wait_until(lambda: {each.process for each in read_waits(run)} >= PROCESSES)
        for process in ("buffer", "coordinator"):
            report = waits_of(tmp_path, process)
            assert report is not None
            os.kill(report.pid, signal.SIGSTOP)
            shell.wait_until(partial(is_stopped, report.pid))
        said = rollart("show", "mine", "--waits", "--store", str(tmp_path), "--json").out
        states = {each["process"]: each["state"] for each in json.loads(said)}
        assert states["buffer"] == states["coordinator"] == ProcessState.STOPPED
        assert states["driver"] == ProcessState.RUNNING
        os.kill(shell.pid, signal.SIGTERM)
        ends_interrupted(shell, tmp_path)
    trained = open_run(run).steps.collect().height
    resumed = runner.resume(run, steps=trained + 1, executor="inline")
    assert resumed.status is RunStatus.FINISHED
    check_sound(open_run(run), trained + 1)
