"""`rollart rescore --reward`: another reward function over stored attempts."""

import asyncio
import json
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import errors, open_run, rescore
from rollart_flow.checking.reward_rescoring import RewardRescoring, score_again
from rollart_flow.rewards.base import Score
from rollart_flow.store import Run, RunWriter
from rollart_flow.store.rescored import with_rescored
from rollart_flow.types import Outcome, Trajectory
from rollart_flow.types.verdicts import Verdict
from rollart_flow.verdict_rows import verdicts_table
from tests.builders import branched, table, trajectory
from tests.cli.shell import refused, rollart
from tests.runs import new_writer

FUNCTIONS = '''
def fresh(trajectory):
    """Score what a reward function sees in a run: no reward yet, verdicts, all branches."""
    assert trajectory.reward is None and trajectory.reward_parts is None
    if trajectory.attempt == 2:
        raise ValueError("not this one")
    passed = sum(each.passed for each in trajectory.verdicts or ())
    return passed + len(trajectory.turns) / 10, {"passed": passed, "reward": 5}

count = 3
'''


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with four attempts, one of which failed, and one of two branches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLART_STORE", str(tmp_path))
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    opens = (Verdict(key="opens", passed=True),)
    made = [
        trajectory("g", 0, reward=0.1, verdicts=opens),
        *branched(0, 0, group_id="g", attempt=1, reward=None),
        trajectory("g", 2, reward=1.0),
        trajectory("g", 3, reward=None, outcome=Outcome.FAILED),
    ]
    writer = new_writer(tmp_path, "old")
    verdicts = verdicts_table(made)
    assert verdicts is not None
    writer.commit_many({"trajectories": table(*made), "verdicts": verdicts})
    writer.close()
    return open_run(writer.uri)


def test_new_rewards_stand_beside_the_old_ones(stored: Run) -> None:
    before = stored.trajectories.collect().sort("seq")
    said = rollart("rescore", "old", "--reward", "mine.py:fresh", "--name", "fresh", "--json")
    assert said.code == 1  # one attempt got no reward
    report = json.loads(said.out)
    assert (report["scored"], report["failed"], report["changed"]) == (2, 1, 2)
    assert "ValueError: not this one" in report["trajectories"][-1]["error"]
    assert stored.trajectories.collect().sort("seq").equals(before)
    rows = with_rescored(stored, stored.trajectories, "fresh").sort("seq").collect()
    assert rows["reward"].to_list() == [1.1, 0.2, 0.2, None, None]
    parts = [{"name": "passed", "value": 1.0}, {"name": "reward", "value": 5.0}]
    assert rows["reward_parts"].to_list()[0] == parts
    assert "fresh (3 attempts)" in rollart("show", "old").out


def test_a_condition_chooses_the_attempts(stored: Run) -> None:
    result = rescore("old", "mine.py:fresh", filter="attempt = 0")
    assert (result.name, result.scored, result.reward_before, result.reward_after) == (
        "rescore-1", 1, 0.1, 1.1,
    )  # fmt: skip
    again = rescore(stored, "mine.py:fresh", name="rescore-1", filter=pl.col("attempt") < 2)
    assert again.scored == 1  # the other one has its reward
    with pytest.raises(errors.QueryError, match="unable to find column"):
        rescore("old", "mine.py:fresh", filter="nope > 1")


def test_what_is_scored_before_an_interruption_is_kept(stored: Run) -> None:
    async def stopped() -> None:
        first, waits = asyncio.Event(), asyncio.Event()

        async def function(trajectory: Trajectory) -> Score:
            if trajectory.attempt:
                first.set()
                await waits.wait()
            return 3.0

        async def score() -> None:
            settings = RewardRescoring(function=function, name="late")
            async for _ in score_again(stored, settings):
                pass

        task = asyncio.create_task(score())
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stopped())
    rows = stored.verdicts.filter(pl.col("source") == "late").collect()
    assert rows.select("trajectory_id", "value").rows() == [("g-00", 3.0)]
    RunWriter.open(stored.uri, ended=True).close()  # nobody holds the run


def test_another_function_cannot_go_on_with_a_rescoring(stored: Run, tmp_path: Path) -> None:
    rescore("old", "mine.py:fresh", name="mine", filter="attempt = 0")
    (tmp_path / "mine.py").write_text(FUNCTIONS + "# changed\n")
    with pytest.raises(errors.SettingsError, match="another function"):
        rescore("old", "mine.py:fresh", name="mine")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--reward", "mine.py:count"), "mine.py has int, no function, as 'count'"),
        (("--reward", "mine.py:nope"), "mine.py has no 'nope'"),
        (("--reward", "mine.py"), "is not FILE.py:FUNCTION"),
        (("--reward", "none.py:fresh"), "none.py: no such reward file"),
        (("--reward", "mine.py:fresh", "--verifier", "x.py"), "give one"),
        (("--reward", "mine.py:fresh", "--filter", "reward"), "must be of type `Boolean`"),
        (("--filter", "reward > 0"), "go with --reward"),
    ],
)
def test_wrong_use_is_one_line(stored: Run, options: tuple[str, ...], said: str) -> None:
    assert said in refused(rollart("rescore", "old", *options))
    assert stored.verdicts.filter(pl.col("source") != "environment").collect().is_empty()
