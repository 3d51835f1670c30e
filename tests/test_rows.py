"""Frozen values become rows and come back the same."""

import json
from dataclasses import replace

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from rollart_flow.errors import SchemaError
from rollart_flow.rows import events_table, samples, trajectories_table, trajectory_from_row
from rollart_flow.schema import row_schema
from rollart_flow.types import Event, EventKind, Outcome, Reason, Sample, Split, Trajectory
from tests.builders import MOMENT, TRAJECTORY

FAILED = replace(
    TRAJECTORY,
    trajectory_id="f",
    outcome=Outcome.FAILED,
    reason=Reason.ENVIRONMENT_ERROR,
    error="no map",
    policy_version_start=None,
    policy_version_end=None,
    token_ids=(),
    action_mask=(),
    logprobs=(),
    token_versions=(),
    kept_token_ids=None,
    turns=(),
    solved=None,
    reward=None,
    reward_parts=None,
    scored_at=None,
)


def there_and_back(trajectory: Trajectory) -> Trajectory:
    """Through a row and back."""
    return trajectory_from_row(trajectories_table([trajectory]).to_pylist()[0])


@pytest.mark.parametrize("trajectory", [TRAJECTORY, FAILED], ids=["full", "empty"])
def test_a_trajectory_comes_back_the_same(trajectory: Trajectory) -> None:
    back = there_and_back(trajectory)
    assert back == trajectory
    assert isinstance(back.outcome, Outcome)
    assert isinstance(back.split, Split)
    assert isinstance(back.reason, Reason)
    assert isinstance(back.token_ids, tuple)


@settings(max_examples=50, deadline=None)
@given(
    tokens=st.lists(
        st.tuples(
            st.integers(0, 2**31 - 1),
            st.booleans(),
            st.floats(-100, 0, width=32),
            st.integers(-1, 1000),
        ),
        max_size=20,
    ),
    parts=st.dictionaries(st.text(min_size=1, max_size=5), st.floats(allow_nan=False), max_size=3),
    observation=st.text(max_size=20),
)
def test_any_tokens_and_texts_come_back_to_the_last_bit(
    tokens: list[tuple[int, bool, float, int]], parts: dict[str, float], observation: str
) -> None:
    ids, mask, logprobs, versions = zip(*tokens, strict=True) if tokens else ((), (), (), ())
    trajectory = replace(
        TRAJECTORY,
        token_ids=ids,
        action_mask=mask,
        logprobs=logprobs,
        token_versions=versions,
        reward_parts=parts,
        turns=(replace(TRAJECTORY.turns[0], observation=observation),),
    )
    assert there_and_back(trajectory) == trajectory


def test_rows_have_the_declared_types() -> None:
    assert trajectories_table([TRAJECTORY, FAILED]).schema.equals(row_schema("trajectories"))
    assert trajectories_table([]).num_rows == 0


def test_a_value_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(SchemaError, match=r"trajectories\.token_ids: "):
        trajectories_table([replace(TRAJECTORY, token_ids=(2**31,))])


def test_what_the_control_plane_knows_of_a_row() -> None:
    first, second = samples(trajectories_table([TRAJECTORY, FAILED]))
    assert first == Sample(
        trajectory_id="t",
        group_id="g",
        domain="frozenlake",
        attempt=2,
        outcome=Outcome.TRUNCATED,
        policy_version_start=3,
        policy_version_end=4,
        scored=True,
        tokens=3,
        task_id=TRAJECTORY.task_id,
        solved=TRAJECTORY.solved,
    )
    assert first.trainable
    assert not second.trainable
    assert (second.scored, second.tokens, second.error) == (False, 0, "no map")
    assert samples(pa.table(trajectories_table([]))) == []


def test_an_event_becomes_a_row_with_its_details_as_json() -> None:
    event = Event(
        EventKind.EVICT,
        "g1",
        Reason.STALENESS_BOUND,
        domain="frozenlake",
        policy_version=4,
        step=6,
        detail={"oldest": 2, "kept": [1, 2]},
    )
    table = events_table([(MOMENT, event), (MOMENT, Event(EventKind.RUN, "a"))])
    assert table.schema.equals(row_schema("events"))
    full, bare = table.to_pylist()
    assert json.loads(full["detail"]) == event.detail
    assert (full["kind"], full["reason"], full["at"]) == ("evict", "staleness_bound", MOMENT)
    assert bare["detail"] == "{}"
    assert bare["reason"] is bare["domain"] is bare["step"] is None
