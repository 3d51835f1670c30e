"""Rows of `exchanges`: what is stored of the calls of an attempt, and read again."""

import pickle
from datetime import timedelta

from rollart_flow.attempt_rows import KEYS, rows_beside
from rollart_flow.exchange_rows import exchange_from_row, exchanges_table
from rollart_flow.schema import stored_schema
from rollart_flow.types.exchanges import StoredExchange
from tests.builders import MOMENT, exchange, trajectory

WHOLE = StoredExchange(
    number=3,
    wire="messages",
    kind="compaction",
    evidence="structure",
    parent=2,
    request='{"messages": []}',
    reused_messages=4,
    arrived_at=MOMENT,
    generating_at=MOMENT + timedelta(seconds=0.5),
    ended_at=MOMENT + timedelta(seconds=2),
    trajectory_id="g-00.1",
    start=10,
    answer_start=12,
    answer_end=15,
    trained_tokens=3,
    prompt_ids=(1, 2),
    answer_ids=(3,),
    answer='{"text": "done"}',
    answer_id="abc123def",
    refusal="engine",
    error="the engine is away",
    client="claude-cli/2",
    model="opus",
    lineage="s1",
    stream=True,
    digest="d",
    requested='{"temperature": 0.5}',
    effective='{"temperature": 1.0}',
    dropped=("seed", "user"),
    joins=1,
    replays=2,
    mismatches=1,
    hung_up=True,
    parser="hermes/1",
    template="t",
)


def test_an_exchange_survives_its_row() -> None:
    table = exchanges_table([trajectory(exchanges=(WHOLE, exchange(4)))])
    assert table is not None
    assert [*map(exchange_from_row, table.to_pylist())] == [WHOLE, exchange(4)]


def test_an_exchange_crosses_processes() -> None:
    assert pickle.loads(pickle.dumps(WHOLE)) == WHOLE


def test_a_row_has_the_seconds_between_its_times() -> None:
    never = exchange(1, generating_at=None)
    table = exchanges_table([trajectory(exchanges=(WHOLE, never))])
    assert table is not None
    assert table["call_s"].to_pylist() == [2.0, 1.0]
    assert table["queue_s"].to_pylist() == [0.5, None]
    assert table["episode_id"].to_pylist() == ["g-00", "g-00"]
    assert WHOLE.sampled_tokens == 3
    assert never.sampled_tokens == 0


def test_attempts_without_calls_have_no_rows() -> None:
    assert rows_beside([trajectory(), trajectory(exchanges=())]) == {}
    both = rows_beside([trajectory(reward_parts={"a": 1.0, "b": 0.0}, exchanges=(WHOLE,))])
    assert {*both} == {*KEYS}


def test_keys_are_columns_of_their_tables() -> None:
    for table, names in KEYS.items():
        assert {*names} <= {*stored_schema(table).names}
