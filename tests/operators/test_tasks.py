"""The stream of tasks: shares, one order for each seed, and a cursor that can be resumed."""

from collections import Counter
from itertools import islice

import pytest

from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.errors import RunFailedError
from rollart_flow.operators.tasks import task_stream
from rollart_flow.types import Task

LETTERS = tuple(Task(letter, "letters") for letter in "abcde")
SUMS, LAKE = Arithmetic(digits=1), FrozenLake(size=4)


class Dataset:
    """Rows as a `ray.data.Dataset` gives them."""

    def __init__(self, *rows: dict[str, object]) -> None:
        self._rows = rows

    def iter_rows(self) -> list[dict[str, object]]:
        return list(self._rows)


def first(count: int, *sources: object, seed: int = 0, **weights: float) -> list[Task]:
    return list(islice(task_stream(sources, seed=seed, weights=weights or None), count))


def test_sources_share_evenly_in_every_stretch() -> None:
    domains = [task.domain for task in first(30, SUMS, LAKE, LETTERS)]
    for start in range(0, 30, 3):
        assert set(domains[start : start + 3]) == {"arithmetic", "frozenlake", "letters"}


def test_shares_follow_the_weights() -> None:
    domains = [task.domain for task in first(40, SUMS, LAKE, arithmetic=3.0)]
    assert Counter(domains) == {"arithmetic": 30, "frozenlake": 10}
    assert Counter(domains[:4]) == {"arithmetic": 3, "frozenlake": 1}


def test_the_same_seed_gives_the_same_order_in_any_process() -> None:
    once, again = first(50, SUMS, LETTERS, seed=3), first(50, SUMS, LETTERS, seed=3)
    assert once == again
    assert first(50, SUMS, LETTERS, seed=4) != once


def test_a_cursor_is_all_that_is_needed_to_go_on() -> None:
    stream = task_stream((SUMS, LAKE), seed=1)
    assert first(20, SUMS, LAKE, seed=1)[12:] == list(islice(stream, 12, 20))


def test_a_list_is_gone_through_again_and_again_in_new_orders() -> None:
    rounds = [first(15, LETTERS)[start : start + 5] for start in (0, 5, 10)]
    for one in rounds:
        assert sorted(task.task_id for task in one) == list("abcde")
    assert len({tuple(one) for one in rounds}) > 1


def test_a_dataset_gives_its_rows_in_order_with_their_payload() -> None:
    rows = Dataset(
        {"task_id": 7, "domain": "web", "payload": {"b": 1, "a": 2}},
        {"task_id": "x", "domain": "web", "payload": "[1]"},
        {"task_id": "y", "domain": "web"},
    )
    assert first(4, rows) == [
        Task("7", "web", '{"a": 2, "b": 1}'),
        Task("x", "web", "[1]"),
        Task("y", "web", "{}"),
        Task("7", "web", '{"a": 2, "b": 1}'),
    ]


@pytest.mark.parametrize("source", [(), Dataset()])
def test_a_source_without_a_task_ends_the_run(source: object) -> None:
    with pytest.raises(RunFailedError, match="no task"):
        first(1, source)


def test_a_task_of_a_domain_that_nobody_runs_is_named() -> None:
    stream = task_stream(((Task("t-1", "coin"),),), seed=0, domains=("arithmetic", "frozenlake"))
    with pytest.raises(RunFailedError, match="task 't-1' has domain 'coin', but the rollout"):
        next(stream)
