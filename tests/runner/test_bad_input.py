"""Environments, rewards and disks that go wrong, through the whole system: rows, and one line."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import RunFailedError
from rollart_flow.store import RunStatus, open_run
from rollart_flow.types import EventKind, Outcome, Reason
from tests.runner.local import events, run_with
from tests.runner.shell import ROOT
from tests.runner.world import check_sound, source

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("shared_ray")]

LIMIT_S = 5.0
"""Of a reward: far above what a good one takes, also on a busy machine."""
STEP_LIMIT_S = 15.0
"""Of a step and of a reset, which starts a process: several at once take seconds."""

BROKEN = """
class NoLake(Environment):
    inline = True
    version = "no-lake/1"

    def reset(self, seed, task):
        raise ValueError("the lake\\nis gone")

    def step(self, action):
        raise NotImplementedError


@dataclass(frozen=True)
class Dry(Coin):
    name: ClassVar[str] = "dry"
    environment: ClassVar[type[Environment]] = NoLake

    def make(self):
        return NoLake()

    def tasks(self, split, seed):
        return (Task(f"dry-{number}", "dry") for number in range(1000))


batches = buffer(reward(rollout(tasks(Dry(), group_size=4), policy)), batch_size=8, alpha=1)
pipeline = Pipeline("dry", train(batches, policy, gated, steps=2))
"""

AWKWARD = '''
class Stubborn(CoinEnvironment):
    """Hangs in every second task, in a process of its own."""

    inline = False
    version = "stubborn/1"

    def reset(self, seed, task):
        self.hangs = task == "odd"
        (GATES / f"pid-{os.getpid()}").touch()
        return super().reset(seed, task)

    def step(self, action):
        while self.hangs:
            os.nice(19)  # the good ones are to be in time on a machine of few cores
        return super().step(action)


class Babbling(CoinEnvironment):
    """Answers nonsense in every second task."""

    version = "babbling/1"

    def reset(self, seed, task):
        return (None, {}) if task == "odd" else super().reset(seed, task)


def odd_tasks(name):
    count = 0
    while True:
        yield Task(f"{name}-{count}", name, "odd" if count % 2 else "even")
        count += 1


@dataclass(frozen=True)
class Slow(Coin):
    name: ClassVar[str] = "slow"
    environment: ClassVar[type[Environment]] = Stubborn

    def make(self):
        return Stubborn()

    def tasks(self, split, seed):
        return odd_tasks("slow")


@dataclass(frozen=True)
class Loose(Coin):
    name: ClassVar[str] = "loose"
    environment: ClassVar[type[Environment]] = Babbling

    def make(self):
        return Babbling()

    def tasks(self, split, seed):
        return odd_tasks("loose")


def moody(trajectory):
    """Fails the first attempts of coins, in one way after the other."""
    if trajectory.domain == "coin" and trajectory.attempt == 0:
        mood = int(trajectory.task_id.split("-")[1]) % 4
        if mood == 0:
            return float("nan")
        if mood == 1:
            raise KeyError("no such\\nscore")
        while mood == 2:
            os.nice(19)
    return float(sum(trajectory.token_ids) % 7)


prompts = tasks(Coin(), Slow(), Loose(), group_size=2)
trajectories = rollout(prompts, policy, max_tokens=4, step_timeout_s=<step>, max_concurrent=12)
batches = buffer(reward(trajectories, moody, timeout_s=<limit>), batch_size=8, alpha=<alpha>)
pipeline = Pipeline("awkward", train(batches, policy, gated, steps=<steps>))
'''


def test_a_domain_that_only_fails_stops_the_run_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError) as caught:
        run_with(source(tmp_path, BROKEN), tmp_path)
    said = str(caught.value)
    assert said == (
        "domain 'dry': 32 attempts in a row failed; "
        "the last one: NoLake: ValueError: the lake is gone"
    )
    run = open_run(str(tmp_path / "coins"))
    assert (run.info.status, run.info.error) == (RunStatus.FAILED, said)
    rows = run.trajectories.collect()
    failed = rows.filter(outcome=Outcome.FAILED)
    assert failed.height >= 32
    assert set(failed["reason"]) == {Reason.ENVIRONMENT_ERROR}
    # An attempt whose group was given up meanwhile is redundant.
    others = rows.filter(pl.col("outcome") != Outcome.FAILED)
    assert set(others["outcome"]) <= {Outcome.REDUNDANT, Outcome.CANCELLED}
    redundant = others.filter(outcome=Outcome.REDUNDANT)
    assert set(redundant["reason"]) <= {Reason.GROUP_ABANDONED}
    assert events(run, EventKind.RUN).filter(subject="failed").height == 1


def test_what_hangs_or_answers_nonsense_is_an_outcome_and_delays_nobody(tmp_path: Path) -> None:
    steps = 40
    # What hangs is to reach its limit, not the bound.
    values = {"limit": LIMIT_S, "step": STEP_LIMIT_S, "steps": steps, "alpha": steps}
    run = run_with(source(tmp_path, AWKWARD, **values), tmp_path)
    check_sound(run, steps, alpha=steps)
    rows = run.trajectories.collect()

    def of(reason: Reason) -> pl.DataFrame:
        return rows.filter(pl.col("reason") == reason)

    hung = of(Reason.ENVIRONMENT_TIMEOUT)
    assert set(hung.select("domain", "outcome").rows()) == {("slow", Outcome.TIMED_OUT)}
    # Starting its process may be late too, where a machine is busy.
    limit = f"{STEP_LIMIT_S:g} s"
    late = f"Stubborn.step: no answer within {limit}; killed", f"step took over {limit}"
    first = hung.filter(pl.col("error").is_in(late)).row(0, named=True)
    between = pl.col("finished_at").is_between(first["created_at"], first["finished_at"])
    meanwhile = rows.filter(between, pl.col("domain") != "slow")
    assert meanwhile.height >= 8, "the other domains went on"
    for pid in (path.name.removeprefix("pid-") for path in tmp_path.glob("pid-*")):
        assert not (Path("/proc") / pid).exists(), "its process is killed"
    wrong = of(Reason.ENVIRONMENT_ERROR)
    assert set(wrong.select("domain", "outcome").rows()) == {("loose", Outcome.FAILED)}
    assert wrong["error"].str.contains("Babbling").all()
    scores = {
        Reason.REWARD_NOT_FINITE: (Outcome.FAILED, "returned nan as reward"),
        Reason.REWARD_ERROR: (Outcome.FAILED, "KeyError: 'no such\\nscore'"),
        Reason.REWARD_TIMEOUT: (Outcome.TIMED_OUT, f"no reward within {LIMIT_S:g} s"),
    }
    for reason, (outcome, said) in scores.items():
        found = of(reason)
        assert set(found["outcome"]) == {outcome}, reason
        assert found["error"][0].startswith(f"reward function moody: {said}"), reason
        assert found["reward"].null_count() == found.height
    assert rows["error"].drop_nulls().str.contains("\n").any() is not True
    assert {"coin", "loose", "slow"} == set(
        run.batches.join(run.trajectories, on="trajectory_id").collect()["domain"]
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("this user may not mount a file system, so no disk can be filled")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with open(disk / "filler", "wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while filler.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


def test_a_full_disk_ends_the_run_in_one_line_and_it_goes_on_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    text = source(tmp_path, steps=6)

    def after_step(step: int) -> None:
        if step == 2:
            fill(small_disk)

    with pytest.raises(RunFailedError) as caught:
        run_with(text, small_disk, after_step)
    said = str(caught.value)
    assert "No space left on device" in said
    assert "\n" not in said
    assert "Traceback" not in said
    run = open_run(str(small_disk / "coins"))
    before = run.trajectories.sort("seq").collect()
    trained = run.steps.collect()["step"].max()
    assert run.info.status in (RunStatus.FAILED, RunStatus.INTERRUPTED)
    assert (before.height >= 16, trained in range(2, 6)) == (True, True)
    (small_disk / "filler").unlink()
    assert runner.resume(run.uri).status is RunStatus.FINISHED
    again = open_run(run.uri)
    assert again.trajectories.sort("seq").collect().head(before.height).equals(before)
    check_sound(again, 6)


def test_a_folder_without_permission_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "coins.py").write_text(source(tmp_path))
    store = tmp_path / "runs"
    store.mkdir(mode=0o555)
    powerless: list[str] = []
    if os.geteuid() == 0:  # who may write everywhere unless that is taken away
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and there is no setpriv to change that")
        powerless = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    script = "import sys; from rollart_flow.cli import main; sys.exit(main())"
    told = subprocess.run(
        [*powerless, sys.executable, "-c", script, "run", str(tmp_path / "coins.py")],
        env={**os.environ, "ROLLART_STORE": str(store)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.count("\n") == 1
    assert told.stderr.startswith(
        f"error: cannot write {store}/coins-1/run.json: Permission denied"
    )
