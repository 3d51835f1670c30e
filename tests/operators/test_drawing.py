"""The order in which stored episodes are drawn."""

import polars as pl
import pytest

from rollart_flow.operators.drawing import EpochOrder, units_of


def index(*episodes: tuple[str, bool | None]) -> pl.DataFrame:
    """An index of episodes, each given as its group and whether it is preferred."""
    return pl.DataFrame(
        {
            "run": [0] * len(episodes),
            "seqs": [[seq] for seq in range(len(episodes))],
            "group_id": [group for group, _ in episodes],
            "preferred": [preferred for _, preferred in episodes],
        }
    )


@pytest.mark.parametrize("sizes", [[1] * 20, [2, 3, 1, 4, 2, 2, 3, 3]])
def test_a_pass_has_every_unit_at_most_once_and_the_next_one_another_order(
    sizes: list[int],
) -> None:
    order = EpochOrder(sizes, 6, seed=3)
    passes: list[list[list[int]]] = [[]]
    for step in range(1, 13):
        batch = order.units(step)
        assert 0 < sum(sizes[unit] for unit in batch) <= 6
        if set(batch) & {unit for earlier in passes[-1] for unit in earlier}:
            passes.append([])
        passes[-1].append(batch)
    assert len(passes) > 2
    assert passes[0] != passes[1]
    for each in passes[:-1]:
        taken = [unit for batch in each for unit in batch]
        assert len(set(taken)) == len(taken)
        assert sum(sizes) - sum(sizes[unit] for unit in taken) < 6


def test_a_step_is_the_same_whichever_was_asked_for_before() -> None:
    first, second = (EpochOrder([2, 1, 3, 2, 2], 5, seed=1) for _ in range(2))
    forward = [first.units(step) for step in range(1, 9)]
    assert [second.units(step) for step in range(8, 0, -1)] == forward[::-1]
    assert [EpochOrder([2, 1, 3, 2, 2], 5, seed=2).units(step) for step in range(1, 9)] != forward


def test_the_nth_preferred_episode_of_a_group_is_paired_with_its_nth_rejected_one() -> None:
    found = index(
        ("a", True), ("b", False), ("a", None), ("a", False), ("a", True), ("b", True),
        ("a", False), ("a", False), ("c", True),
    )  # fmt: skip
    units = units_of(found, paired=True, grouped=True)
    assert units.sizes == [2, 2, 2]
    drawn = list(units.drawn([2, 0]))
    assert [(e.seqs, e.preferred, e.pair) for e in drawn] == [
        ((5,), True, 0), ((1,), False, 0), ((0,), True, 1), ((3,), False, 1),
    ]  # fmt: skip


def test_the_episodes_of_a_group_stay_together_where_they_are_compared() -> None:
    found = index(("a", None), ("b", None), ("a", None))
    assert units_of(found, paired=False, grouped=True).sizes == [2, 1]
    assert units_of(found, paired=False, grouped=False).sizes == [1, 1, 1]
