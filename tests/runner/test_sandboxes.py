"""Runs whose environments use boxes of pools: rows, leftovers, broken tasks, killed pools."""

import os
import signal
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import SandboxError
from rollart_flow.operators import evaluate
from rollart_flow.pipeline.loading import load_source
from rollart_flow.sandbox.base import Sandbox, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.bubblewrap.variant import VARIANT, BubblewrapVariant
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.types import EventKind, Outcome, Reason, Split
from tests.operators.test_sandboxes import agents_of
from tests.runner.local import calling, events, run_with

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())

PIPELINE = '''
"""Actions are counted in a box."""

from dataclasses import dataclass
from typing import ClassVar

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.types import Task

LIMITS = SandboxLimits(memory_mb=64, disk_mb=8, processes=16)


def spec(task):
    return SandboxSpec(limits=LIMITS, workdir="/bad" if task == "bad" else "/work")


class Counting(Environment):
    version = "counting/1"

    def reset(self, seed, task):
        self.box = self.boxes.open(spec(task))
        self.box.exec("sleep 600 &")
        return "go", {}

    def step(self, action):
        size = self.box.exec("cat | wc -c", stdin=action.encode()).stdout
        return size, float(int(size) % 3), False, False, {}


@dataclass(frozen=True)
class Counts(Domain):
    name: ClassVar[str] = "counts"
    environment: ClassVar[type[Environment]] = Counting
    max_turns: int = 2
    bad: bool = False

    def tasks(self, split, seed):
        number = 0
        while True:
            bad = self.bad and number % 2
            yield Task("bad" if bad else f"good/{number}", "counts", "bad" if bad else "good")
            number += 1

    def box(self, task):
        return spec(task)


policy = Policy.tiny(hidden=16, layers=1, heads=2)
prompts = tasks(Counts(), group_size=2)
attempts = rollout(prompts, policy, max_tokens=4, step_timeout_s=60, max_sandbox_failures=3)
batches = buffer(reward(attempts), batch_size=4, alpha=1)
pipeline = Pipeline("counts", train(batches, policy, grpo(), steps=3))
'''


def check_boxes(run: Run) -> pl.DataFrame:
    """Each attempt that has begun has had one box, which ended with it; return the rows."""
    boxes = run.sandboxes.collect()
    begun = run.trajectories.filter(pl.col("turns").list.len() > 0).collect()
    used = boxes.filter(pl.col("trajectory_id").is_not_null())
    assert boxes["sandbox_id"].is_unique().all()
    assert used["trajectory_id"].is_unique().all()
    assert {*begun["trajectory_id"]} <= {*used["trajectory_id"]}
    known = dict(run.trajectories.select("trajectory_id", "task_id").collect().iter_rows())
    for row in used.iter_rows(named=True):
        assert row["task_id"] == known[row["trajectory_id"]]
        assert row["created_at"] <= row["ready_at"] <= row["leased_at"] <= row["ended_at"]
        assert row["wait_s"] >= 0
        assert (row["pool"], row["variant"], row["domain"]) == (
            "sandbox-cpu-0", "bubblewrap", "counts",
        )  # fmt: skip
    whole = used.filter(pl.col("trajectory_id").is_in(completed(run)))
    assert {*whole["execs"]} == {3}
    assert (whole["leaked"] >= 1).all()
    assert {*whole["killed_by"]} == {""}
    bound = run.bindings.filter(pl.col("role") == "sandbox").collect()
    assert ({*bound["worker"]}, {*bound["granted"]}) == ({"sandbox-cpu-0"}, {"CPU"})
    assert {*boxes["node"]} == {*bound["node"]}
    return boxes


def completed(run: Run) -> list[str]:
    whole = run.trajectories.filter(pl.col("outcome") == Outcome.TRUNCATED)
    return whole.collect()["trajectory_id"].to_list()


def test_a_run_in_this_process_leaves_a_row_for_each_box_and_no_box(tmp_path: Path) -> None:
    run = run_with(PIPELINE, tmp_path, executor="inline")
    boxes = check_boxes(run)
    assert boxes["prewarmed"].any()  # how many depends on how quickly attempts follow
    assert not agents_of(os.getpid())


def test_boxes_of_evaluation_are_made_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_AT_ONCE", 1)  # the others wait, and are announced
    scores = ", evaluate(policy, Counts(), every=1, episodes=4, max_tokens=4))"
    code = PIPELINE.replace("import Pipeline,", "import Pipeline, evaluate,")
    run = run_with(code.replace(", steps=3))", ", steps=1)" + scores), tmp_path, executor="inline")
    split = run.trajectories.filter(pl.col("split") == Split.EVALUATION).collect()
    boxes = run.sandboxes.collect().join(split, "trajectory_id", "semi")
    assert boxes.height == split.height > 4
    assert boxes["prewarmed"].sum() >= boxes.height / 2
    assert not agents_of(os.getpid())


def test_a_run_without_boxes_starts_no_pool(tmp_path: Path) -> None:
    without = PIPELINE.replace("def box(self", "def no_box(self")
    for line in ("self.box = self.boxes.open(spec(task))", 'self.box.exec("sleep 600 &")'):
        without = without.replace(line, "pass")
    counted = 'self.box.exec("cat | wc -c", stdin=action.encode()).stdout'
    without = without.replace(counted, "str(len(action))")
    run = run_with(without, tmp_path, executor="inline")
    assert run.sandboxes.collect().is_empty()
    assert "sandbox" not in {*run.bindings.collect()["role"]}
    assert not agents_of(os.getpid())


def test_a_run_that_was_interrupted_here_leaves_no_box_and_its_rows_go_on_on_ray(
    shared_ray: None, tmp_path: Path
) -> None:
    def interrupt(step: int) -> None:
        raise KeyboardInterrupt

    loaded = load_source(PIPELINE, tmp_path / "counts.py")
    with pytest.raises(KeyboardInterrupt):
        runner.run(
            loaded, store=str(tmp_path), name="counts", executor="inline",
            on_progress=calling(interrupt),
        )  # fmt: skip
    run = open_run(str(tmp_path / "counts"))
    assert run.info.status is RunStatus.INTERRUPTED
    before = run.sandboxes.collect()
    assert before.height >= 4
    assert not agents_of(os.getpid())
    runner.resume(run.uri, executor="ray")
    run = open_run(run.uri)
    assert run.info.status is RunStatus.FINISHED
    after = check_boxes(run).sort("seq")
    assert after.head(before.height)["sandbox_id"].to_list() == (
        before.sort("seq")["sandbox_id"].to_list()
    )
    assert after["sandbox_id"].is_unique().all()
    assert after.height > before.height


def test_a_task_whose_boxes_fail_is_attempted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = BubblewrapVariant.create

    async def failing(
        self: BubblewrapVariant, spec: SandboxSpec, snapshot: SandboxSnapshot | None
    ) -> Sandbox:
        if spec.workdir == "/bad":
            raise SandboxError("this node has no such image")
        return await create(self, spec, snapshot)

    monkeypatch.setattr(BubblewrapVariant, "create", failing)
    run = run_with(PIPELINE.replace("Counts()", "Counts(bad=True)"), tmp_path, executor="inline")
    (event,) = events(run, EventKind.QUARANTINE).iter_rows(named=True)
    assert (event["subject"], event["reason"]) == ("bad", Reason.SANDBOX_FAILED)
    assert "3 sandboxes of task bad failed in a row" in event["detail"]
    abandoned = events(run, EventKind.ABANDON)
    assert Reason.TASK_QUARANTINED in {*abandoned["reason"]}
    admitted = events(run, EventKind.ADMIT)
    later = admitted.filter(pl.col("seq") > event["seq"])
    assert "bad" not in {*later["detail"].str.json_path_match("$.task_id")}
    bad = run.trajectories.filter(pl.col("task_id") == "bad").collect()
    assert {*bad["outcome"]} <= {Outcome.FAILED, Outcome.REDUNDANT}
    never_ready = run.sandboxes.filter(pl.col("ready_at").is_null()).collect()
    starts = never_ready.filter(pl.col("killed_by") != "")  # the end of the run may cut one short
    assert {*starts["killed_by"]} == {"failure"}
    assert {*starts["error"]} == {"this node has no such image"}


@pytest.mark.whole
def test_the_death_of_a_pool_fails_only_the_attempts_that_hold_its_boxes(
    shared_ray: None, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(step: int) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                ours = path.read_bytes().startswith(b"ray::SandboxWorker")
            except OSError:
                continue
            if ours and not killed:
                killed.append(int(path.parent.name))
                os.kill(killed[0], signal.SIGKILL)

    run = run_with(PIPELINE.replace("steps=3", "steps=5"), tmp_path, kill)
    assert killed
    assert run.info.status is RunStatus.FINISHED
    crashes = events(run, EventKind.CRASH)
    assert {*crashes["subject"]} == {"sandbox-cpu-0"}
    failed = run.trajectories.filter(pl.col("outcome") == Outcome.FAILED).collect()
    for error in failed["error"]:
        assert "SandboxError: the sandbox has ended" in error
    used = run.sandboxes.filter(pl.col("trajectory_id").is_not_null()).collect()
    assert used["trajectory_id"].is_unique().all()
