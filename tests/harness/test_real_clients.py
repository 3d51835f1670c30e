"""Unchanged programs complete tasks through the real gateway, and every call finds its parent.

`rollart agents install all` installs them; what is not installed is skipped.
"""

import asyncio
from pathlib import Path

import pytest

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.types import Reason
from tests.gateway.core.rig import Script
from tests.harness.clients import (
    HangUp,
    delivered,
    dialect,
    gateway,
    played,
    with_last_chunk,
    withheld,
    workplace,
)
from tests.harness.playing import FORGETS, KNOWN, installed, report, rows_of, until
from tests.harness.policies import UpdatedEngine

pytestmark = pytest.mark.whole
HELD_S = 4.0
"""Time for which an answer is held, which is longer than a heartbeat."""
REPEATS = {"smolagents"}
"""Programs whose new process asks again, letter by letter, for the answer that was lost."""


@pytest.mark.parametrize("name", installed())
def test_a_program_completes_a_task_as_one_trajectory(name: str, tmp_path: Path) -> None:
    """Parallel calls, a tool that fails and a call without arguments are on the way."""
    place = workplace(name, tmp_path)
    code, rows = asyncio.run(played(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").read_text() == "seven\n", place.output[-2000:]
    assert len(calls) == 5, line
    assert [each.parent for each in calls] == FORGETS.get(name, [None, 0, 1, 2, 3]), line
    assert all(each.evidence in KNOWN for each in calls[1:]), line
    assert {each.kind for each in calls} == {CallKind.MAIN}, line
    assert (len(rows), delivered(rows)) == (1 + (name in FORGETS), 1.0), line
    assert not any(each.mismatches or each.refusal for each in calls), line


@pytest.mark.parametrize("name", installed())
def test_a_program_tries_again_after_a_failure_and_a_hang_up(name: str, tmp_path: Path) -> None:
    """The engine fails at the second call; the answer to the third one is lost on its way.

    Each program sends the same body again then, few of them with a mark; all get the same answer.
    """
    task = dialect(name, str(tmp_path / "work"))
    fails = Script("It breaks here.", fails_after=3)
    place = workplace(name, tmp_path, task.both, fails, task.writes, task.ends)

    async def run() -> int:
        async with gateway(place) as (_, url, key), HangUp(url, 3) as way:
            running = asyncio.ensure_future(place.run(way, key))
            await until(lambda: any(c.refusal for c in place.rig.exchanges) or running.done())
            place.rig.proxy.add(place.rig.engine)  # as one that was started again
            return await running

    code = asyncio.run(run())
    rows = asyncio.run(rows_of(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").read_text() == "seven\n", place.output[-2000:]
    failed = [each for each in calls if each.refusal]
    assert len(failed) == 1, line
    assert sum(each.joins + each.replays for each in calls) == 1, line
    answered = [each for each in calls if not each.refusal]
    assert len(answered) == 3, line
    assert all(each.evidence in KNOWN for each in answered[1:]), line
    lost = [row for row in rows if row.reason]
    assert [row.reason for row in lost] == [Reason.UNANSWERED], line
    sampled = len(place.rig.engine.sampled)
    assert delivered(rows) == (sampled - 3) / sampled, line


@pytest.mark.parametrize("name", installed())
def test_weights_are_updated_in_the_middle_of_an_answer(name: str, tmp_path: Path) -> None:
    """The engine is suspended in the second answer for longer than a heartbeat, and goes on with
    the next version; the program ends its task, and nothing of the answer is lost."""
    task = dialect(name, str(tmp_path / "work"))
    suspended = asyncio.Event()
    texts = (task.both, with_last_chunk(task.writes, suspended), task.ends)
    place = workplace(name, tmp_path, *texts, engine=UpdatedEngine)
    engine = place.rig.engine
    assert isinstance(engine, UpdatedEngine)

    async def run() -> tuple[int, int]:
        group = EngineGroup([engine], engine.version, place.rig.events.append)
        async with gateway(place) as (server, url, key):
            running = asyncio.ensure_future(place.run(url, key))
            await until(lambda: engine.chunks > 1 or running.done())
            await group.suspend()
            suspended.set()  # the policy would go on at once
            held = asyncio.ensure_future(asyncio.sleep(HELD_S))
            await asyncio.wait((held, running), return_when=asyncio.FIRST_COMPLETED)
            held.cancel()
            await group.update(engine.version + 1)
            await group.resume()
            return await running, server.counters.heartbeats

    code, heartbeats = asyncio.run(run())
    rows = asyncio.run(rows_of(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").read_text() == "seven\n", place.output[-2000:]
    assert heartbeats >= 2 or not calls[1].stream, line
    assert [each.parent for each in calls] == [None, 0, 1], line
    assert (len(rows), delivered(rows)) == (1, 1.0), line
    (row,) = rows
    answers = [[*row.token_versions[each.answer_start : each.end]] for each in calls]
    assert [sorted(set(versions)) for versions in answers] == [[3], [3, 4], [4]], line
    assert answers[1] == sorted(answers[1]), "the version changes once"
    assert (row.policy_version_start, row.policy_version_end) == (3, 4)
    assert sum(row.action_mask) == len(engine.sampled)


@pytest.mark.parametrize("name", installed())
def test_a_program_that_is_killed_in_mid_stream_starts_again(name: str, tmp_path: Path) -> None:
    """What it asked for is sampled and kept; the next process works in the same session."""
    task = dialect(name, str(tmp_path / "work"))
    killed = asyncio.Event()
    place = workplace(name, tmp_path, task.both, with_last_chunk(task.fails, killed), *task.task)

    async def run() -> int:
        async with gateway(place) as (server, url, key):
            async with place.process(place.launch(url, key)) as process:
                gone = asyncio.ensure_future(process.wait())
                await until(lambda: len(place.rig.engine.requests) > 1 or gone.done())
            await until(lambda: server.counters.hang_ups > 0)
            killed.set()
            await gone
            return await place.run(url, key)

    code = asyncio.run(run())
    rows = asyncio.run(rows_of(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").read_text() == "seven\n", place.output[-2000:]
    assert len(calls) == 7, line
    assert all(each.evidence in KNOWN for each in (calls[1], *calls[3:])), line
    lost = [row for row in rows if row.reason]
    replayed = any(each.replays for each in calls)
    assert replayed == (name in REPEATS), line
    assert [row.reason for row in lost] == ([] if replayed else [Reason.UNANSWERED]), line
    assert sum(sum(row.action_mask) for row in rows) + withheld(lost) == len(
        place.rig.engine.sampled
    ), line
