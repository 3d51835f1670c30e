"""Rewards of a rescoring in the place of those of the run."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.schema import to_table
from rollart_flow.store import Run, open_run
from rollart_flow.store.rescored import key_of_part, rescorings, with_rescored
from rollart_flow.types.verdicts import Verdict, VerdictKind
from rollart_flow.verdict_rows import judged_rows
from tests.builders import MOMENT, branched, table, trajectory
from tests.runs import new_writer

FIRST, SECOND, THIRD = (
    trajectory("g", n, reward=0.25, reward_parts={"old": 1.0}) for n in range(3)
)
TREE = branched(0, 0, group_id="tree", reward=0.25)


def part(key: str, value: float | None, message: str | None = None) -> Verdict:
    return Verdict(key=key, kind=VerdictKind.REWARD, value=value, message=message)


@pytest.fixture
def stored(tmp_path: Path) -> Run:
    """A run with a rescoring that found a reward with parts, one without, and one error."""
    said = [
        (FIRST, [part("reward", 2.0), part("form", 0.5), part(key_of_part("reward"), 7.0)]),
        (SECOND, [part("reward", None, "it raised")]),
        (TREE[0], [part("reward", -1.0), part("success", 0.0)]),
    ]
    rows = [
        row
        for judged, verdicts in said
        for row in judged_rows(judged, verdicts, source="strict", judged_at=MOMENT)
    ]
    own = judged_rows(FIRST, [part("reward", 9.0)], source="reward", judged_at=MOMENT)
    writer = new_writer(tmp_path)
    writer.commit("trajectories", table(FIRST, SECOND, THIRD, *TREE))
    writer.commit("verdicts", to_table("verdicts", [*own, *rows]))
    writer.close()
    return open_run(writer.uri)


def test_rows_have_the_rewards_of_the_rescoring_and_null_where_it_has_none(stored: Run) -> None:
    rows = with_rescored(stored, stored.trajectories, "strict")
    assert rows.collect_schema() == stored.trajectories.collect_schema()
    found = {row["trajectory_id"]: row for row in rows.collect().to_dicts()}
    first, second, third = (found[each.trajectory_id] for each in (FIRST, SECOND, THIRD))
    parts = [{"name": "form", "value": 0.5}, {"name": "reward", "value": 7.0}]
    assert (first["reward"], first["reward_parts"]) == (2.0, parts)
    assert (second["reward"], second["reward_parts"], second["scored_at"]) == (None, None, None)
    assert third["reward"] is None
    assert [found[branch.trajectory_id]["reward"] for branch in TREE] == [-1.0, -1.0]
    assert found[TREE[0].trajectory_id]["reward_parts"] is None


def test_all_other_columns_stay(stored: Run) -> None:
    changed = ["reward", "reward_parts", "scored_at"]
    again = with_rescored(stored, stored.trajectories, "strict").drop(changed).sort("seq")
    assert again.collect().equals(stored.trajectories.drop(changed).sort("seq").collect())


def test_a_filter_on_the_reward_is_one_on_the_new_reward(stored: Run) -> None:
    rows = with_rescored(stored, stored.trajectories, "strict").filter(pl.col("reward") > 1)
    assert rows.collect()["trajectory_id"].to_list() == [FIRST.trajectory_id]


@pytest.mark.parametrize("name", ["lax", "reward", "environment"])
def test_a_rescoring_that_is_not_there_is_refused_with_those_that_are(
    stored: Run, name: str
) -> None:
    with pytest.raises(SettingsError, match=f"no rescoring '{name}'; it has strict"):
        with_rescored(stored, stored.trajectories, name)


def test_rescorings_count_attempts(stored: Run) -> None:
    assert rescorings(stored) == {"strict": 3}
