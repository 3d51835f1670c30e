"""Schedules are data: an order of phases and an invariant that can be checked."""

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.control.ids import group_name
from rollart_flow.control.schedule.declarations import Barrier, Devices, Overdue, Phase, StageSizes
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import (
    areal,
    flash,
    hybrid,
    named_schedule,
    one_off,
    rollart,
    staged,
    sync,
    sync_plus,
    window,
)
from rollart_flow.control.schedule.selection import (
    AdmissionState,
    ReadyGroup,
    by_credits,
    oldest_first,
)
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline.described import describe
from rollart_flow.types import Batch
from tests.builders import batch_of


def batch(step: int, served: int, staleness: tuple[int, ...], trained: int | None = None) -> Batch:
    names = (f"t{i}" for i in range(len(staleness)))
    fresh = batch_of(step, *names, size=1, served=served)
    trained_version = fresh.trained_version if trained is None else trained
    return replace(fresh, staleness=staleness, trained_version=trained_version)


def test_rollart_trains_while_the_engines_go_on() -> None:
    schedule = rollart(1)
    assert schedule.before_training == (Phase.SUSPEND, Phase.UPDATE, Phase.RESUME)
    assert schedule.after_training == ()


def test_sync_trains_while_the_engines_are_suspended() -> None:
    assert sync_plus().before_training == (Phase.SUSPEND,)
    assert sync_plus().after_training == (Phase.UPDATE, Phase.RESUME)


def test_rollart_without_asynchrony_is_sync_plus() -> None:
    assert rollart(0) == sync_plus()


def test_flash_exchanges_weights_between_training_and_the_next_batch() -> None:
    schedule = flash(1)
    assert schedule.before_training == ()
    assert schedule.after_training == (Phase.SUSPEND, Phase.UPDATE, Phase.RESUME)


def test_flash_wastes_no_sample_unless_it_is_told_to() -> None:
    assert flash(1).overdue is Overdue.AWAIT
    impatient = named_schedule("flash(1, patient=False)")
    assert impatient.overdue is Overdue.ABORT
    assert impatient.name == "flash(alpha=1, patient=False)"


def test_flash_without_asynchrony_is_sync_plus() -> None:
    assert flash(0) == sync_plus()


def test_flash_finds_what_breaks_the_bound_on_the_lag() -> None:
    schedule = flash(1)
    kept = [batch(1, 0, (0, 0)), batch(2, 1, (1, 0)), batch(3, 2, (1, 1))]
    assert schedule.violations(kept) == ()
    too_old = batch(4, 3, (0, 2))
    assert schedule.violations([*kept, too_old]) == ("step 4: trajectory t1-00 is 2 versions old",)
    formed_before_the_swap = batch(4, 2, (1, 0))
    assert schedule.violations([formed_before_the_swap]) == (
        "step 4: trajectory t0-00 is 2 versions old",
        "step 4: formed while version 2 was served, trained from version 3",
    )
    assert rollart(1).violations([formed_before_the_swap]) == ()


def test_a_negative_alpha_is_refused() -> None:
    with pytest.raises(SettingsError, match="alpha is -1"):
        rollart(-1)


SCHEDULES = [
    rollart(0.5), flash(1.5), sync(), one_off(), areal(2), window(4), staged(2, 4, 2), hybrid(),
    rollart(2).switched(queue_scheduling=False, prompt_replication=False),
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_a_schedule_crosses_processes(schedule: Schedule) -> None:
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_rollart_finds_what_breaks_its_promise() -> None:
    schedule = rollart(1)
    kept = [batch(1, 0, (0, 0)), batch(2, 0, (0, 0)), batch(3, 1, (1, 0)), batch(4, 3, (1, 1))]
    assert schedule.violations(kept) == ()
    too_old = batch(5, 3, (0, 2))
    assert schedule.violations([*kept, too_old]) == ("step 5: trajectory t1-00 is 2 versions old",)
    assert "version 1 was served" in schedule.violations([batch(5, 1, (0,))])[0]
    assert "trained from version 3" in schedule.violations([batch(5, 3, (0,), trained=3)])[0]


def test_sync_promises_that_all_is_on_policy() -> None:
    assert sync().violations([batch(1, 0, (0,)), batch(2, 1, (0,))]) == ()
    assert len(sync().violations([batch(2, 1, (1,))])) == 2
    assert len(sync().violations([batch(2, 0, (0,))])) == 1


def test_sync_is_sync_plus_in_lockstep() -> None:
    assert sync().barriers == {Barrier.TURNS, Barrier.ENDS}
    apart = replace(sync(), name="sync_plus", barriers=frozenset())
    assert apart == sync_plus()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_the_name_of_a_schedule_names_it(schedule: Schedule) -> None:
    assert named_schedule(schedule.name) == schedule


def test_switches_are_set_for_any_schedule_and_are_seen_in_its_name() -> None:
    off = sync_plus().switched(queue_scheduling=False)
    assert off == replace(sync_plus(), name=off.name, barriers=frozenset({Barrier.ENDS}))
    assert off.name == "sync_plus(queue_scheduling=False)"
    both = rollart(1).switched(queue_scheduling=False, prompt_replication=False)
    assert both.name == "rollart(alpha=1, queue_scheduling=False, prompt_replication=False)"
    assert off.switched(queue_scheduling=True).name == "sync_plus(queue_scheduling=True)"


def test_a_switch_that_is_set_already_changes_nothing() -> None:
    assert rollart(1).switched(queue_scheduling=True) == rollart(1)
    assert sync().switched(queue_scheduling=False) == sync()


def test_staged_is_rollart_in_stages() -> None:
    schedule = staged(2, 4, 3, alpha=2)
    assert schedule == replace(rollart(2), name=schedule.name, stages=StageSizes(2, 4, 3))
    assert schedule.name == "staged(init=2, run=4, reward=3, alpha=2)"


def test_hybrid_is_sync_plus_on_shared_devices_and_promises_the_same() -> None:
    assert hybrid() == replace(sync_plus(), name="hybrid", devices=Devices.SHARED)
    assert hybrid().violations([batch(1, 0, (0,)), batch(2, 1, (0,))]) == ()
    assert len(hybrid().violations([batch(2, 1, (1,))])) == 2


def test_lockstep_and_stages_exclude_each_other() -> None:
    with pytest.raises(SettingsError, match="schedule sync is in lockstep, so it can have no"):
        replace(sync(), stages=StageSizes(1, 1, 1))


def test_areal_bounds_what_starts_and_nothing_else() -> None:
    bound = areal(2).bound
    assert bound.capacity(10) == 30
    assert not bound.is_stale(9, 0)
    ready = [ReadyGroup("a", 5, 1), ReadyGroup("b", 0, 2), ReadyGroup("c", 9, 0)]
    chosen = areal(2).selection(ready, 2)
    assert chosen is not None
    assert [group.group_id for group in chosen] == ["c", "a"]
    assert areal(2).selection(ready, 4) is None


def test_a_window_admits_within_its_width_and_finds_who_was_overtaken() -> None:
    schedule = window(3)
    free = AdmissionState(held=1, limit=9, next_position=5, oldest_position=2)
    assert schedule.admission(free)
    assert not schedule.admission(replace(free, next_position=6))
    assert not schedule.admission(replace(free, held=9))
    kept = [in_order(1, 3), in_order(2, 0)]
    assert schedule.violations(kept) == ()
    overtaken = [in_order(2, 1), in_order(1, 5)]
    assert schedule.violations(overtaken) == ("step 2: group g00000001 was overtaken by 4",)


def in_order(step: int, cursor: int) -> Batch:
    """A batch of the one group that was admitted at a cursor."""
    group = group_name(cursor)
    return replace(batch(step, step - 1, (0,)), group_ids=(group,))


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("one_off", one_off()),
        (" areal ", areal(1)),
        ("rollart(0.5)", rollart(0.5)),
        ("flash(2)", flash(2)),
        ("window(8, alpha=2)", window(8, 2)),
        ("sync_plus()", sync_plus()),
        ("staged(2, 4, reward=3)", staged(2, 4, 3)),
        ("hybrid", hybrid()),
        ("areal(2, prompt_replication=False)", areal(2).switched(prompt_replication=False)),
    ],
)
def test_a_schedule_is_named_by_text(text: str, schedule: Schedule) -> None:
    assert named_schedule(text) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("often", "schedule='often': expected one of areal, flash, hybrid, one_off, "),
        ("areal2", "(did you mean areal?)"),
        ("sync_plus(overlapped=True)", "suspends the rollout while it trains, so that weights"),
        ("flash(overlapped=True)", "forms a batch once the engines hold the weights that it"),
        ("flash(-1)", "alpha is -1"),
        ("sync_plus(queue_scheduling=0)", "queue_scheduling is 0, but must be True or False"),
        ("hybrid(prompt_replication='no')", "prompt_replication is 'no', but must be True or"),
        ("sync(turns=False)", "got an unexpected keyword argument 'turns'"),
        ("staged(2, 4)", "missing 1 required positional argument: 'reward'"),
        ("staged(2, 0, 2)", "stage run has 0 places, but must have a whole number of at least 1"),
        ("staged(True, 1, 2)", "stage init has True places"),
        ("staged(1, 1, 1, alpha=-1)", "alpha is -1"),
        ("window", "missing 1 required positional argument: 'width'"),
        ("window(0)", "window width is 0"),
        ("areal(-1)", "alpha is -1"),
        ("areal('x')", "alpha is 'x'"),
        ("areal(__import__('os'))", "is no name like one_off"),
        ("1 + 1", "is no name like one_off"),
        ("a b", "is no name like one_off"),
        ("", "is no name like one_off"),
    ],
)
def test_a_text_that_names_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        named_schedule(text)


def test_an_installed_package_adds_a_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from dataclasses import replace\n"
        "from rollart_flow.control.schedule.schedules import areal\n"
        "def patient_areal(alpha=1):\n"
        "    return areal(alpha).switched(patient=True)\n"
        "def odd():\n"
        "    return 'a text'\n"
    )
    (tmp_path / "own_schedules.py").write_text(source)
    info = tmp_path / "own_schedules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-schedules\nVersion: 1.0\n")
    points = "patient_areal = own_schedules:patient_areal\nodd = own_schedules:odd\n"
    (info / "entry_points.txt").write_text(f"[rollart_flow.schedules]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    schedule = named_schedule("patient_areal(alpha=2, prompt_replication=False)")
    assert (schedule.bound, schedule.overdue) == (areal(2).bound, Overdue.AWAIT)
    with pytest.raises(SettingsError, match="schedule 'odd': the function gives a str, not a Sch"):
        named_schedule("odd")


def test_run_json_describes_a_schedule_as_in_all_versions() -> None:
    described = describe(sync().switched(prompt_replication=False))
    assert list(described) == [
        "type", "name", "order", "bound", "checks", "admission", "selection", "order_checks",
        "lockstep", "overlapped", "patient", "reset_ahead", "queue_scheduling",
        "prompt_replication", "stages",
        "shared",
    ]  # fmt: skip
    assert described["order"] == ["get_batch", "suspend", "train", "update", "resume"]
    assert [described[name] for name in ("lockstep", "overlapped", "patient", "shared")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert not described["queue_scheduling"]
    assert not described["prompt_replication"]


def test_a_group_is_admitted_while_a_credit_is_free() -> None:
    assert by_credits(AdmissionState(held=3, limit=4, next_position=9, oldest_position=2))
    assert not by_credits(AdmissionState(held=4, limit=4, next_position=9, oldest_position=2))


def test_the_oldest_groups_are_trained_on_first() -> None:
    ready = [ReadyGroup("c", 2, 0), ReadyGroup("a", 1, 1), ReadyGroup("b", 1, 2)]
    assert oldest_first(ready, 4) is None
    chosen = oldest_first(ready, 2)
    assert chosen is not None
    assert [group.group_id for group in chosen] == ["a", "b"]
