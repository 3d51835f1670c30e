"""Domains that make a task from its number."""

from collections import Counter
from itertools import islice

import pytest

from rollart_flow.envs import GymnasiumText, Sokoban
from rollart_flow.envs.numbered import held_out_by_hash
from rollart_flow.errors import SettingsError
from rollart_flow.types import Split


def test_training_goes_through_all_tasks_before_one_comes_again() -> None:
    domain = GymnasiumText("Blackjack-v1", train_tasks=5)
    tasks = list(islice(domain.tasks(Split.TRAIN, 3), 15))
    assert set(Counter(task.task_id for task in tasks).values()) == {3}
    assert tasks[:5] != tasks[5:10]


def test_evaluation_takes_the_first_tasks_of_training_and_held_out_ones_are_apart() -> None:
    domain = GymnasiumText("Blackjack-v1", train_tasks=5, evaluation_tasks=9, held_out_tasks=2)
    measured = [task.task_id for task in domain.tasks(Split.EVALUATION, 3)]
    assert measured == [f"Blackjack-v1/{n}" for n in range(5)]
    assert [task.task_id for task in domain.held_out(0)] == [
        "Blackjack-v1/1073741824",
        "Blackjack-v1/1073741825",
    ]


def test_a_hash_holds_a_share_of_texts_out() -> None:
    share = sum(held_out_by_hash(str(n)) for n in range(10_000)) / 10_000
    assert 0.09 < share < 0.11


@pytest.mark.parametrize("settings", [{"train_tasks": 0}, {"held_out_tasks": -1}])
def test_numbers_of_tasks_out_of_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=f"Sokoban: {next(iter(settings))}="):
        Sokoban(**settings)  # type: ignore[arg-type]
