"""SIGKILL of the driver at any moment, and Ctrl-C; then `rollart resume` from the tables.

One run is cut off again and again, each time at another moment, and is resumed to its end.
"""

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.trainers.checkpoint.retention import stored_checkpoints
from tests.runner.shell import Shell, said_by
from tests.runner.world import PAUSE, check_sound, open_gate, source, was_taken

pytestmark = pytest.mark.whole

STEPS = 10
GONE_S = 30.0


@dataclass(frozen=True)
class Found:
    """What was durable at some moment: it may not change any more."""

    trajectories: pl.DataFrame
    batches: pl.DataFrame
    steps: pl.DataFrame
    evaluations: pl.DataFrame

    @property
    def newest(self) -> tuple[int, int]:
        """Step of the newest manifest, and the last step."""
        newest = (t["step"].max() or 0 for t in (self.batches, self.steps))
        first, second = (int(step) for step in newest)  # type: ignore[arg-type]
        return first, second


def found(run: Run) -> Found:
    now = run.snapshot()
    tables = (now.trajectories, now.batches, now.steps, now.evaluations)
    return Found(*(table.sort("seq").collect() for table in tables))


def check_kept(before: Found, after: Found) -> None:
    """Every row that was there is there, as it was, and before the newer ones."""
    for table in ("trajectories", "batches", "steps", "evaluations"):
        old, new = getattr(before, table), getattr(after, table)
        assert new.head(old.height).equals(old), table


class Story:
    """One run through all its ends."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "runs"
        self.gates = folder
        self.file = folder / "coins.py"
        self.run_folder = self.store / "coins"
        self.seen: list[Found] = []

    def resume(self) -> Shell:
        return Shell("resume", "coins", store=self.store)

    def cut_off(self, shell: Shell, code: int = -9) -> Found:
        """Wait for the end of a killed process and of all it started; what is durable then."""
        assert shell.end() == code, shell.said
        assert shell.wait_until_all_are_gone(GONE_S) == []
        run = open_run(str(self.run_folder))
        assert run.info.status is RunStatus.INTERRUPTED
        now = found(run)
        for before in self.seen:
            check_kept(before, now)
        self.seen.append(now)
        return now


@pytest.mark.timeout(600)
def test_a_run_that_is_cut_off_anywhere_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.file.write_text(source(tmp_path, steps=STEPS, every=3, warm_start=1))
    killed_while_the_folder_is_made(story)
    killed_while_the_workers_start(story)
    killed_after_a_step(story)
    killed_between_manifest_and_step(story)
    killed_after_a_checkpoint(story)
    interrupted_from_the_keyboard(story)
    resumed_to_the_end(story)


def killed_while_the_folder_is_made(story: Story) -> None:
    open_gate(story.gates, "warm start", PAUSE)
    with Shell("run", str(story.file), "--name", "coins", store=story.store) as shell:
        shell.wait_until(lambda: was_taken(story.gates, "warm start"))
        shell.kill()
        now = story.cut_off(shell)
    assert now.trajectories.is_empty()


def killed_while_the_workers_start(story: Story) -> None:
    with story.resume() as shell:
        shell.wait_for("starting the workers")
        open_gate(story.gates, "tasks", shell.pid)  # asked for by the coordinator
        now = story.cut_off(shell)
    assert was_taken(story.gates, "tasks")
    assert now.newest == (0, 0)


def killed_after_a_step(story: Story) -> None:
    with story.resume() as shell:
        shell.wait_for("step 2/")
        shell.kill()
        now = story.cut_off(shell)
    assert now.newest[1] >= 2
    assert now.trajectories.height >= 16


def killed_between_manifest_and_step(story: Story) -> None:
    with story.resume() as shell:
        shell.wait_for(f"step {story.seen[-1].newest[0] + 1}/")
        open_gate(story.gates, "training", PAUSE)
        run = open_run(str(story.run_folder))
        shell.wait_until(lambda: was_taken(story.gates, "training") and is_in_training(run))
        shell.kill()
        now = story.cut_off(shell)
    manifest, step = now.newest
    assert manifest == step + 1


def is_in_training(run: Run) -> bool:
    """Whether there is a manifest whose step has no row."""
    manifest, step = found(run).newest
    return manifest > step


def killed_after_a_checkpoint(story: Story) -> None:
    checkpoint = story.seen[-1].newest[0] // 3 * 3 + 3
    with story.resume() as shell:
        shell.wait_for(f"step {checkpoint}/")
        shell.kill()
        now = story.cut_off(shell)
    assert checkpoint in stored_checkpoints(str(story.run_folder / "checkpoints"))
    assert now.newest[1] >= checkpoint


def interrupted_from_the_keyboard(story: Story) -> None:
    with story.resume() as shell:
        shell.wait_for("starting the workers")
        code, said = said_by("resume", "coins", store=story.store)
        assert (code, said.count("\n")) == (1, 1)
        assert said.startswith("error: run coins is running (process ")
        code, said = said_by("run", str(story.file), "--name", "coins", store=story.store)
        assert (code, said.count("\n")) == (2, 1)
        assert "choose another --name, or `rollart resume`" in said
        shell.wait_for("rolling out")
        shell.interrupt()
        story.cut_off(shell, code=130)
    last = shell.said.splitlines()[-1]
    assert last == "error: interrupted; `rollart resume coins` continues the run"


def resumed_to_the_end(story: Story) -> None:
    with story.resume() as shell:
        assert shell.end() == 0, shell.said
        assert shell.wait_until_all_are_gone(GONE_S) == []
    run = open_run(str(story.run_folder))
    assert run.info.status is RunStatus.FINISHED
    now = found(run)
    for before in story.seen:
        check_kept(before, now)
    check_sound(run, STEPS)
    assert sorted(set(now.evaluations["policy_version"])) == [0, 3, 6, 9, 10]
    with story.resume() as shell:
        assert shell.end() == 0
    assert "run coins is finished; there is nothing to resume" in shell.said
    check_kept(found(open_run(str(story.run_folder))), now)
