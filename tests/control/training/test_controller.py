"""AsyncController: the phases of a step in their order, once in effect."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.loop.waits import Signal
from rollart_flow.control.protocols import Change, PullStats
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import flash, one_off, rollart, sync
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.training.controller import AsyncController
from rollart_flow.control.training.progress import PhaseSeconds
from rollart_flow.errors import BlockOverError, RunFailedError
from rollart_flow.types import Batch, EventKind
from tests.builders import batch_of
from tests.dst.log import EventLog


class Stage:
    """Buffer, engines and scheduler that write down what is asked of them, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.slides: list[str] = []
        self.prefetched: list[int] = []
        self.ready = asyncio.Event()
        self.ready.set()
        self.broken: str | None = None
        self.known: Batch | None = None
        self._failure: RunFailedError | None = None
        self._failed = Signal()

    async def _take(self, name: str, seconds: float) -> None:
        if name == self.broken:
            self.broken = None
            await asyncio.Event().wait()
        await asyncio.sleep(seconds)
        self.calls.append(name)

    async def settled(self, version: int) -> None:
        await self._take(f"settled({version})", 8)

    async def formed(self, step: int) -> Batch | None:
        return self.known

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        await self.ready.wait()
        await self._take(f"get_batch({step}, {version})", 4)
        return batch_of(step, f"g{step}", size=size, served=version)

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        raise NotImplementedError

    async def suspend(self) -> None:
        await self._take("suspend", 1)

    def prefetch(self, version: int) -> None:
        self.prefetched.append(version)

    async def update(self, version: int) -> PullStats:
        await self._take(f"update({version})", 2)
        return PullStats(pull_s=7, exposed_s=0.5)

    async def resume(self) -> None:
        await self._take("resume", 3)

    async def to_training(self) -> None:
        self.slides.append("training")

    async def to_rollout(self) -> None:
        self.slides.append("rollout")

    def batch_ready(self) -> bool:
        return self.ready.is_set()

    def batch_taken(self, batch: Batch) -> None:
        self.calls.append(f"taken({batch.step})")

    def version_updated(self, version: int) -> None:
        self.calls.append(f"scheduler hears {version}")

    def stop(self) -> None:
        self.calls.append("stop")

    async def failed(self) -> RunFailedError:
        while self._failure is None:
            await self._failed.wait()
        return self._failure

    def fail(self, message: str) -> None:
        self._failure = RunFailedError(message)
        self._failed.notify()

    def said(self) -> list[str]:
        """What was asked since this was called last."""
        calls, self.calls = self.calls, []
        return calls


def controller(
    stage: Stage,
    schedule: Schedule,
    *,
    steps: int = 3,
    first_step: int = 1,
    served: int = 0,
    pending: Batch | None = None,
    published: int | None = None,
    suspended: bool = False,
    log: EventLog | None = None,
) -> AsyncController:
    return AsyncController(
        stage,
        cast("EngineGroup", stage),
        cast("RolloutScheduler", stage),
        schedule,
        log or EventLog(),
        batch_size=2,
        steps=steps,
        first_step=first_step,
        served=served,
        pending=pending,
        published=published,
        suspended=suspended,
    )


async def test_the_six_steps_of_rollart() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    for step, served in [(1, 0), (2, 0)]:
        batch = await control.next_batch(step)
        assert batch is not None
        assert stage.said() == [
            f"get_batch({step}, {served})",
            "suspend",
            f"taken({step})",
            f"update({step - 1})",
            f"scheduler hears {step - 1}",
            "resume",
        ]
        assert control.served == step - 1
        await control.trained(step)
        assert stage.said() == []


async def test_a_version_is_read_ahead_as_soon_as_it_is_trained() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    for step in (1, 2, 3):
        await control.next_batch(step)
        assert stage.prefetched == list(range(1, step)), "it is complete before it is announced"
        await control.trained(step)
        await control.trained(step)
    assert stage.prefetched == [1, 2], "the last one is not swapped to"
    synchronous = Stage()
    control = controller(synchronous, sync())
    await control.next_batch(1)
    await control.trained(1)
    assert synchronous.prefetched == [], "there is no rollout to hide it"


async def test_a_version_is_read_ahead_while_it_is_published() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    await control.next_batch(1)
    control.publishing(1)
    control.publishing(1)
    assert stage.prefetched == [1]
    await control.trained(1, None)
    assert stage.prefetched == [1], "it may still fail"
    control.published(1, 9.0)
    assert stage.prefetched == [1, 1], "in case that it did"
    synchronous = Stage()
    control = controller(synchronous, sync())
    await control.next_batch(1)
    control.publishing(1)
    assert synchronous.prefetched == [1], "the push is what hides it"


async def test_a_version_is_not_read_ahead_of_the_swap_to_the_one_before_it() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    await control.next_batch(1)
    control.publishing(1)
    await control.trained(1, None)
    await control.next_batch(2)
    control.publishing(2)
    assert stage.prefetched == [1], "which the engines hold ahead"
    control.published(1, 9.0)
    await control.trained(2, None)
    assert stage.prefetched == [1, 1, 2]


async def test_weights_are_exchanged_beside_training() -> None:
    stage = Stage()
    control = controller(stage, rollart(1).switched(overlapped=True))
    assert await control.next_batch(1) is not None
    assert stage.said() == ["get_batch(1, 0)"]
    await control.trained(1)
    exchanged = ["suspend", "taken(1)", "update(0)", "scheduler hears 0", "resume"]
    assert stage.said() == exchanged
    assert await control.next_batch(2) is not None
    await asyncio.sleep(100)
    assert control.served == 1
    assert stage.said()[:2] == ["get_batch(2, 0)", "suspend"]
    assert control.phases(2).update_s == 2


async def test_a_version_that_is_still_being_published_holds_no_batch_up() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    await control.next_batch(1)
    await control.trained(1, None)
    stage.said()
    assert await control.next_batch(2) is not None
    await asyncio.sleep(1_000)
    assert stage.said() == ["get_batch(2, 0)"], "nothing is suspended for what cannot be read"
    assert control.served == 0
    assert stage.prefetched == []
    control.published(1, 9.0)
    assert stage.prefetched == [1]
    await control.trained(2)
    exchanged = ["suspend", "taken(2)", "update(1)", "scheduler hears 1", "resume"]
    assert stage.said() == exchanged
    assert control.phases(2) == PhaseSeconds(4, 1, 2, 3, pull_s=7, exposed_pull_s=0.5, push_s=9.0)
    assert await control.next_batch(3) is not None
    assert stage.said()[2:4] == ["suspend", "taken(3)"], "weights before training, again"


@pytest.mark.parametrize(
    "schedule",
    [rollart(1), rollart(1).switched(overlapped=True)],
    ids=lambda schedule: schedule.name,
)
async def test_the_next_step_is_not_over_before_the_version_before_it_is_served(
    schedule: Schedule,
) -> None:
    stage = Stage()
    control = controller(stage, schedule)
    await control.next_batch(1)
    await control.trained(1, None)
    await control.next_batch(2)
    over = asyncio.create_task(control.trained(2, None))
    await asyncio.sleep(1_000)
    assert not over.done()
    control.published(1, 9.0)
    await over
    assert control.served == 1


async def test_a_restarted_controller_hears_from_the_trainer_what_is_published() -> None:
    stage = Stage()
    control = controller(stage, rollart(1), first_step=3, published=1, served=1)
    assert await control.next_batch(3) is not None, "a restarted source asks for it again"
    await control.exchanged(3)
    assert control.served == 2
    assert stage.said()[-2:] == ["scheduler hears 2", "resume"]


async def test_a_version_that_was_read_before_its_step_is_recorded_is_announced_once() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    await control.next_batch(1)
    control.published(1, 9.0)
    assert stage.prefetched == []
    await control.trained(1, None)
    control.published(1, 11.0)
    assert stage.prefetched == [1]
    assert control.phases(2).push_s == 9.0


async def test_without_staleness_the_rollout_waits_for_what_is_being_published() -> None:
    stage = Stage()
    control = controller(stage, sync())
    await control.next_batch(1)
    stage.said()
    over = asyncio.create_task(control.trained(1, None))
    await asyncio.sleep(1_000)
    assert stage.said() == []
    control.published(1, 9.0)
    await over
    assert stage.said() == ["update(1)", "scheduler hears 1", "resume"]


async def test_engines_that_a_restart_found_two_behind_catch_up_before_the_next_batch() -> None:
    """The earlier controller had yet to swap to a version that was being published."""
    stage = Stage()
    control = controller(stage, rollart(1), steps=9, first_step=5, served=2)
    await control.next_batch(5)
    assert stage.said()[:5] == [
        "suspend",
        "update(3)",
        "scheduler hears 3",
        "resume",
        "get_batch(5, 3)",
    ]


async def test_engines_that_an_earlier_controller_left_suspended_are_resumed() -> None:
    """The earlier one died after the update of step 4, and step 4 was recorded meanwhile."""
    stage = Stage()
    control = controller(stage, one_off(), steps=9, first_step=5, served=3, suspended=True)
    await control.next_batch(5)
    assert stage.said()[:5] == [
        "suspend",
        "update(3)",
        "scheduler hears 3",
        "resume",
        "get_batch(5, 3)",
    ]


async def test_an_exchange_that_was_interrupted_is_made_again() -> None:
    stage = Stage()
    control = controller(stage, rollart(1).switched(overlapped=True))
    await control.next_batch(1)
    stage.broken = "update(0)"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await control.trained(1)
    await control.close()
    stage.said()
    await control.trained(1)
    assert stage.said()[:3] == ["suspend", "taken(1)", "update(0)"]


async def test_an_exchange_that_a_restart_cut_off_is_made_before_the_next_batch() -> None:
    stage = Stage()
    schedule = rollart(1).switched(overlapped=True)
    control = controller(stage, schedule, first_step=2, served=0)
    await control.next_batch(2)
    assert stage.said() == [
        "suspend",
        "update(0)",
        "scheduler hears 0",
        "resume",
        "get_batch(2, 0)",
    ]


async def test_a_patient_schedule_waits_for_what_would_be_too_old() -> None:
    stage = Stage()
    control = controller(stage, rollart(1).switched(patient=True))
    await control.next_batch(1)
    assert stage.said()[:2] == ["settled(1)", "get_batch(1, 0)"]
    assert control.phases(1).wait_s == 12


async def test_flash_swaps_to_what_was_trained_before_the_next_batch_is_formed() -> None:
    stage = Stage()
    control = controller(stage, flash(1))
    await control.next_batch(1)
    assert stage.said() == ["settled(1)", "get_batch(1, 0)"], (
        "rollout goes on, and the batch keeps its credits"
    )
    await control.trained(1)
    assert stage.said() == ["suspend", "taken(1)", "update(1)", "scheduler hears 1", "resume"]
    await control.next_batch(2)
    assert stage.said() == ["settled(2)", "get_batch(2, 1)"]


async def test_flash_forms_no_batch_before_the_version_that_it_trains_can_be_read() -> None:
    stage = Stage()
    control = controller(stage, flash(1))
    await control.next_batch(1)
    stage.said()
    ending = asyncio.ensure_future(control.trained(1, None))
    following = asyncio.ensure_future(control.next_batch(2))
    await asyncio.sleep(1_000)
    assert stage.said() == []
    control.published(1, 9.0)
    await ending
    assert (await following) is not None
    assert stage.said()[-3:] == ["resume", "settled(2)", "get_batch(2, 1)"]


async def test_after_a_restart_flash_swaps_to_the_recorded_version_first() -> None:
    stage = Stage()
    control = controller(stage, flash(1), steps=9, first_step=5, served=3)
    await control.next_batch(5)
    assert stage.said() == [
        "suspend", "update(4)", "scheduler hears 4", "resume", "settled(5)", "get_batch(5, 4)",
    ]  # fmt: skip


async def test_sync_updates_after_training_and_before_resuming() -> None:
    stage = Stage()
    control = controller(stage, sync())
    await control.next_batch(1)
    assert stage.said() == ["get_batch(1, 0)", "suspend", "taken(1)"]
    await control.trained(1)
    assert stage.said() == ["update(1)", "scheduler hears 1", "resume"]
    await control.next_batch(2)
    assert stage.said()[0] == "get_batch(2, 1)"


async def test_at_most_one_batch_is_outstanding() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    await control.next_batch(1)
    stage.said()
    second = asyncio.create_task(control.next_batch(2))
    await asyncio.sleep(1_000)
    assert stage.said() == []
    await control.trained(1)
    batch = await second
    assert batch is not None
    assert batch.step == 2


async def test_after_the_last_step_there_is_nothing_and_rollout_stops_as_soon_as_it_can() -> None:
    stage = Stage()
    control = controller(stage, rollart(1), steps=1)
    await control.next_batch(1)
    assert stage.said()[:2] == ["get_batch(1, 0)", "stop"]
    assert await control.next_batch(2) is None
    await control.trained(1)
    assert await control.next_batch(2) is None


async def test_what_is_asked_again_is_done_once() -> None:
    stage = Stage()
    control = controller(stage, sync())
    one, two = await asyncio.gather(control.next_batch(1), control.next_batch(1))
    assert one is two
    assert stage.said().count("suspend") == 1
    await asyncio.gather(control.trained(1), control.trained(1))
    assert stage.said().count("update(1)") == 1
    await control.trained(1)
    assert stage.said() == []


@pytest.mark.parametrize("broken", ["get_batch(1, 0)", "suspend", "update(0)", "resume"])
async def test_a_step_that_was_interrupted_is_prepared_again(broken: str) -> None:
    stage = Stage()
    stage.broken = broken
    control = controller(stage, rollart(1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await control.next_batch(1)
    stage.said()
    assert await control.next_batch(1) is not None
    assert stage.said()[-2:] == ["scheduler hears 0", "resume"]


async def test_an_update_that_was_interrupted_after_training_is_made_again() -> None:
    stage = Stage()
    control = controller(stage, sync())
    await control.next_batch(1)
    stage.broken = "resume"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await control.trained(1)
    stage.said()
    await control.trained(1)
    assert stage.said() == ["update(1)", "scheduler hears 1", "resume"]


async def test_seconds_of_the_phases() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    stage.ready.clear()
    asyncio.get_running_loop().call_later(10, stage.ready.set)
    await control.next_batch(1)
    pulls = {"pull_s": 7, "exposed_pull_s": 0.5}
    expected = PhaseSeconds(wait_s=14, suspend_s=1, update_s=2, resume_s=3, **pulls)
    assert control.phases(1) == expected
    assert await control.trained(1) == expected
    synchronous = controller(Stage(), sync())
    await synchronous.next_batch(1)
    assert await synchronous.trained(1) == PhaseSeconds(4, 1, 2, 3, **pulls)


async def test_seconds_of_long_gone_steps_are_forgotten() -> None:
    control = controller(Stage(), rollart(1), steps=10)
    for step in range(1, 6):
        await control.next_batch(step)
        await control.trained(step)
    assert control.phases(5).wait_s == 4
    assert control.phases(1) == PhaseSeconds()


async def test_each_phase_is_an_event_with_its_duration() -> None:
    log = EventLog()
    control = controller(Stage(), rollart(1), log=log)
    await control.next_batch(1)
    assert [(e.kind, e.step, e.policy_version, e.detail["seconds"]) for e in log.events] == [
        (EventKind.SUSPEND, 1, 0, 1),
        (EventKind.UPDATE, 1, 0, 2),
        (EventKind.RESUME, 1, 0, 3),
    ]


async def test_a_run_that_cannot_go_on_ends_the_wait_for_a_batch() -> None:
    stage = Stage()
    stage.ready.clear()
    control = controller(stage, rollart(1))
    waiting = asyncio.create_task(control.next_batch(1))
    await asyncio.sleep(10)
    stage.fail("domain 'a': 32 attempts in a row failed")
    with pytest.raises(RunFailedError, match="32 attempts in a row failed"):
        await waiting
    assert len(asyncio.all_tasks()) == 1


async def test_a_batch_that_only_the_buffer_knows_after_restarts_may_be_trained() -> None:
    stage = Stage()
    control = controller(stage, rollart(1), steps=9, first_step=5, served=3)
    with pytest.raises(RunFailedError, match="step 5 has no batch"):
        await control.trained(5)
    stage.known = batch_of(5, "g5", served=3)
    await control.trained(5)
    assert "taken(5)" in stage.said()


async def test_after_a_restart_the_batch_that_was_formed_is_served_first() -> None:
    stage = Stage()
    pending = batch_of(5, "g5", served=3)
    control = controller(stage, rollart(1), steps=9, first_step=5, served=4, pending=pending)
    assert await control.next_batch(5) is pending
    assert stage.said() == [
        "suspend",
        "taken(5)",
        "update(4)",
        "scheduler hears 4",
        "resume",
    ]
    await control.trained(5)
    await control.next_batch(6)
    assert stage.said()[0] == "get_batch(6, 4)"


async def test_after_a_restart_the_step_before_is_finished_first() -> None:
    """The earlier controller may have died between the training of step 4 and the resume."""
    stage = Stage()
    control = controller(stage, sync(), steps=9, first_step=5, served=3)
    await control.next_batch(5)
    assert stage.said() == [
        "suspend",
        "update(4)",
        "scheduler hears 4",
        "resume",
        "get_batch(5, 4)",
        "suspend",
        "taken(5)",
    ]


@pytest.mark.parametrize("schedule", [rollart(1), sync()], ids=lambda s: s.name)
async def test_training_that_outlived_the_controller_is_reported_to_the_next(
    schedule: Schedule,
) -> None:
    stage = Stage()
    pending = batch_of(5, "g5", served=3)
    control = controller(stage, schedule, steps=9, first_step=5, served=4, pending=pending)
    await control.trained(5)
    said = stage.said()
    assert "get_batch(5, 4)" not in said
    assert said[-1] == "resume"
    await control.next_batch(6)
    assert f"get_batch(6, {5 if schedule == sync() else 4})" in stage.said()


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (
            lambda control: control.next_batch(4),
            BlockOverError,
            "step 4 is over; the next one is 5",
        ),
        (lambda control: control.trained(5), RunFailedError, "step 5 has no batch"),
    ],
)
async def test_steps_out_of_turn_are_refused(
    ask: Callable[[AsyncController], object], error: type[Exception], message: str
) -> None:
    control = controller(Stage(), rollart(1), steps=9, first_step=5)
    with pytest.raises(error, match=message):
        await ask(control)  # type: ignore[misc]


async def test_devices_slide_to_rollout_while_no_batch_waits_and_to_training_with_it() -> None:
    stage = Stage()
    control = controller(stage, rollart(1))
    await control.next_batch(1)
    assert stage.slides == ["training"], "a batch was there"
    await control.trained(1)
    stage.ready.clear()
    asking = asyncio.create_task(control.next_batch(2))
    await asyncio.sleep(100)
    assert stage.slides == ["training", "rollout"]
    stage.ready.set()
    await asking
    assert stage.slides == ["training", "rollout", "training"]
