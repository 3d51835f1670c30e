"""Unchanged programs complete tasks through the real gateway, and every call finds its parent.

`rollart agents install all` installs them; what is not installed is skipped.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollart_flow import Harness
from rollart_flow.envs.base import Domain
from rollart_flow.envs.workspace import NO_EQUIPMENT, AttemptEnd, Equipment, Workspace
from rollart_flow.errors import SettingsError
from rollart_flow.gateway.core.exchange import CallKind, Evidence
from rollart_flow.gateway.server.gateway_server import GatewayServer
from rollart_flow.harness.environment import AgentDomain, AgentEnvironment
from rollart_flow.harness.profiles.installed import InstalledProfile
from rollart_flow.harness.registry import AGENTS
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.sandbox.boxes import Box
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Reason, Split, Task, Trajectory
from tests.gateway.core.rig import Script, called
from tests.harness.clients import (
    TASK,
    HangUp,
    Workplace,
    begun,
    delivered,
    dialect,
    gateway,
    played,
    with_last_chunk,
    withheld,
    workplace,
)

KNOWN = (Evidence.ECHO, Evidence.STRUCTURE, Evidence.TOKENS)


def missing(name: str) -> str:
    """Why a program cannot be run; empty if it can."""
    try:
        AGENTS.load(name)().programs()
    except SettingsError as error:
        return str(error)
    return ""


def installed(*names: str) -> list[object]:
    """Parameters for programs, skipped where they are not installed."""
    chosen = names or [
        name for name, kind in AGENTS.variants() if issubclass(kind, InstalledProfile)
    ]
    return [
        pytest.param(name, marks=pytest.mark.skipif(bool(why), reason=why), id=name)
        for name in chosen
        if (why := missing(name)) or True
    ]


pytestmark = pytest.mark.whole
HELD_S = 4.0
"""Time for which an answer is held, which is longer than a heartbeat."""


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other tasks of the loop bring about."""
    while not holds():  # noqa: ASYNC110  programs of others say nothing
        await asyncio.sleep(0.01)


def kinds(place: Workplace) -> list[CallKind]:
    return [each.kind for each in place.rig.exchanges]


async def rows_of(place: Workplace) -> list[Trajectory]:
    return await place.rig.trajectories()


def report(place: Workplace, rows: list[object]) -> str:
    """Figures of a session in one line, which `pytest -rP` shows."""
    calls = place.rig.exchanges
    evidence = [each.evidence.value for each in calls]
    figures = {
        "program": place.name, "calls": len(calls), "prompt_tokens": calls[0].answer_start,
        "bytes": len(calls[0].request), "rows": len(rows), "begun": len(begun(calls)),
        "evidence": {each: evidence.count(each) for each in sorted(set(evidence))},
        "kinds": sorted({each.kind.value for each in calls}),
        "delivered": round(delivered(rows), 4),  # type: ignore[arg-type]
        "refused": [each.refusal for each in calls if each.refusal],
    }  # fmt: skip
    line = json.dumps(figures)
    print(line)
    return line


UNMARKED = {"claude-code", "codex", "gemini-cli", "opencode", "pi"}
"""Programs whose requests do not tell that they come again, so that another answer is sampled."""
REPEATS = {"smolagents"}
"""Programs whose new process asks again, letter by letter, for the answer that was lost."""
FORGETS = {"mini-swe-agent": [None, 0, 1, 1, 3]}
"""Parents of calls of programs that leave out an answer whose calls cannot be run."""


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
    """The engine fails at the second call; the answer to the third one is lost on its way."""
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
    again = sum(each.joins + each.replays for each in calls)
    assert again == (name not in UNMARKED), line
    answered = [each for each in calls if not each.refusal]
    assert len(answered) == 4 - again, line
    assert all(each.evidence in KNOWN for each in answered[1:]), line
    lost = [row for row in rows if row.reason]
    assert [row.reason for row in lost] == [Reason.UNANSWERED], line
    sampled = len(place.rig.engine.sampled)
    assert delivered(rows) == (sampled - 3) / sampled, line


@pytest.mark.parametrize("name", installed())
def test_a_stream_lives_while_weights_are_updated(name: str, tmp_path: Path) -> None:
    """The second answer waits in the middle for longer than a heartbeat."""
    task = dialect(name, str(tmp_path / "work"))
    updated = asyncio.Event()
    place = workplace(name, tmp_path, task.both, with_last_chunk(task.writes, updated), task.ends)

    async def run() -> tuple[int, int]:
        async with gateway(place) as (server, url, key):
            running = asyncio.ensure_future(place.run(url, key))
            await until(lambda: len(place.rig.engine.requests) > 1 or running.done())
            held = asyncio.ensure_future(asyncio.sleep(HELD_S))
            await asyncio.wait((held, running), return_when=asyncio.FIRST_COMPLETED)
            held.cancel()
            updated.set()
            return await running, server.counters.heartbeats

    code, heartbeats = asyncio.run(run())
    rows = asyncio.run(rows_of(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").read_text() == "seven\n", place.output[-2000:]
    assert heartbeats >= 2 or not calls[1].stream, line
    assert [each.parent for each in calls] == [None, 0, 1], line
    assert (len(rows), delivered(rows)) == (1, 1.0), line


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


SUB_AGENTS: dict[str, tuple[str, dict[str, object]]] = {
    "claude-code": (
        "Agent",
        {
            "description": "Count", "prompt": "Count.", "subagent_type": "Plan",
            "run_in_background": False,
        },
    ),
    "gemini-cli": ("invoke_agent", {"agent_name": "generalist", "prompt": "Count."}),
    "qwen-code": (
        "agent",
        {
            "description": "Count", "prompt": "Count.", "subagent_type": "Explore",
            "run_in_background": False,
        },
    ),
    "opencode": ("task", {"description": "Count", "prompt": "Count.", "subagent_type": "general"}),
}  # fmt: skip
"""Calls of tools that start a sub-agent."""
ENDS_SUB_AGENT = {"gemini-cli": called(("complete_task", {"result": {"response": "One file."}}))}
"""What ends a sub-agent where a text does not."""


@pytest.mark.parametrize("name", installed(*SUB_AGENTS))
def test_sub_agents_are_trajectories_of_their_own(name: str, tmp_path: Path) -> None:
    task = dialect(name, str(tmp_path / "work"))
    asks = called(SUB_AGENTS[name])
    counted = ENDS_SUB_AGENT.get(name, "I counted one file.")
    place = workplace(name, tmp_path, asks, counted, task.writes, task.ends)
    code, rows = asyncio.run(played(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").read_text() == "seven\n", place.output[-2000:]
    assert kinds(place) == [CallKind.MAIN, CallKind.SUB_AGENT, CallKind.MAIN, CallKind.MAIN], line
    assert [each.parent for each in calls] == [None, None, 0, 2], line
    assert (len(rows), delivered(rows)) == (2, 1.0), line


COMPACTS = {
    "codex": {"model_context_window = 128000": "model_context_window = 25000"},
    "opencode": {'"context": 128000': '"context": 44000'},
}
"""Contexts that the text of in.txt fills."""
SUMMARY = "The file in.txt begins with the word seven; its text is still to be written to out.txt."


@pytest.mark.parametrize("name", installed(*COMPACTS))
def test_a_compaction_is_a_trajectory_of_the_same_episode(name: str, tmp_path: Path) -> None:
    """codex compacts as soon as the context is full, opencode after an answer of text."""
    task = dialect(name, str(tmp_path / "work"))
    middle = () if name == "codex" else ("I go on.",)
    place = workplace(
        name, tmp_path, task.both, *middle, SUMMARY, task.writes, task.ends, edits=COMPACTS[name]
    )
    lines = [f"word {number} of {number * 7919 % 1000}" for number in range(700)]
    (place.work / "in.txt").write_text("\n".join(["seven", *lines]))
    code, rows = asyncio.run(played(place))
    calls, line = place.rig.exchanges, report(place, [*rows])
    assert code == 0, place.output[-2000:]
    assert (place.work / "out.txt").exists(), place.output[-2000:]
    before = [CallKind.MAIN] * (1 + len(middle))
    assert kinds(place) == [*before, CallKind.COMPACTION, CallKind.MAIN, CallKind.MAIN], line
    assert calls[-1].parent == calls[-2].number, line
    assert len({row.episode_id for row in rows}) == 1
    assert (len(rows), delivered(rows)) == (3, 1.0), line


class WordFile(Workspace):
    """A folder with in.txt, whose text out.txt should have."""

    def open(self, seed: int, task: str, equipment: Equipment = NO_EQUIPMENT) -> tuple[str, Box]:
        self.begin()
        limits = SandboxLimits(memory_mb=2048, disk_mb=512, processes=256)
        box = self.boxes.open(equipment.added(SandboxSpec(limits=limits)))
        box.write("in.txt", b"seven\n")
        return TASK, box

    def judged(self, box: Box, *, last: bool) -> AttemptEnd:
        wrote = box.exec(["cmp", "in.txt", "out.txt"]).ok
        return AttemptEnd(float(wrote), {"success": wrote})


class WordDomain(Domain):
    name = "words"
    environment = AgentEnvironment

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return iter(())

    def workspace(self) -> Workspace:
        return WordFile()


@pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())
@pytest.mark.parametrize("name", installed())
def test_a_program_works_in_a_box_without_a_network(name: str, tmp_path: Path) -> None:
    place = workplace(name, tmp_path, *dialect(name, "/work").task)

    async def run() -> tuple[dict[str, Any], float]:
        async with GatewayServer() as server:
            key = server.open(place.rig.session)
            domain = AgentDomain(WordDomain(), Harness(name), str(server.socket))
            environment = domain.make()
            try:
                await asyncio.to_thread(environment.reset, 0, "")
                ran = await asyncio.to_thread(environment.step, json.dumps({"run": key}))
                end = await asyncio.to_thread(environment.step, json.dumps({"judge": True}))
            finally:
                await asyncio.to_thread(environment.close)
        return dict(ran[-1]), end[1]

    info, reward = asyncio.run(run())
    rows = asyncio.run(rows_of(place))
    line = report(place, [*rows])
    assert info["exit_code"] == 0, (info, line)
    assert reward == 1.0, (info, line)
    assert [each.parent for each in place.rig.exchanges] == FORGETS.get(name, [None, 0, 1, 2, 3])
    assert (len(rows), delivered(rows)) == (1 + (name in FORGETS), 1.0), line
