"""The program of a captured agent runs again in a real box, and gets what was sampled then."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rollart_flow import Harness
from rollart_flow.control.plane import InferenceClients, RolloutPlane
from rollart_flow.envs import SweSample
from rollart_flow.envs.process import WarmProcesses
from rollart_flow.operators.agents import Agents
from rollart_flow.replay.exchanges import SessionReplay
from rollart_flow.replay.program import run_program_again
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Assignment, AttemptLimits, Sampling, Split, Task, Trajectory
from tests.builders import MOMENT
from tests.descriptors import left_open, open_descriptors
from tests.gateway.core.rig import CODEC, STOP, ScriptedEngine, called

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())

BASH = Harness("bash", timeout_s=60)
LIMITS = AttemptLimits(context_tokens=1 << 18)
SAID = (
    called(("bash", {"command": "echo one > note.txt && ls"})),
    called(("bash", {"command": "cat note.txt"})),
    "done",
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SweSample:
    return SweSample(folder=str(tmp_path_factory.mktemp("swe")), per_package=1)


async def recorded_now(sample: SweSample, task: Task, agent: Harness) -> tuple[Trajectory, ...]:
    """An attempt whose policy says what `SAID` has."""
    sampling = Sampling(max_tokens=400, stop_token_ids=(STOP,))
    assignment = Assignment("g-00", "g", task, 0, 0, sampling)
    engine: Any = ScriptedEngine(*SAID)
    plane = RolloutPlane(
        "w", InferenceClients([engine]), CODEC,
        lambda seconds: MOMENT + timedelta(seconds=seconds), lambda event: None,
    )  # fmt: skip
    name, processes = sample.name, WarmProcesses(1)
    agents = Agents({name: agent}, {name: sample}, {name: LIMITS}, plane, CODEC, processes, None)
    try:
        await agents.start()
        return await plane.run(agents.manager(assignment))
    finally:
        await plane.close()
        await agents.close()
        await processes.close()


@pytest.fixture(scope="module")
def recorded(sample: SweSample) -> tuple[Trajectory, ...]:
    task = next(sample.tasks(Split.EVALUATION, 0))
    branches = asyncio.run(recorded_now(sample, task, BASH))
    assert len(branches[0].exchanges or ()) == len(SAID)
    assert branches[0].error is None
    return branches


def again(
    branches: Sequence[Trajectory], sample: SweSample, agent: Harness = BASH
) -> SessionReplay:
    return asyncio.run(run_program_again(branches, sample, agent, LIMITS, CODEC))


def test_a_program_does_the_same_again(
    recorded: tuple[Trajectory, ...], sample: SweSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    with tempfile.TemporaryDirectory(prefix="r") as place:  # short, as paths of sockets have to be
        os.chmod(place, 0o711)  # boxes open the socket as another user
        monkeypatch.setattr(tempfile, "tempdir", place)
        found = again(recorded, sample)
        assert not os.listdir(place), "nothing is left behind"
    assert not left_open(before)
    assert found.difference is None
    assert (found.calls, found.replayed) == (3, 3)


def test_a_program_that_asks_something_else_is_a_difference_at_its_token(
    recorded: tuple[Trajectory, ...], sample: SweSample
) -> None:
    """The recorded answer of a tool is another one than the box gives now."""
    first = recorded[0]
    calls = first.exchanges or ()
    start = calls[1].start
    assert start is not None
    note = CODEC.encode("note")
    at = next(at for at in range(start, len(first.token_ids)) if first.token_ids[at:][:4] == note)
    ids = (*first.token_ids[:at], *CODEC.encode("vote"), *first.token_ids[at + 4 :])
    found = again([replace(first, token_ids=ids)], sample)
    assert found.difference is not None
    assert (found.difference.call, found.difference.what, found.replayed) == (1, "prompt", 1)
    assert f"token {at} of" in found.difference.said
    assert "recorded 'vote.txt" in found.difference.said
    assert "now 'note.txt" in found.difference.said


@pytest.mark.whole
def test_a_program_that_makes_fewer_calls_is_a_difference(
    recorded: tuple[Trajectory, ...], sample: SweSample
) -> None:
    first = recorded[0]
    calls = first.exchanges or ()
    more = replace(calls[2], number=3, start=0, answer_start=2)
    found = again([replace(first, exchanges=(*calls, more))], sample)
    assert str(found.difference).startswith("call 3: call: recorded, but the program did not make")
    assert (found.calls, found.replayed) == (4, 3)
    fewer = again([replace(first, exchanges=calls[:2])], sample)
    assert str(fewer.difference).startswith("call 2: call: one more call than recorded")
