"""What one number a batch's token losses become, and what stale trajectories count in it."""

import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.algorithms import Decayed
from rollart_flow.algorithms.parts.aggregation import (
    Aggregation,
    aggregation_weights,
    check_aggregation,
)
from rollart_flow.errors import SettingsError, TrainerError
from tests.algorithms.batches import ROWS, Row, T, table


def aggregated(rows: list[Row], aggregation: Aggregation, constant: int = 0) -> float:
    """What the trainer makes of losses that are all the trajectory's reward."""
    weights = aggregation_weights(table(rows), aggregation, constant)
    total = sum(w * row.actions * row.reward for w, row in zip(weights, rows, strict=True))
    return float(total / sum(row.actions for row in rows))


@given(rows=ROWS, constant=st.integers(1, 100))
@settings(max_examples=30)
def test_every_aggregation_is_the_mean_that_it_names(rows: list[Row], constant: int) -> None:
    tokens = [row.reward for row in rows for _ in range(row.actions)]
    assert aggregated(rows, "token") == pytest.approx(statistics.fmean(tokens))
    assert aggregated(rows, "sequence") == pytest.approx(
        statistics.fmean(row.reward for row in rows)
    )
    by_domain = [
        [row.reward for row in rows if row.domain == domain for _ in range(row.actions)]
        for domain in {row.domain for row in rows}
    ]
    assert aggregated(rows, "domain") == pytest.approx(
        statistics.fmean(map(statistics.fmean, by_domain))
    )
    sums = [row.reward * row.actions / constant for row in rows]
    assert aggregated(rows, "constant", constant) == pytest.approx(statistics.fmean(sums))


def test_with_constant_a_token_counts_the_same_whatever_else_its_trajectory_has() -> None:
    """A longer companion changes the share of a token in the others, and not in this one."""
    short = Row("a", 1.0, (T(1, 2),))
    for long in (Row("a", 0.0, (T(1, 2),)), Row("a", 0.0, (T(1, 50),))):
        assert aggregated([short, long], "constant", 4) == pytest.approx(2 / 4 / 2)


@pytest.mark.parametrize(
    ("aggregation", "constant", "message"),
    [
        ("constant", 0, "constant_tokens=0: expected a whole number of at least 1"),
        ("constant", 2.5, "constant_tokens=2.5: expected"),
        ("constant", True, "constant_tokens=True: expected"),
        ("token", 8, "constant_tokens=8: expected 0 with aggregation='token'"),
        ("sequence", 8, "constant_tokens=8: expected 0"),
        ("mean", 0, "aggregation='mean': expected one of constant, domain, sequence, token"),
    ],
)
def test_a_constant_belongs_to_constant_alone(
    aggregation: Any, constant: Any, message: str
) -> None:
    for refuse in (
        lambda: check_aggregation(aggregation, constant),
        lambda: aggregation_weights(table([Row("a", 1.0)]), aggregation, constant),
    ):
        with pytest.raises(SettingsError) as caught:
            refuse()
        assert str(caught.value).startswith(message)


@given(rows=ROWS, factor=st.floats(0.1, 1.0), after=st.integers(0, 3))
@settings(max_examples=30)
def test_each_version_of_lag_takes_the_same_share_away(
    rows: list[Row], factor: float, after: int
) -> None:
    weights = Decayed(factor, after)(table(rows))
    for row, weight in zip(rows, weights, strict=True):
        expected = 1.0
        for _ in range(after, row.staleness):
            expected *= factor
        assert weight == pytest.approx(expected)


@given(rows=ROWS, data=st.data())
@settings(max_examples=20)
def test_weights_go_with_their_rows(rows: list[Row], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(rows)))
    others = table([Row("z", 9.0, staleness=9), *rows])
    pieces = pa.concat_tables([others.slice(1, cut), others.slice(1 + cut)])
    assert Decayed()(pieces).tolist() == Decayed()(table(rows)).tolist()
    backwards = Decayed()(table(rows[::-1]))
    assert backwards[::-1].tolist() == Decayed()(table(rows)).tolist()


def test_fresh_trajectories_count_in_full_and_factor_one_changes_nothing() -> None:
    rows = [Row("a", 1.0, staleness=lag) for lag in range(3)]
    assert Decayed()(table(rows)) == pytest.approx([1.0, 0.9, 0.81])
    assert Decayed(1.0)(table(rows)).tolist() == [1.0] * 3
    assert Decayed(0.5, after=1)(table(rows)).tolist() == [1.0, 1.0, 0.5]


def test_a_trajectory_without_staleness_is_refused() -> None:
    batch = table([Row("a", 1.0), replace(Row("a", 1.0), staleness=1)])
    at = batch.schema.get_field_index("staleness")
    unknown = batch.set_column(at, "staleness", pa.array([0, None], pa.int32()))
    with pytest.raises(TrainerError, match="trajectory 1 of the batch has no staleness"):
        Decayed()(unknown)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("factor", 0.0), ("factor", 1.1), ("factor", np.nan), ("after", -1), ("after", 0.5)],
)
def test_a_bad_decay_is_one_line_that_names_it(setting: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{setting}=.*expected") as caught:
        Decayed(**{setting: value})
    assert "\n" not in str(caught.value)
