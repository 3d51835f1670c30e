"""Replaying a trajectory: environment, reward and logprobs, and the first divergence of any."""

import asyncio
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.models.version_zero import load_codec
from rollart_flow.replay import TrajectoryReplay, replay_trajectory
from rollart_flow.store import Run
from rollart_flow.store.layout import policy_uri
from rollart_flow.types import Outcome, Reason, Split
from tests.copies import Rows, copied, nothing

Row = dict[str, Any]


def pick(run: Run, *conditions: pl.Expr) -> Row:
    """The first committed trajectory that meets conditions."""
    rows = run.trajectories.filter(*conditions).sort("seq").head(1).collect()
    return rows.row(0, named=True)


def on_the_lake(run: Run) -> Row:
    """A trained trajectory of several turns, scored."""
    return pick(
        run,
        pl.col("domain") == "frozenlake",
        pl.col("split") == Split.TRAIN,
        pl.col("reason") == Reason.TURN_LIMIT,
        pl.col("reward").is_not_null(),
    )


def replay_changed(
    run: Run, folder: Path, trajectory_id: str, change: Callable[[Row], None]
) -> TrajectoryReplay:
    """Replay one trajectory of a copy of the run in which it was changed."""

    def changed(rows: Rows) -> Rows:
        for row in rows:
            if row["trajectory_id"] == trajectory_id:
                change(row)
        return rows

    copy = copied(run, folder / "copy", {"trajectories": changed})
    return replay_trajectory(copy.uri, trajectory_id)


def first_action(row: Row, turn: int) -> int:
    """Position of the first generated token of a turn."""
    return int(row["action_mask"].index(True, row["turns"][turn]["start"]))


def test_one_trajectory_of_each_kind_goes_again_as_it_went(finished_run: Run) -> None:
    kinds = ["split", "domain", "outcome", "reason", pl.col("sampling").struct[0]]
    firsts = finished_run.trajectories.group_by(kinds).agg(pl.col("trajectory_id").min())
    ids = firsts.collect()["trajectory_id"].to_list()
    assert len(ids) >= 4, "both domains, and two ways of sampling in evaluation"
    for trajectory_id in ids:
        replayed = replay_trajectory(finished_run.uri, trajectory_id)
        assert replayed.divergence is None
        assert replayed.equal


def test_the_report_has_every_turn(finished_run: Run) -> None:
    row = on_the_lake(finished_run)
    replayed = replay_trajectory(finished_run.uri, row["trajectory_id"])
    assert [turn["turn"] for turn in replayed.turns] == [0, 1, 2]
    for turn, recorded in zip(replayed.turns, row["turns"], strict=True):
        assert turn["observation_equal"]
        assert turn["action_equal"]
        assert turn["reward"] == turn["replayed_reward"] == recorded["reward"]
        assert turn["tokens"] == sum(row["action_mask"][recorded["start"] : recorded["end"]])
        assert set(turn["versions"]) <= set(row["token_versions"])
        assert 0 <= turn["logprob_gap_max"] < 1e-4


def evaluated_at(run: Run, version: int) -> Row:
    return pick(run, pl.col("split") == Split.EVALUATION, pl.col("policy_version_start") == version)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_versions_that_are_not_kept_are_trained_again(
    finished_run: Run, tmp_path: Path, version: int
) -> None:
    copy = copied(finished_run, tmp_path / "copy", without=("weights",))
    replayed = replay_trajectory(copy.uri, evaluated_at(copy, version)["trajectory_id"])
    assert replayed.divergence is None
    assert replayed.turns[0]["versions"] == [version]


def test_a_version_that_is_lost_is_reported(finished_run: Run, tmp_path: Path) -> None:
    copy = copied(finished_run, tmp_path / "copy", {"batches": nothing}, without=("weights",))
    replayed = replay_trajectory(copy.uri, evaluated_at(copy, 1)["trajectory_id"])
    assert not replayed.equal
    said = str(replayed.divergence)
    assert said.startswith("turn 0: logprobs cannot be compared: no weights of version 1 in ")
    assert "cannot be recomputed: no batch of step 1" in said
    assert "\n" not in said


def change_logprob(row: Row) -> None:
    row["logprobs"][first_action(row, 1)] -= 0.001


def break_logprob(row: Row) -> None:
    row["logprobs"][first_action(row, 1)] = math.nan


def change_action(row: Row) -> None:
    row["turns"][1]["action"] += "!"


def change_action_token(row: Row) -> None:
    at = first_action(row, 1)
    row["token_ids"][at] = 10 if row["token_ids"][at] != 10 else 11


def change_observation(row: Row) -> None:
    row["turns"][1]["observation"] += "!"


def change_observation_token(row: Row) -> None:
    row["token_ids"][row["turns"][1]["start"] + 2] += 1


def change_turn_reward(row: Row) -> None:
    row["turns"][1]["reward"] += 0.5


def change_final_reward(row: Row) -> None:
    row["reward"] += 0.5


def change_reward_part(row: Row) -> None:
    row["reward_parts"][0]["value"] += 0.5


def change_solved(row: Row) -> None:
    row["solved"] = not row["solved"]


def change_ending(row: Row) -> None:
    row["outcome"], row["reason"] = Outcome.COMPLETED, None


def change_version(row: Row) -> None:
    row["token_versions"][first_action(row, 1)] = 4


QUOTED = r"""['"].*['"]"""
"""A text as `repr` shows it; what a model draws may have quotes."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (change_logprob, r"turn 1, token \d+: logprob -\d.* was recorded, -\d.* recomputed under"),
        (break_logprob, r"turn 1, token \d+: logprob nan was recorded"),
        (change_version, r"turn 1, token \d+: logprob .* recomputed under version 4$"),
        (change_action, rf"turn 1: action {QUOTED} was recorded, its tokens say {QUOTED}$"),
        (change_action_token, rf"turn 1: action {QUOTED} was recorded, its tokens say {QUOTED}$"),
        (change_observation, r"turn 1: observation '.*' was recorded, '.*' replayed$"),
        (
            change_observation_token,
            r"turn 1, token \d+: differs from the token \d+ of its encoded obs",
        ),
        (change_turn_reward, r"turn 1: reward \S+ was recorded, \S+ replayed$"),
        (change_final_reward, r"final reward: \S+ was recorded, \S+ recomputed$"),
        (change_reward_part, r"final reward parts: .* was recorded, .* recomputed$"),
        (change_solved, r"solved: True was recorded, False replayed$"),
        (change_ending, r"turn 2: the episode terminated after it as recorded, and went on when"),
    ],
)
def test_whatever_was_changed_is_found(
    finished_run: Run, tmp_path: Path, change: Callable[[Row], None], said: str
) -> None:
    row = on_the_lake(finished_run)
    replayed = replay_changed(finished_run, tmp_path, row["trajectory_id"], change)
    assert not replayed.equal
    assert re.match(said, str(replayed.divergence)), replayed.divergence
    assert "\n" not in str(replayed.divergence)


def cut_short(run: Run, outcome: Outcome, reason: Reason) -> Callable[[Row], None]:
    """Ended while the second action was generated, after its first token."""
    codec = load_codec(policy_uri(run.uri))

    def change(row: Row) -> None:
        end = first_action(row, 1) + 1
        for column in ("token_ids", "action_mask", "logprobs", "token_versions"):
            row[column] = row[column][:end]
        row["turns"] = row["turns"][:2]
        action = codec.decode(row["token_ids"][-1:])
        row["turns"][1] |= {"end": end, "action": action, "reward": 0.0, "finish_reason": "abort"}
        row.update(outcome=outcome, reason=reason, reward=None, reward_parts=None, scored_at=None)

    return change


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.CANCELLED, Reason.RUN_STOPPED),
        (Outcome.STALE, Reason.STALENESS_BOUND),
        (Outcome.TIMED_OUT, Reason.TRAJECTORY_TIMEOUT),
        (Outcome.FAILED, Reason.ENGINE_ERROR),
    ],
)
def test_what_ended_midway_is_replayed_as_far_as_it_went(
    finished_run: Run, tmp_path: Path, outcome: Outcome, reason: Reason
) -> None:
    row = on_the_lake(finished_run)
    cut = cut_short(finished_run, outcome, reason)
    replayed = replay_changed(finished_run, tmp_path, row["trajectory_id"], cut)
    assert replayed.divergence is None
    assert [turn["tokens"] for turn in replayed.turns][1:] == [1]
    assert replayed.turns[0]["replayed_reward"] == row["turns"][0]["reward"]
    assert replayed.turns[1]["reward"] is None, "the last action was never answered"


def test_the_last_token_of_a_cancelled_one_is_compared(finished_run: Run, tmp_path: Path) -> None:
    row = on_the_lake(finished_run)
    cut = cut_short(finished_run, Outcome.CANCELLED, Reason.RUN_STOPPED)

    def change(row: Row) -> None:
        cut(row)
        row["logprobs"][-1] -= 0.001

    replayed = replay_changed(finished_run, tmp_path, row["trajectory_id"], change)
    assert str(replayed.divergence).startswith("turn 1, token ")


def test_one_whose_reward_failed_is_replayed_to_its_end(finished_run: Run, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        row.update(outcome=Outcome.FAILED, reason=Reason.REWARD_ERROR, error="it raised")
        row.update(reward=None, reward_parts=None, scored_at=None)

    row = on_the_lake(finished_run)
    replayed = replay_changed(finished_run, tmp_path, row["trajectory_id"], change)
    assert replayed.divergence is None
    assert replayed.turns[2]["replayed_reward"] == row["turns"][2]["reward"]


def test_one_that_never_began_has_nothing_to_differ(finished_run: Run, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        row.update(outcome=Outcome.REDUNDANT, reason=Reason.GROUP_COMPLETE, turns=[])
        row.update(token_ids=[], action_mask=[], logprobs=[], token_versions=[])
        row.update(policy_version_start=None, policy_version_end=None, solved=None)
        row.update(reward=None, reward_parts=None, scored_at=None)

    row = on_the_lake(finished_run)
    replayed = replay_changed(finished_run, tmp_path, row["trajectory_id"], change)
    assert replayed == TrajectoryReplay(row["trajectory_id"], True, None, [])


def test_another_version_of_the_environment_is_named(finished_run: Run, tmp_path: Path) -> None:
    def change(row: Row) -> None:
        change_turn_reward(row)
        row["env_version"] = "lake/0"

    row = on_the_lake(finished_run)
    replayed = replay_changed(finished_run, tmp_path, row["trajectory_id"], change)
    now = row["env_version"]
    assert str(replayed.divergence).endswith(f"(environment lake/0 then, {now} now)")


def test_a_task_that_the_environment_refuses_is_a_divergence(
    finished_run: Run, tmp_path: Path
) -> None:
    def change(row: Row) -> None:
        row["task"] = "no JSON"

    row = pick(finished_run, pl.col("domain") == "arithmetic", pl.col("reward").is_not_null())
    replayed = replay_changed(finished_run, tmp_path, row["trajectory_id"], change)
    assert str(replayed.divergence).startswith("turn 0: the environment failed: ")


def test_within_a_running_loop_as_in_a_notebook(finished_run: Run) -> None:
    trajectory_id = on_the_lake(finished_run)["trajectory_id"]

    async def notebook() -> TrajectoryReplay:
        return replay_trajectory(finished_run.uri, trajectory_id)

    assert asyncio.run(notebook()).equal


def test_an_unknown_trajectory_is_refused(finished_run: Run) -> None:
    with pytest.raises(SettingsError, match="no trajectory 'x' in run small"):
        replay_trajectory(finished_run.uri, "x")
