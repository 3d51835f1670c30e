"""Attempts of captured agents that a real session of the gateway recorded.

`session_attempt` plays a random agent against a scripted engine: turns with tools, side calls,
sub-agents, calls at once, clients that go back, forget, hang up and repeat themselves, an engine
that fails. Every choice follows from the seed.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.stored import with_exchanges
from rollart_flow.simulation import run
from rollart_flow.types import Message, Outcome, Role, Trajectory
from rollart_flow.types.messages import system, user
from tests.builders import MOMENT
from tests.gateway.core.rig import (
    ADDED,
    ASSIGNMENT,
    SAY,
    Client,
    Rig,
    Script,
    ScriptedEngine,
    called,
    check,
)

SAYINGS = (
    "ok",
    "done",
    ADDED,
    called(("add", {"a": 3, "b": 4}), text="so "),
    "<think>hm</think>no",
)


class RandomEngine(ScriptedEngine):
    """Says something at random; some requests fail in the middle."""

    def __init__(self, random: Random) -> None:
        super().__init__("ok")
        self._random = random

    async def generate(self, request: Any) -> Any:
        script = Script(self._random.choice(SAYINGS), chunks=self._random.randint(1, 3))
        if self._random.random() < 0.05:
            script = replace(script, fails_after=self._random.randint(0, 2))
        await asyncio.sleep(self._random.random())
        version = 3 + int(asyncio.get_running_loop().time() / 2)  # versions never fall
        self._scripts = [replace(script, version=version)]
        async for chunk in super().generate(request):
            yield chunk


@dataclass
class RandomAgent:
    """An agent that asks a session."""

    rig: Rig
    random: Random

    async def act(self, turns: int) -> None:
        """Make some turns, with whatever else comes to mind between them."""
        main = Client(self.rig.session.answer)
        for _ in range(turns):
            await asyncio.sleep(self.random.random())
            await self._turn(main)
            if (beside := self.random.random()) < 0.1:
                await self._beside(Client(self.rig.session.answer, [user("Name it.")], ()))
            elif beside < 0.2:
                agents = [self._sub_agent() for _ in range(self.random.randint(1, 3))]
                await asyncio.gather(*agents)
            elif beside < 0.3:
                self._go_back(main)
            elif beside < 0.35:
                main.messages[1:] = [user(f"A summary of {len(main.messages)} messages.")]

    async def _sub_agent(self) -> None:
        agent = Client(self.rig.session.answer, [system("Look."), user("Where?")], (SAY,))
        for _ in range(self.random.randint(1, 3)):
            await self._turn(agent)

    async def _beside(self, client: Client) -> None:
        await self._turn(client)

    async def _turn(self, client: Client) -> None:
        call = client.call(digest=str(self.random.random()))
        try:
            if self.random.random() < 0.1:  # hangs up, and may ask again
                left = asyncio.ensure_future(self.rig.session.answer(call))
                await asyncio.sleep(self.random.random() / 2)
                left.cancel()
                await asyncio.gather(left, return_exceptions=True)
                if self.random.random() < 0.3:
                    return
            answer: ModelAnswer = await self.rig.session.answer(replace(call, retry=True))
        except CallRefusedError:
            return
        said = answer.action.as_message()
        client.messages.append(said)
        if said.tool_calls:
            client.results(*(str(self.random.randint(0, 9)) for _ in said.tool_calls))
        else:
            client.say(f"go on, {self.random.randint(0, 9)}")

    def _go_back(self, client: Client) -> None:
        """Forget the last turns of a conversation."""
        places = [
            place for place, each in enumerate(client.messages) if each.role is Role.ASSISTANT
        ]
        if places:
            del client.messages[self.random.choice(places) :]
            if client.messages[-1].role is Role.ASSISTANT:
                client.messages.append(Message(Role.USER, "again"))


def session_attempt(name: str, seed: int, turns: int = 6, **fields: Any) -> tuple[Trajectory, ...]:
    """The rows of a random attempt; branch 0 has its calls.

    Args:
        name: id of the attempt: that of its group, a hyphen and its number.
        seed: what all choices follow from.
        turns: turns of the main agent.
        **fields: fields of `Trajectory` of all rows that have no reason of their own.
    """
    random = Random(f"{name} {seed}")
    per_request = random.random() < 0.25

    async def play() -> tuple[Trajectory, ...]:
        rig = Rig(RandomEngine(random), CaptureLimits(per_request=per_request, max_calls=40))
        agent = asyncio.ensure_future(RandomAgent(rig, random).act(turns))
        if random.random() < 0.2:
            await asyncio.sleep(turns / 2)
            rig.session.finish("stop here")
        await agent
        return with_exchanges(await rows_of(rig, name), rig.exchanges, rig.codec, wall)

    made: dict[str, Any] = {"reward": 1.0, "scored_at": MOMENT} | fields
    return tuple(_with(row, made) for row in run(play()))


async def rows_of(rig: Rig, name: str) -> list[Trajectory]:
    """The rows of a session as those of an attempt of this id."""
    await rig.session.seal()
    await rig.proxy.close()
    assignment = replace(ASSIGNMENT, trajectory_id=name, group_id=name.rpartition("-")[0] or name)
    ending = AttemptResult(Outcome.COMPLETED)
    rows = [
        recorder.trajectory(
            assignment, ending, created_at=MOMENT, finished_at=MOMENT, reset_s=0.0,
            env_version="", solved=None, columns=columns,
        )
        for recorder, columns in rig.session.rows(name)
    ]  # fmt: skip
    check(rows, rig.engine.sampled)
    return rows


def _with(row: Trajectory, fields: Mapping[str, Any]) -> Trajectory:
    """A row with other fields; one that has a reason of its own keeps it."""
    kept = {} if row.reason is None else {"reason": row.reason}
    return replace(row, **(dict(fields) | kept))


def wall(seconds: float) -> datetime:
    """UTC of a time of the virtual loop."""
    return MOMENT + timedelta(seconds=seconds)
