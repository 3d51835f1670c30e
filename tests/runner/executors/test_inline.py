"""Runs in this process: the same tables and guarantees as on Ray, breakpoints, interruption."""

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay.step import replay_step
from rollart_flow.resources import garbage
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.runner.executors.inline import InlineExecutor
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.types import Outcome, Reason
from tests.cli.shell import COMMAND
from tests.runner.shell import Shell
from tests.runner.world import check_sound, source

STEPS = 4

QUESTIONS = """
import threading
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.types import Task


class Question(Environment):
    inline = False
    version = "question/1"

    def reset(self, seed, task):
        self.task = task
        return "odd or even?", {}

    def step(self, action):
        reached(self.task)
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
            yield Task(f"q-{count}", self.name, str(count))
            count += 1


def judge(trajectory):
    return float(sum(trajectory.token_ids) % 3)


def reached(task):
    pass


<change>
policy = Policy.tiny(hidden=16, layers=1, heads=2)
trajectories = rollout(tasks(Questions(), group_size=4), policy, max_tokens=4<limits>)
batches = buffer(reward(trajectories, judge<reward>), batch_size=8, alpha=1)
pipeline = Pipeline("questions", train(batches, policy, grpo(), steps=3))
"""


def questions(change: str = "", limits: str = "", reward: str = "") -> str:
    """A pipeline whose environments and rewards are not cheap enough for the event loop."""
    filled = QUESTIONS.replace("<change>", change).replace("<limits>", limits)
    return filled.replace("<reward>", reward)


def run_inline(text: str, store: Path) -> Run:
    loaded = load_source(text, store / "pipeline.py")
    return open_run(runner.run(loaded, store=str(store), name="here", executor="inline").uri)


def test_a_run_is_sound_and_replays_to_the_bit(tmp_path: Path) -> None:
    store = tmp_path / "a b#c?d%e{f}ü"  # any letters that a path may have
    run = run_inline(source(tmp_path, steps=STEPS, every=2), store)
    check_sound(run, STEPS)
    assert run.info.status is RunStatus.FINISHED
    assert sorted(set(run.evaluations.collect()["policy_version"])) == [0, 2, 4]
    assert replay_step(run.uri, STEPS).equal
    bindings = run.bindings.collect()
    assert set(bindings["role"]) == {"generation", "training", "evaluation"}
    assert set(bindings["granted"]) == {"CPU"}


@pytest.mark.parametrize("frozen", [False, True])
def test_objects_that_the_caller_excludes_from_garbage_collection_stay_excluded(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "_excluded", False)
    (gc.freeze if frozen else gc.unfreeze)()
    try:
        with InlineExecutor():
            freeze_heap()  # as the workers of a run do
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.freeze()


def test_a_slow_attempt_delays_no_other_one_of_its_block(tmp_path: Path) -> None:
    """It ends only after the first step, which other attempts of its block are trained in."""
    change = """
trained = threading.Event()


def reached(task):
    if task == "0" and not trained.is_set():
        trained.wait()
"""
    loaded = load_source(questions(change), tmp_path / "pipeline.py")
    trained = loaded.pipeline.tasks.domains[0].tasks.__globals__["trained"]
    result = runner.run(
        loaded,
        store=str(tmp_path),
        executor="inline",
        on_progress=lambda progress: trained.set() if progress.row else None,
    )
    now = open_run(result.uri).snapshot()
    first = now.trajectories.filter(pl.col("task_id") == "q-0").collect()
    batches = now.batches.collect()
    assert batches.height == 3 * 8
    assert not set(first["trajectory_id"]) & set(batches.filter(step=1)["trajectory_id"])


def test_what_hangs_is_abandoned_and_the_run_goes_on(tmp_path: Path) -> None:
    change = """
def reached(task):
    if task == "1":
        threading.Event().wait()


def judge(trajectory):
    if trajectory.task == "2":
        threading.Event().wait()
    if trajectory.task == "3":
        raise KeyError("no answer")
    return 1.0
"""
    text = questions(change, limits=", step_timeout_s=0.2", reward=", timeout_s=0.2")
    rows = run_inline(text, tmp_path).trajectories.collect()
    by_task = {
        task: set(zip(of["outcome"], of["reason"], strict=True))
        for (task,), of in rows.filter(pl.col("outcome") != Outcome.CANCELLED).group_by("task_id")
    }
    assert (Outcome.TIMED_OUT, Reason.ENVIRONMENT_TIMEOUT) in by_task["q-1"]
    assert (Outcome.TIMED_OUT, Reason.REWARD_TIMEOUT) in by_task["q-2"]
    assert (Outcome.FAILED, Reason.REWARD_ERROR) in by_task["q-3"]
    assert by_task["q-0"] == {(Outcome.COMPLETED, None)}


def test_a_breakpoint_stops_in_an_environment_and_in_a_reward(tmp_path: Path) -> None:
    change = """
first, second, left = threading.Lock(), threading.Lock(), threading.Event()


def reached(task):
    if first.acquire(blocking=False):
        place = "environment"
        breakpoint()
        left.set()


def judge(trajectory):
    if left.is_set() and second.acquire(blocking=False):
        place = "reward"
        breakpoint()
    return 1.0
"""
    file = tmp_path / "questions.py"
    file.write_text(questions(change))
    done = subprocess.run(
        [*COMMAND, "run", str(file), "--executor", "inline", "--store", str(tmp_path)],
        input="p place, 6 * 7\ncontinue\n" * 2,
        env={**os.environ, "PYTHONBREAKPOINT": "pdb.set_trace"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "('environment', 42)" in done.stdout
    assert "('reward', 42)" in done.stdout
    assert "finished, 3 steps" in done.stdout


def test_an_interrupted_run_says_how_to_resume_it(tmp_path: Path) -> None:
    file = tmp_path / "coins.py"
    file.write_text(source(tmp_path, steps=1000, every=1000))
    with Shell("run", str(file), "--name", "a", "--executor", "inline", store=tmp_path) as shell:
        shell.wait_for("step 1/")
        shell.interrupt()
        shell.wait_for("interrupted; `rollart resume a --executor inline` continues the run")
        assert shell.end() == 128 + signal.SIGINT
    assert open_run(tmp_path / "a").info.status is RunStatus.INTERRUPTED


def test_what_needs_processes_of_its_own_is_refused_in_one_line(tmp_path: Path) -> None:
    loaded = load_source(
        source(tmp_path), tmp_path / "coins.py", {"train.ranks": "2", "backend": "fsdp2"}
    )
    with pytest.raises(SettingsError, match=r"train\.ranks=2 needs processes of its own"):
        runner.run(loaded, store=str(tmp_path), executor="inline")
    loaded = load_source(source(tmp_path), tmp_path / "coins.py")
    with pytest.raises(SettingsError, match="executor='thread': expected one of inline, ray"):
        runner.run(loaded, store=str(tmp_path), executor="thread")
    with pytest.raises(SettingsError, match="inline uses no cluster"):
        runner.run(loaded, store=str(tmp_path), executor="inline", address="auto")
    assert not list(tmp_path.glob("*/run.json")), "no run was created"


def test_a_pipeline_runs_from_its_own_file_and_loads_neither_ray_nor_ray_data(
    tmp_path: Path,
) -> None:
    file = tmp_path / "questions.py"
    call = 'pipeline.run(executor="inline", store=sys.argv[1], name="a")'
    said = f'{call}.status, "ray" in sys.modules'
    main = f'\nif __name__ == "__main__":\n    import sys\n\n    print({said})\n'
    file.write_text(questions() + main)
    done = subprocess.run(
        [sys.executable, str(file), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["finished", "False"]
    stored = open_run(tmp_path / "a")
    assert stored.info.pipeline == "questions"
    assert (tmp_path / "a" / "pipeline.py").read_text() == file.read_text()


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    change = """
def judge(trajectory):
    raise KeyError("no answer")
"""
    with pytest.raises(RunFailedError, match="no answer"):
        run_inline(questions(change), tmp_path)
    info = json.loads((tmp_path / "here" / "run.json").read_text())
    assert info["status"] == RunStatus.FAILED
