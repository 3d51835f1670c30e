"""Every estimator against its formula, written here in plain Python from turns and rewards."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.algorithms.advantages import (
    GAE,
    BatchNormalized,
    ChunkReturns,
    Constant,
    GiGPO,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    StepReturns,
    VTrace,
)
from rollart_flow.algorithms.base import Estimator
from rollart_flow.errors import SettingsError, TrainerError
from tests.algorithms.batches import ROWS, Row, T, table

Lists = list[list[float]]

EPS = 1e-6


def of_group(rows: Sequence[Row], row: Row) -> list[float]:
    return [other.reward for other in rows if other.group == row.group]


def each(rows: Sequence[Row], value: Callable[[Row], float]) -> Lists:
    return [[value(row)] for row in rows]


def grpo(rows: Sequence[Row]) -> Lists:
    def value(row: Row) -> float:
        rewards = of_group(rows, row)
        return (row.reward - statistics.fmean(rewards)) / (statistics.pstdev(rewards) + EPS)

    return each(rows, value)


def dr_grpo(rows: Sequence[Row]) -> Lists:
    return each(rows, lambda row: row.reward - statistics.fmean(of_group(rows, row)))


def rloo(rows: Sequence[Row]) -> Lists:
    def value(row: Row) -> float:
        others = [o.reward for o in rows if o.group == row.group and o is not row]
        return row.reward - statistics.fmean(others) if others else 0.0

    return each(rows, value)


def reinforce_pp(rows: Sequence[Row]) -> Lists:
    centered = [value for (value,) in dr_grpo(rows)]
    return [[value / (statistics.pstdev(centered) + EPS)] for value in centered]


def turn_rewards(row: Row) -> list[float]:
    """The last turn has what the score differs from what the environment gave."""
    given = [turn.reward for turn in row.turns]
    return [*given[:-1], row.reward - sum(given[:-1])]


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    return [
        sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards)))
        for t in range(len(rewards))
    ]


def by_turn(row: Row, values: Sequence[float]) -> list[float]:
    pairs = zip(row.turns, values, strict=True)
    return [value for turn, value in pairs for _ in range(turn.acted)]


def steps(rows: Sequence[Row], gamma: float = 0.9) -> Lists:
    return [by_turn(row, returns(turn_rewards(row), gamma)) for row in rows]


def chunks(rows: Sequence[Row], gamma: float = 0.9) -> Lists:
    """Every turn has an observation, so that a turn with an action is a chunk."""
    found = []
    for row in rows:
        lengths = [turn.acted for turn in row.turns if turn.acted]
        found.append(
            [
                gamma ** (len(lengths) - 1 - k) * row.reward
                for k, length in enumerate(lengths)
                for _ in range(length)
            ]
        )
    return found


def gigpo(rows: Sequence[Row], gamma: float = 0.9, weight: float = 0.5) -> Lists:
    def normalized(value: float, among: Sequence[float]) -> float:
        return (value - statistics.fmean(among)) / (statistics.pstdev(among) + EPS)

    of_row = [returns(turn_rewards(row), gamma) for row in rows]
    found = []
    for row, own in zip(rows, of_row, strict=True):
        values = []
        for turn, value in zip(row.turns, own, strict=True):
            from_state = [
                other_value
                for other, other_returns in zip(rows, of_row, strict=True)
                for other_turn, other_value in zip(other.turns, other_returns, strict=True)
                if (other.group, other_turn.observation) == (row.group, turn.observation)
            ]
            step = normalized(value, from_state)
            values.append(normalized(row.reward, of_group(rows, row)) + weight * step)
        found.append(by_turn(row, values))
    return found


def paid(row: Row) -> list[float]:
    """A turn pays its last token, or where it has none the one before it."""
    found: list[float] = []
    for turn, reward in zip(row.turns, turn_rewards(row), strict=True):
        found += [0.0] * turn.acted
        found[-1] += reward
    return found


def gae(rows: Sequence[Row], gamma: float = 0.9, lam: float = 0.8) -> Lists:
    found = []
    for row in rows:
        rewards, values = paid(row), [*row.values, 0.0]
        n = len(rewards)
        delta = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(n)]
        found.append(returns(delta, gamma * lam))
    return found


def vtrace_targets(row: Row, gamma: float, rho_bar: float, c_bar: float) -> list[float]:
    """The sum of the definition, term by term."""
    rewards, values = paid(row), [*row.values, 0.0]
    n = len(rewards)
    ratio = [math.exp(old - mu) for old, mu in zip(row.old, row.behavior, strict=True)]
    found = []
    for s in range(n):
        total = values[s]
        for t in range(s, n):
            delta = min(rho_bar, ratio[t]) * (rewards[t] + gamma * values[t + 1] - values[t])
            trace = math.prod(min(c_bar, ratio[i]) for i in range(s, t))
            total += gamma ** (t - s) * trace * delta
        found.append(total)
    return found


def vtrace(rows: Sequence[Row], gamma: float = 0.9) -> Lists:
    found = []
    for row in rows:
        targets = [*vtrace_targets(row, gamma, 1.5, 1.1), 0.0]
        found.append(
            [
                reward + gamma * targets[t + 1] - value
                for t, (reward, value) in enumerate(zip(paid(row), row.values, strict=True))
            ]
        )
    return found


Reference = Callable[[Sequence[Row]], Lists]

FORMULAS: list[tuple[Estimator, Reference]] = [
    (GroupNormalized(), grpo),
    (GroupCentered(), dr_grpo),
    (LeaveOneOut(), rloo),
    (BatchNormalized(), reinforce_pp),
    (StepReturns(gamma=0.9), steps),
    (ChunkReturns(gamma=0.9), chunks),
    (GiGPO(gamma=0.9, step_weight=0.5), gigpo),
    (GAE(gamma=0.9, lam=0.8), gae),
    (VTrace(gamma=0.9, rho_bar=1.5, c_bar=1.1), vtrace),
]
ESTIMATORS = [estimator for estimator, _ in FORMULAS] + [Constant()]


def name(value: object) -> str:
    return type(value).__name__


def lists(values: Sequence[Any] | None) -> Lists | None:
    return None if values is None else [value.tolist() for value in values]


@pytest.mark.parametrize(("estimator", "formula"), FORMULAS, ids=name)
@given(rows=ROWS)
@settings(max_examples=20)
def test_advantages_are_those_of_the_formula(
    estimator: Estimator, formula: Reference, rows: list[Row]
) -> None:
    found = estimator(table(rows))
    for row, value, expected in zip(rows, found.values, formula(rows), strict=True):
        assert value.dtype == np.float32
        assert value.shape in {(1,), (row.actions,)}
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    equal = sum(
        len({row.reward for row in rows if row.group == group}) == 1
        for group in {row.group for row in rows}
    )
    assert found.zero_variance_groups == equal


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
@given(rows=ROWS, data=st.data())
@settings(max_examples=10)
def test_the_order_of_the_batch_does_not_matter(
    estimator: Estimator, rows: list[Row], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    straight = estimator(table(rows))
    shuffled = estimator(table([rows[place] for place in order]))
    assert shuffled.zero_variance_groups == straight.zero_variance_groups
    for at, place in enumerate(order):
        np.testing.assert_allclose(shuffled.values[at], straight.values[place], atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
@given(rows=ROWS, data=st.data())
@settings(max_examples=10)
def test_chunked_and_sliced_columns_are_read_right(
    estimator: Estimator, rows: list[Row], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(rows)))
    seven = (7.0,) * 5
    other = Row("z", 9.0, (T(3, 5),), values=seven, behavior=seven, old=seven)
    others = table([other, *rows])
    pieces = pa.concat_tables([others.slice(1, cut), others.slice(1 + cut)])
    whole, cut_up = estimator(table(rows)), estimator(pieces)
    assert lists(cut_up.values) == lists(whole.values)
    assert cut_up.columns.keys() == whole.columns.keys()
    for column, values in whole.columns.items():
        assert lists(cut_up.columns[column]) == lists(values)
    assert cut_up.zero_variance_groups == whole.zero_variance_groups


@pytest.mark.parametrize(
    "estimator", [GroupNormalized(), GroupCentered(), LeaveOneOut(), BatchNormalized()], ids=name
)
def test_a_group_without_variance_gives_exactly_zero(estimator: Estimator) -> None:
    rewards = [0.1] * 6
    assert np.mean(rewards) != 0.1  # so that subtracting the mean alone would not give zero
    rows = [Row("same", reward) for reward in rewards] + [Row("alone", 7.7)]
    found = estimator(table([*rows, Row("two", 0.0), Row("two", 1.0)]))
    values = np.concatenate(found.values)
    assert (values[:7] == 0).all()
    assert values[7] == -values[8] < 0
    assert found.zero_variance_groups == 2
    assert (np.concatenate(estimator(table(rows)).values) == 0).all(), "also in a batch of such"


def test_equal_episodes_teach_exactly_nothing_to_gigpo() -> None:
    episode = Row("a", 0.3, (T(1, 2, 0.1, "hall"), T(1, 1, 0.2, "door")))
    found = GiGPO()(table([episode] * 3))
    assert (np.concatenate(found.values) == 0).all()
    assert found.zero_variance_groups == 1


def test_gigpo_prefers_the_turn_that_leads_to_the_goal_sooner() -> None:
    """Equal rewards, so GRPO learns nothing: but from the door one went straight on."""
    straight = Row("a", 1.0, (T(1, 1, 0, "hall"), T(1, 1, 1.0, "door")))
    circle = Row(
        "a", 1.0, (T(1, 1, 0, "hall"), T(1, 1, 0, "door"), T(1, 1, 0, "hall"), T(1, 1, 1.0, "door"))
    )
    found = GiGPO()(table([straight, circle]))
    assert found.values[0][1] > 0 > found.values[1][1]
    assert found.zero_variance_groups == 1


def test_step_weight_zero_is_grpo() -> None:
    rows = [Row("a", reward, (T(1, 1), T(1, 2))) for reward in (0.0, 1.0, 1.0)]
    plain = GroupNormalized()(table(rows)).values
    for value, expected in zip(GiGPO(step_weight=0)(table(rows)).values, plain, strict=True):
        assert value.tolist() == [expected[0]] * 3


def test_without_discount_every_return_is_the_reward() -> None:
    rows = table([Row("a", 0.75, (T(1, 2), T(1, 1), T(2, 1)))])
    assert lists(StepReturns(gamma=1)(rows).values) == [[0.75] * 4]
    assert lists(ChunkReturns(gamma=1)(rows).values) == [[0.75] * 4]


def test_turns_without_an_observation_between_them_are_one_chunk() -> None:
    rows = table([Row("a", 1.0, (T(2, 1), T(0, 2), T(1, 1)))])
    assert lists(ChunkReturns(gamma=0.5)(rows).values) == [[0.5, 0.5, 0.5, 1.0]]
    assert lists(StepReturns(gamma=0.5)(rows).values) == [[0.25, 0.5, 0.5, 1.0]]


def test_a_turn_without_an_action_pays_the_token_before_it() -> None:
    row = Row("a", 3.0, (T(1, 2, 1.0), T(1, 0, 2.0)), values=(0.0, 0.0))
    assert lists(GAE(lam=1)(table([row])).values) == [[3.0, 3.0]]


@given(rows=ROWS)
@settings(max_examples=20)
def test_targets_are_the_returns_that_advantages_were_taken_from(rows: list[Row]) -> None:
    found = GAE(gamma=0.9, lam=0.8)(table(rows))
    assert "targets" in found.columns
    for row, target, advantage in zip(rows, found.columns["targets"], found.values, strict=True):
        np.testing.assert_allclose(target, advantage + np.array(row.values), atol=1e-5)
    corrected = VTrace(gamma=0.9, rho_bar=1.5, c_bar=1.1)(table(rows))
    assert "targets" in corrected.columns
    for row, target in zip(rows, corrected.columns["targets"], strict=True):
        np.testing.assert_allclose(target, vtrace_targets(row, 0.9, 1.5, 1.1), rtol=1e-5, atol=1e-5)


@given(rows=ROWS)
@settings(max_examples=10)
def test_on_policy_vtrace_is_gae_with_lambda_one(rows: list[Row]) -> None:
    batch = table(rows)
    behavior = [values or (0.0,) * row.actions for row in rows for values in [row.behavior]]
    on_policy = batch.set_column(
        batch.schema.get_field_index("old_logprobs"),
        "old_logprobs",
        pa.array(behavior, pa.list_(pa.float32())),
    )
    found, expected = VTrace(gamma=0.9)(on_policy), GAE(gamma=0.9, lam=1.0)(batch)
    assert "targets" in found.columns
    assert "targets" in expected.columns
    pairs = [
        (found.values, expected.values),
        (found.columns["targets"], expected.columns["targets"]),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(np.concatenate(ours), np.concatenate(theirs), atol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_only_estimators_with_a_critic_give_targets(estimator: Estimator) -> None:
    rows = [Row("a", 1.0, values=(0.5, 0.5), behavior=(-1.0, -1.0), old=(-1.0, -2.0))]
    assert ("targets" in estimator(table(rows)).columns) == estimator.needs_values


@pytest.mark.parametrize(
    ("estimator", "without"), [(GAE(), "values"), (VTrace(), "values"), (VTrace(), "old_logprobs")]
)
def test_what_an_estimator_needs_must_be_there(estimator: Estimator, without: str) -> None:
    row = Row("a", 1.0, values=(0.5, 0.5), behavior=(-1.0, -1.0), old=(-1.0, -2.0))
    batch = table([row])
    with pytest.raises(TrainerError, match=f"no column '{without}'"):
        estimator(batch.drop_columns([without]))
    short = batch.set_column(
        batch.schema.get_field_index(without), without, pa.array([[1.0]], pa.list_(pa.float32()))
    )
    with pytest.raises(TrainerError, match=f"trajectory 0 .* 2 finite {without}"):
        estimator(short)


@pytest.mark.parametrize(
    "estimator", [StepReturns(), ChunkReturns(), GiGPO(), GAE(), VTrace()], ids=name
)
def test_tokens_outside_turns_are_refused(estimator: Estimator) -> None:
    good, bad = Row("a", 1.0), Row("a", 1.0, (T(1, 2), T(1, 1)))
    batch = table([good, bad])
    turns = pa.array(table([good, good])["turns"].to_pylist(), batch["turns"].type)
    batch = batch.set_column(batch.schema.get_field_index("turns"), "turns", turns)
    with pytest.raises(TrainerError, match=r"trajectory 1 .* outside its turns"):
        estimator(batch)


@pytest.mark.parametrize("estimator", ESTIMATORS[:-1], ids=name)
def test_a_trajectory_without_a_reward_is_refused(estimator: Estimator) -> None:
    with pytest.raises(TrainerError, match=r"trajectory 0 .* must be scored"):
        estimator(table([Row("a", float("nan"))]))


@pytest.mark.parametrize(
    ("build", "setting", "value"),
    [
        (BatchNormalized, "eps", 0.0),
        (StepReturns, "gamma", 1.5),
        (ChunkReturns, "gamma", -0.1),
        (GiGPO, "gamma", "0.9"),
        (GiGPO, "step_weight", -1.0),
        (GiGPO, "eps", 0.0),
        (GAE, "gamma", 2.0),
        (GAE, "lam", 1.1),
        (VTrace, "gamma", math.nan),
        (VTrace, "rho_bar", 0.0),
        (VTrace, "c_bar", 1.5),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(build: Any, setting: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{setting}=.*expected") as caught:
        build(**{setting: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "changes"),
    [
        (GroupNormalized, {"eps": 0.5}),
        (BatchNormalized, {"eps": 0.5}),
        (StepReturns, {"gamma": 0.5}),
        (ChunkReturns, {"gamma": 0.5}),
        (GiGPO, {"gamma": 0.5, "step_weight": 2.0, "eps": 0.5}),
        (GAE, {"gamma": 0.5, "lam": 0.5}),
        (VTrace, {"gamma": 0.5, "rho_bar": 2.0, "c_bar": 0.5}),
    ],
)
def test_every_setting_matters(build: Any, changes: dict[str, float]) -> None:
    turns = (T(1, 2, 0.5, "hall"), T(1, 1, 0.25, "door"))
    numbers = {"values": (0.5, 0.25, 1.0), "behavior": (-1.0, -2.0, -1.0), "old": (-0.5, -1.0, -3)}
    rows = [Row("a", reward, turns, **numbers) for reward in (0.0, 1.0)]  # type: ignore[arg-type]
    rows.append(Row("a", 3.0, turns[::-1], **numbers))  # type: ignore[arg-type]
    before = np.concatenate(build()(table(rows)).values)
    assert set(changes) == {field.name for field in fields(build)}
    for setting, value in changes.items():
        after = np.concatenate(build(**{setting: value})(table(rows)).values)
        assert not np.allclose(before, after), setting
