"""A replica of a reward application: which answers travel together, and when."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from rollart_flow.serverless.contract import Answer, decode, encode_call
from rollart_flow.serverless.replica import RewardReplica
from rollart_flow.serverless.scaling import CALLS
from rollart_flow.serverless.transports.coalesced import GATHER_S, Answers
from rollart_flow.simulation import run
from rollart_flow.types import Trajectory
from tests.builders import TRAJECTORY

PLACES = 4


async def slow(trajectory: Trajectory) -> float:
    """A reward of the seconds that it takes."""
    seconds = float(trajectory.trajectory_id)
    await asyncio.sleep(seconds)
    return seconds


def call(seconds: float) -> bytes:
    """A call that takes so long."""
    return encode_call(replace(TRAJECTORY, trajectory_id=str(seconds)), 3600.0)[1]


async def items(answers: AsyncIterator[Answers]) -> list[tuple[float, list[float | None]]]:
    """When each item came, and its rewards."""
    found = []
    loop = asyncio.get_running_loop()
    async for places, some in answers:
        assert places == PLACES
        rewards = [Answer.from_json(decode(body)).reward for _, body in some]
        found.append((round(loop.time(), 6), sorted(rewards, key=str)))
    return found


def test_answers_of_one_moment_are_one_item_and_wait_for_no_slow_one() -> None:
    replica = RewardReplica(slow, PLACES)
    calls = [call(1.0), call(1.0 + GATHER_S / 2), call(3.0)]
    assert run(items(replica.answers(calls))) == [
        (1.0 + GATHER_S, [1.0, 1.0 + GATHER_S / 2]),
        (3.0, [3.0]),
    ]


def test_the_last_answer_waits_for_nothing() -> None:
    replica = RewardReplica(slow, PLACES)
    assert run(items(replica.answers([call(1.0)]))) == [(1.0, [1.0])]


def test_calls_are_counted_until_they_are_answered_or_given_up() -> None:
    async def test() -> None:
        replica = RewardReplica(slow, PLACES)
        first = replica.answers([call(1.0), call(3600.0)])
        await anext(first)
        assert replica.record_autoscaling_stats() == {CALLS: 1}
        await first.aclose()
        assert replica.record_autoscaling_stats() == {CALLS: 0}

    run(test())
