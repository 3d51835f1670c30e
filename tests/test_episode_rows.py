"""Rows of episodes, and each episode as one row."""

from dataclasses import replace

import pyarrow as pa
import pytest

from rollart_flow.episode_rows import as_episodes, starts_of
from rollart_flow.episodes import whole
from rollart_flow.rows import trajectories_table, trajectory_from_row
from tests.builders import TRAJECTORY, branched, group, table, trajectory
from tests.test_episodes import FIRST, SECOND

JOINED = (
    "token_ids", "action_mask", "logprobs", "token_versions", "kept_token_ids", "turns",
    "policy_version_start", "policy_version_end", "tool_calls", "tool_errors",
)  # fmt: skip


def test_rows_of_one_episode_each_stay_as_they_are() -> None:
    rows = table(*group("g00000000"))
    assert as_episodes(rows) is rows
    older = rows.drop_columns(["branch", "parent", "shared_tokens"])
    assert starts_of(older).tolist() == [0, 1, 2]
    nothing = pa.array([None, None], pa.int32())
    null = rows.set_column(rows.column_names.index("branch"), "branch", nothing)
    assert starts_of(null).tolist() == [0, 1, 2], "as rows of earlier versions are read"
    assert starts_of(rows.slice(0, 0)).tolist() == [0]


def test_an_episode_begins_with_branch_0_or_another_id() -> None:
    twice = branched(0, 0)
    rows = table(*branched(0, 0, 0), *branched(1, attempt=1), *twice, *twice)
    assert starts_of(rows).tolist() == [0, 3, 4, 6, 8]
    headless = table(*branched(0, 0, 0)[1:], *branched(0, 0, attempt=1)[1:])
    assert starts_of(headless).tolist() == [0, 2, 3]


@pytest.mark.parametrize("chunks", [1, 2])
def test_each_episode_is_the_row_of_its_whole_trajectory(chunks: int) -> None:
    episodes = [(FIRST, SECOND), (replace(FIRST, trajectory_id="u", episode_id="u"),)]
    episodes += [branched(4, 2, 3), branched(5, attempt=7)]
    episodes = [tuple(replace(row, kept_token_ids=None) for row in each) for each in episodes]
    rows = trajectories_table(row for each in episodes for row in each)
    parts = [rows] if chunks == 1 else [rows.slice(0, 4), rows.slice(4)]
    found = [trajectory_from_row(row) for row in as_episodes(pa.concat_tables(parts)).to_pylist()]
    for one, branches in zip(found, episodes, strict=True):
        expected = whole(branches)
        for name in (*JOINED, "trajectory_id", "reward", "group_id"):
            assert getattr(one, name) == getattr(expected, name), name


def test_kept_tokens_are_those_of_all_branches() -> None:
    found = as_episodes(table(FIRST, SECOND))
    assert found["kept_token_ids"].to_pylist() == [[[10, 12], [11], [21]]]
    assert as_episodes(table(TRAJECTORY, trajectory())).num_rows == 2
