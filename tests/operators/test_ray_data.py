"""What travels between operators: assignments, Arrow streams, filters."""

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.operators.filters import NamedFilter, refusals
from rollart_flow.operators.sources import read_assignments, write_assignments
from rollart_flow.rows import from_ipc, to_ipc
from rollart_flow.types import Assignment, Sampling, Split, Task
from tests.builders import group, table, trajectory

text = st.text(max_size=20)
tokens = st.lists(st.integers(0, 1000), max_size=4).map(tuple)
assignments = st.builds(
    Assignment,
    trajectory_id=text,
    group_id=text,
    task=st.builds(Task, task_id=text, domain=text, payload=text),
    attempt=st.integers(0, 100),
    env_seed=st.integers(0, 2**31 - 1),
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0, 2),
        top_p=st.floats(0.1, 1),
        top_k=st.integers(0, 50),
        max_tokens=st.integers(1, 64),
        stop_token_ids=tokens,
        allowed_token_ids=tokens,
    ),
    split=st.sampled_from(Split),
)


@settings(deadline=None)
@given(st.lists(assignments, min_size=1, max_size=3))
def test_assignments_arrive_as_they_were_sent(sent: list[Assignment]) -> None:
    block = write_assignments(sent)
    assert block["trajectory_id"].to_pylist() == [each.trajectory_id for each in sent]
    assert read_assignments(from_ipc(to_ipc(block))) == sent


def test_a_table_arrives_as_it_was_sent() -> None:
    rows = pa.concat_tables([table(*group("g00000000")), table(*group("g00000001"))])
    arrived = from_ipc(to_ipc(rows))
    assert arrived.schema == rows.schema
    assert arrived.equals(rows)
    assert from_ipc(to_ipc(rows.slice(1, 2)))["trajectory_id"].to_pylist() == [
        "g00000000-01",
        "g00000001-00",
    ]
    assert from_ipc(to_ipc(rows.slice(0, 0))).num_rows == 0


@pytest.mark.parametrize(
    ("expressions", "refused"),
    [
        ((), [None, None, None]),
        ((pl.col("reward") > 0,), [None, "f0", "f0"]),
        ((pl.col("reward") < 0, pl.col("attempt") == 1), ["f0", None, "f0"]),
        ((pl.col("attempt") == 1, pl.col("reward") < 0), ["f0", None, "f0"]),
        ((pl.col("attempt") < 2, pl.col("reward") < 0), ["f1", None, "f0"]),
        ((pl.col("turns").list.len() == 1,), [None, None, None]),
        ((pl.lit(False),), ["f0", "f0", "f0"]),
    ],
)
def test_the_first_filter_that_is_not_true_of_a_row_refuses_it(
    expressions: tuple[pl.Expr, ...], refused: list[str | None]
) -> None:
    rows = table(
        trajectory("g", 0, reward=1.0),
        trajectory("g", 1, reward=-1.0),
        trajectory("g", 2, reward=None),  # null is not true
    )
    filters = [NamedFilter(f"f{place}", each) for place, each in enumerate(expressions)]
    assert refusals(filters, rows) == refused
    assert refusals(filters, rows.slice(0, 0)) == []
