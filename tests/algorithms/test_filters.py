"""Filters over rows of `trajectories`, each against what it says in plain Python."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow import filter, reward, rollout, tasks
from rollart_flow.algorithms.filters import (
    FILTERS,
    balanced,
    complete,
    diverse,
    length,
    named_filter,
    quality,
    varied,
)
from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.operators.filters import NamedFilter, group_refusal
from rollart_flow.types import Outcome, Trajectory
from tests.builders import table, trajectory, turn
from tests.pipeline.parts import LAKE, POLICY

GROUP = "g00000000"
OTHER = "g00000001"


def frame(rows: Sequence[Trajectory]) -> pl.DataFrame:
    found = pl.from_arrow(table(*rows))
    assert isinstance(found, pl.DataFrame)
    return found


def kept(expression: pl.Expr, rows: Sequence[Trajectory]) -> list[bool]:
    """What a stored run would show of these rows."""
    names = frame(rows).lazy().filter(expression).collect()["trajectory_id"].to_list()
    return [row.trajectory_id in names for row in rows]


def rewarded(*rewards: float | None, group_id: str = GROUP) -> list[Trajectory]:
    return [trajectory(group_id, place, reward=value) for place, value in enumerate(rewards)]


def saying(*actions: str, group_id: str = GROUP) -> list[Trajectory]:
    """Attempts of turns that are separated by a slash."""

    return [
        replace(trajectory(group_id, place), turns=tuple(map(turn, said.split("/"))))
        for place, said in enumerate(actions)
    ]


def test_complete_drops_what_was_truncated_failed_or_said_an_error() -> None:
    rows = [
        trajectory(GROUP, 0),
        trajectory(GROUP, 1, outcome=Outcome.TRUNCATED),
        trajectory(GROUP, 2, outcome=Outcome.FAILED),
        replace(trajectory(GROUP, 3), error="closing: it hung"),
    ]
    assert kept(complete(), rows) == [True, False, False, False]


def test_quality_drops_rewards_that_are_zero_abnormal_or_missing() -> None:
    rows = rewarded(1.0, 0.0, -3.0, 7.0, None, float("nan"), float("inf"))
    assert kept(quality(), rows) == [True, False, True, True, False, False, False]
    assert kept(quality(-1, 5), rows) == [True, False, False, False, False, False, False]
    assert kept(quality(-1, 5, zero=True), rows) == [True, True] + [False] * 5


def test_length_counts_what_the_policy_generated() -> None:
    two = trajectory(GROUP, 0)
    assert sum(two.action_mask) == 2
    silent = replace(trajectory(GROUP, 1), action_mask=(False,) * 5)
    assert kept(length(2), [two, silent]) == [True, False]
    assert kept(length(1), [two, silent]) == [False, False]
    assert kept(length(5, least_tokens=3), [two, silent]) == [False, False]
    assert kept(length(5, least_tokens=0), [two, silent]) == [True, True]


def test_varied_drops_groups_whose_rewards_are_equal() -> None:
    rows = [*rewarded(0.1, 0.1, 0.1), *rewarded(0.0, 0.0, 1.0, group_id=OTHER)]
    assert kept(varied(), rows) == [False] * 3 + [True] * 3
    assert kept(varied(), rewarded(None, None)) == [False, False]


def test_balanced_drops_groups_that_nearly_always_fail_or_succeed() -> None:
    rows = [*rewarded(0.0, 0.0, 0.0, 1.0), *rewarded(1, 1, 1, 1, -1, group_id=OTHER)]
    assert kept(balanced(), rows) == [True] * 4 + [False] * 5
    assert kept(balanced(0.3), rows) == [False] * 9
    assert kept(balanced(0, 1), rows) == [True] * 9
    assert kept(balanced(above=-2), rows) == [False] * 9


def repeated(said: Sequence[str], n: int) -> tuple[int, int]:
    """(n-grams that are said again, those that could be), in plain Python."""
    attempts = []
    for actions in said:
        words = actions.replace("/", " ").split()
        grams = {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}
        attempts.append(grams or {tuple(words)})
    total, union = sum(map(len, attempts)), len(set().union(*attempts))
    return total - union, total - max(map(len, attempts))


@pytest.mark.parametrize(
    ("said", "share"),
    [
        (["left/down/down", "left/down/down", "left/down/down"], 1.0),
        (["left/down/down", "up/up/right"], 0.0),
        (["the answer is 7", "the answer is 8"], 0.5),
        (["7", "8", "7"], 0.5),
        (["7"], 0.0),
    ],
)
def test_diverse_drops_groups_that_say_the_same_again(said: list[str], share: float) -> None:
    rows = saying(*said)
    again, could = repeated(said, 3)
    assert again == share * could
    assert kept(diverse(share), rows) == [True] * len(rows)
    if share > 0:
        assert kept(diverse(share - 0.01), rows) == [False] * len(rows)


WORDS = st.lists(st.sampled_from(["a", "b", "a/b", "b a", "a b/a"]), min_size=1, max_size=4)


@given(said=st.lists(WORDS.map("/".join), min_size=1, max_size=5), n=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_repetition_is_counted_as_said(said: list[str], n: int) -> None:
    again, could = repeated(said, n)
    others = saying("a b", "a b", group_id=OTHER)
    rows = [*saying(*said), *others]
    for most in (0.0, 0.3, 0.7, 1.0):
        assert kept(diverse(most, n), rows)[: len(said)] == [again <= most * could] * len(said)


REWARDS = st.lists(st.sampled_from([None, -1.0, 0.0, 0.5, 1.0]), min_size=1, max_size=4)


@pytest.mark.parametrize("text", ["varied", "balanced", "diverse(0.5)", "complete", "quality"])
@given(groups=st.lists(REWARDS, min_size=1, max_size=3), data=st.data())
@settings(max_examples=20, deadline=None)
def test_the_order_of_rows_and_other_groups_change_nothing(
    text: str, groups: list[list[float | None]], data: st.DataObject
) -> None:
    """So a group is judged alike in the buffer, which sees it alone, and in a stored run."""
    by_group = [rewarded(*one, group_id=f"g{place:08d}") for place, one in enumerate(groups)]
    rows = [row for one in by_group for row in one]
    together = dict(
        zip((r.trajectory_id for r in rows), kept(named_filter(text), rows), strict=True)
    )
    order = data.draw(st.permutations(rows))
    for row, keep in zip(order, kept(named_filter(text), order), strict=True):
        assert keep == together[row.trajectory_id]
    for one in by_group:
        refused = group_refusal([NamedFilter("f", named_filter(text))], table(*one))
        assert (refused is None) == all(together[row.trajectory_id] for row in one)


def test_chunked_and_sliced_rows_are_judged_alike() -> None:
    rows = table(*rewarded(9.0, 0.0, 1.0, 1.0))
    named = [NamedFilter("varied", varied())]
    assert group_refusal(named, rows.slice(1)) is None
    assert group_refusal(named, rows.slice(2)) == "varied"


@pytest.mark.parametrize("text", [*sorted(FILTERS.keys() - {"length"}), "length(64)"])
def test_every_filter_stands_in_a_pipeline_and_says_whether_it_judges_groups(text: str) -> None:
    node = filter(reward(rollout(tasks(LAKE), POLICY)), named_filter(text))
    assert node.of_groups == (text in {"varied", "balanced", "diverse"})


@pytest.mark.parametrize("text", ["varied", "balanced", "diverse"])
def test_what_judges_groups_stands_after_reward(text: str) -> None:
    with pytest.raises(PipelineError, match=r"^filter: "):
        filter(rollout(tasks(LAKE), POLICY), named_filter(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variety", "filter 'variety' is none of complete, quality, length, varied, balanced, "),
        ("length", "filter 'length': .*most_tokens"),
        ("length(0)", "most_tokens=0: expected a whole number of at least 1"),
        ("length(4, least_tokens=5)", "most_tokens=4: expected a whole number of at least 5"),
        ("quality(1, 1)", "low=1: expected a number below high=1"),
        ("quality(zero=1)", "zero=1: expected True or False"),
        ("balanced(0.9)", "high=0.75: expected a number at least 0.9 and at most 1"),
        ("balanced(-1)", "low=-1: expected a number at least 0"),
        ("diverse(2)", "most=2: expected a number at least 0 and at most 1"),
        ("diverse(n=0)", "n=0: expected a whole number of at least 1"),
        ("diverse(size=1)", "filter 'diverse.*': .*'size'"),
        ("pl.lit(True)", "filter 'pl.lit.*' is no name like varied or length"),
        ("quality(low=print(1))", "is no name like"),
    ],
)
def test_a_text_that_names_no_filter_is_refused(text: str, message: Any) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        named_filter(text)
    assert "\n" not in str(caught.value)
