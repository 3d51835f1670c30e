"""A filter's expression is checked against the schema when the pipeline is built."""

from typing import Any

import polars as pl
import pytest

from rollart_flow import filter, reward, rollout, tasks
from rollart_flow.errors import PipelineError
from tests.pipeline.parts import LAKE, POLICY

ATTEMPTS = rollout(tasks(LAKE), POLICY)
SCORED = reward(ATTEMPTS)


def test_an_expression_over_any_column_is_kept() -> None:
    expression = (pl.col("token_ids").list.len() < 100) & (pl.col("reward") >= 0)
    assert filter(SCORED, expression).expression is expression


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (pl.col("rewards") > 0, r"^f: unknown column 'rewards'; columns are .*reward,"),
        (pl.col("seq") > 0, r"^f: unknown column 'seq'"),
        (pl.col("reward"), r"^f: the expression must give one boolean .*Float64"),
        (pl.col("reward").mean() > 0, r"^f: the expression must give one boolean"),
        (pl.col("domain") > 3, r"^f: "),
        ("reward > 0", r"^f: takes a polars expression, got str"),
    ],
)
def test_another_expression_is_refused_by_name(expression: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        filter(SCORED, expression, name="f")
    assert "\n" not in str(raised.value)


def test_scores_are_not_known_before_reward() -> None:
    with pytest.raises(PipelineError, match=r"^filter: column 'reward' is not known before"):
        filter(ATTEMPTS, pl.col("reward") > 0)
    assert not filter(ATTEMPTS, pl.col("outcome") == "completed").scored


def test_an_expression_over_groups_judges_groups() -> None:
    best = pl.col("reward") == pl.col("reward").max().over("group_id", order_by="attempt")
    assert filter(SCORED, best).of_groups
    assert not filter(SCORED, pl.col("reward") > 0).of_groups


@pytest.mark.parametrize("partition", ["domain", "task_id"])
def test_attempts_are_compared_within_their_group_only(partition: str) -> None:
    with pytest.raises(PipelineError, match=r"^filter: attempts are compared within their group"):
        filter(SCORED, pl.col("reward") > pl.col("reward").mean().over(partition))


def test_a_group_is_judged_after_reward() -> None:
    with pytest.raises(PipelineError, match=r"^filter: a group is complete once it is scored"):
        filter(ATTEMPTS, pl.col("attempt").max().over("group_id") > 1)
