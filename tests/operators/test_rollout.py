"""Blocks of attempts, each of which goes its own way, and micro-batches of trajectories.

Time is virtual. In place of the driver and the buffer stand parts that take time, since the real
ones need the processes of a run; `tests/runner` shows the operator with them.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from rollart_flow.errors import StoreError
from rollart_flow.operators.reward import RewardSettings
from rollart_flow.operators.rollout import Driver, RolloutContext, RolloutOperator
from rollart_flow.operators.sink import BUSY_WAIT_S, ROWS, WAIT_S, BufferSink
from rollart_flow.operators.sources import write_assignments
from rollart_flow.rewards.base import environment_reward
from rollart_flow.rows import from_ipc
from rollart_flow.simulation import run
from rollart_flow.types import Assignment, Sampling, Split, Task, Trajectory
from tests.builders import trajectory

HOUR = 3600.0
COMMIT_S = 0.05


class Buffer:
    """Notes which trajectories arrive together and when, and takes `commit_s` for a commit."""

    def __init__(self, commit_s: float = COMMIT_S) -> None:
        self.commit_s = commit_s
        self.arrived: list[tuple[float, int]] = []
        self.times: dict[str, float] = {}
        self.error: StoreError | None = None
        self.call = self.put = self

    async def start(self, data: bytes, beside: Mapping[str, bytes] | None = None) -> None:
        now = asyncio.get_running_loop().time()
        names = from_ipc(data)["trajectory_id"].to_pylist()
        self.arrived.append((now, len(names)))
        self.times |= dict.fromkeys(names, now)
        await asyncio.sleep(self.commit_s)
        if self.error is not None:
            raise self.error


class Episodes:
    """A driver whose attempts take as long as their task's payload says [s]."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.expected: list[str] = []
        self.released: list[str] = []

    async def ready(self) -> None:
        """Nothing has to start."""

    def expect(self, assignment: Assignment) -> "Boxes":
        self.expected.append(assignment.trajectory_id)
        return Boxes(self, assignment.trajectory_id)

    def manager(self, assignment: Assignment) -> Assignment:
        return assignment

    async def run(self, assignment: Assignment) -> tuple[Trajectory, ...]:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(float(assignment.task.payload))
        self.running -= 1
        return (trajectory(assignment.group_id, assignment.attempt),)


class Boxes:
    """What an attempt is expected to open; note when it is released."""

    def __init__(self, episodes: Episodes, name: str) -> None:
        self.episodes, self.name = episodes, name

    def release(self) -> None:
        self.episodes.released.append(self.name)


def block(*seconds: float, group: str = "g") -> Any:
    return write_assignments(
        [
            Assignment(
                trajectory_id=f"{group}-{attempt:02d}",
                group_id=group,
                task=Task("t", "d", str(each)),
                attempt=attempt,
                env_seed=0,
                sampling=Sampling(),
                split=Split.TRAIN,
            )
            for attempt, each in enumerate(seconds)
        ]
    )


def operator(buffer: Buffer, episodes: Episodes, most: int | None = None) -> RolloutOperator:
    context = cast(RolloutContext, type("Context", (), {"buffer": buffer, "writers": ()})())
    made = RolloutOperator(context, RewardSettings(environment_reward, 60.0, 64), most)
    made._driver = cast(Driver, episodes)
    return made


def test_a_slow_attempt_delays_no_other_one_of_its_block() -> None:
    buffer, ends = Buffer(), {}

    async def test() -> None:
        rollout = operator(buffer, Episodes())
        slow = asyncio.create_task(rollout(block(1.0, HOUR, 2.0)))
        await rollout(block(3.0, group="h"))
        ends["h"] = asyncio.get_running_loop().time()
        assert not slow.done()
        assert (await slow)["trajectory_id"].to_pylist() == ["g-00", "g-01", "g-02"]

    run(test())
    assert buffer.times["g-00"] == pytest.approx(1.0 + WAIT_S)
    assert buffer.times["g-02"] == pytest.approx(2.0 + WAIT_S)
    assert buffer.times["g-01"] == pytest.approx(HOUR), "nothing else is under way"
    assert ends["h"] == pytest.approx(3.0 + WAIT_S + COMMIT_S)


def test_trajectories_that_end_together_leave_together() -> None:
    buffer = Buffer()

    async def test() -> None:
        rollout = operator(buffer, Episodes())
        blocks = [rollout(block(*[1.0] * 40, group=group)) for group in ("a", "b")]
        await asyncio.gather(*blocks, rollout(block(1.001, 9.0, group="c")))

    run(test())
    assert [rows for _, rows in buffer.arrived] == [ROWS, 2 * 40 - ROWS + 1, 1]
    times = [time for time, _ in buffer.arrived]
    assert times == pytest.approx([1.0, 1.0 + BUSY_WAIT_S, 9.0])


def test_a_micro_batch_waits_longer_while_another_is_under_way_and_on_while_two_are() -> None:
    buffer = Buffer(commit_s=1.0)

    async def test() -> None:
        await operator(buffer, Episodes())(block(1.0, 1.02, 1.06, 1.99, HOUR))

    run(test())
    first = 1.0 + WAIT_S
    times = [first, 1.02 + BUSY_WAIT_S, first + 1.0, HOUR]
    assert [time for time, _ in buffer.arrived] == pytest.approx(times)
    assert [rows for _, rows in buffer.arrived] == [1, 1, 2, 1]


def test_a_lone_trajectory_leaves_at_once() -> None:
    buffer = Buffer()
    run(operator(buffer, Episodes())(block(1.0)))
    assert buffer.arrived == [(1.0, 1)]


def test_no_more_attempts_run_at_a_time_than_there_are_places() -> None:
    buffer, episodes = Buffer(), Episodes()
    run(operator(buffer, episodes, most=3)(block(*[1.0] * 8)))
    assert episodes.most == 3
    assert [time for time, _ in buffer.arrived] == pytest.approx([1.01, 2.01, 3.0])


def test_a_block_is_done_when_its_rows_are_durable_and_fails_if_they_are_not() -> None:
    buffer, ended = Buffer(), []

    async def test() -> None:
        rollout = operator(buffer, Episodes())
        await rollout(block(1.0))
        ended.append(asyncio.get_running_loop().time())
        buffer.error = StoreError("the disk is full")
        with pytest.raises(StoreError, match="the disk is full"):
            await rollout(block(1.0, 1.0))

    run(test())
    assert ended == [pytest.approx(1.0 + COMMIT_S)]


def test_a_caller_that_stops_to_wait_holds_nothing_back() -> None:
    buffer = Buffer()

    async def test() -> None:
        sink = BufferSink(cast(Any, buffer))
        first, second = sink.put((trajectory("g", 0),)), sink.put((trajectory("g", 1),))
        first.cancel()
        await second

    run(test())
    ((time, rows),) = buffer.arrived
    assert time == pytest.approx(WAIT_S)
    assert rows == 2


def test_an_end_of_the_process_sends_nothing_anew() -> None:
    """A loop that closes cancels its tasks once: what begins then is destroyed as it runs."""
    buffer = Buffer(HOUR)

    async def test() -> None:
        sink = BufferSink(cast(Any, buffer))
        sink.put((trajectory("g", 0),))
        sink.flush()
        sink.put((trajectory("g", 1),))
        await asyncio.sleep((WAIT_S + BUSY_WAIT_S) / 2)
        (send,) = asyncio.all_tasks() - {asyncio.current_task()}
        send.cancel()
        await asyncio.wait([send])
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test())
    assert [rows for _, rows in buffer.arrived] == [1]


def test_boxes_are_made_for_attempts_that_wait_for_their_place_and_end_with_them() -> None:
    episodes = Episodes()

    async def test() -> None:
        block_of_three = asyncio.create_task(operator(Buffer(), episodes, most=1)(block(1, 1, 1)))
        await asyncio.sleep(0.5)
        assert episodes.running == 1
        assert len(episodes.expected) == 3
        assert not episodes.released
        await asyncio.sleep(1.0)
        assert episodes.released == ["g-00"]
        block_of_three.cancel()
        await asyncio.gather(block_of_three, return_exceptions=True)
        assert sorted(episodes.released) == ["g-00", "g-01", "g-02"]

    run(test())
