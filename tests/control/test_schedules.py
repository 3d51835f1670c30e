"""Schedules are data: an order of phases and an invariant that can be checked."""

import pickle
from dataclasses import replace

import pytest

from rollart_flow.control.schedules import Phase, Schedule, rollart, sync
from rollart_flow.control.selection import AdmissionState, ReadyGroup, by_credits, oldest_first
from rollart_flow.control.staleness import StalenessPolicy
from rollart_flow.errors import SettingsError
from rollart_flow.types import Batch


def batch(step: int, served: int, staleness: tuple[int, ...], trained: int | None = None) -> Batch:
    ids = tuple(f"t{i}" for i in range(len(staleness)))
    return Batch(
        step=step,
        policy_version=served,
        trained_version=step - 1 if trained is None else trained,
        trajectory_ids=ids,
        group_ids=ids,
        staleness=staleness,
    )


def test_rollart_trains_while_the_engines_go_on() -> None:
    schedule = rollart(1)
    assert schedule.before_training == (Phase.SUSPEND, Phase.UPDATE, Phase.RESUME)
    assert schedule.after_training == ()


def test_sync_trains_while_the_engines_are_suspended() -> None:
    assert sync().before_training == (Phase.SUSPEND,)
    assert sync().after_training == (Phase.UPDATE, Phase.RESUME)


def test_rollart_without_asynchrony_is_sync() -> None:
    assert rollart(0) == sync()


def test_a_negative_alpha_is_refused() -> None:
    with pytest.raises(SettingsError, match="alpha is -1"):
        rollart(-1)


@pytest.mark.parametrize("schedule", [rollart(0.5), rollart(2), sync()])
def test_a_schedule_crosses_processes(schedule: Schedule) -> None:
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_rollart_finds_what_breaks_its_promise() -> None:
    schedule = rollart(1)
    kept = [batch(1, 0, (0, 0)), batch(2, 0, (0, 0)), batch(3, 1, (1, 0)), batch(4, 3, (1, 1))]
    assert schedule.violations(kept) == ()
    too_old = batch(5, 3, (0, 2))
    assert schedule.violations([*kept, too_old]) == ("step 5: trajectory t1 is 2 versions old",)
    assert "version 1 was served" in schedule.violations([batch(5, 1, (0,))])[0]
    assert "trained from version 3" in schedule.violations([batch(5, 3, (0,), trained=3)])[0]


def test_sync_promises_that_all_is_on_policy() -> None:
    assert sync().violations([batch(1, 0, (0,)), batch(2, 1, (0,))]) == ()
    assert len(sync().violations([batch(2, 1, (1,))])) == 2
    assert len(sync().violations([batch(2, 0, (0,))])) == 1


def test_another_schedule_is_another_composition() -> None:
    """Bounded at admission only (as AReaL) or by order (as Forge): no class changes for it."""

    class StartOnly(StalenessPolicy):
        def is_stale(self, version: int, start: int) -> bool:
            return False

    def first_come(ready: object, needed: int) -> None:
        return None

    areal = replace(rollart(2), name="areal", bound=StartOnly(2), selection=first_come)
    assert areal.bound.capacity(10) == 30
    assert not areal.bound.is_stale(9, 0)
    assert areal.selection is first_come


def test_a_group_is_admitted_while_a_credit_is_free() -> None:
    assert by_credits(AdmissionState(held=3, limit=4, next_position=9, oldest_position=2))
    assert not by_credits(AdmissionState(held=4, limit=4, next_position=9, oldest_position=2))


def test_the_oldest_groups_are_trained_on_first() -> None:
    ready = [ReadyGroup("c", 2, 0), ReadyGroup("a", 1, 1), ReadyGroup("b", 1, 2)]
    assert oldest_first(ready, 4) is None
    chosen = oldest_first(ready, 2)
    assert chosen is not None
    assert [group.group_id for group in chosen] == ["a", "b"]
