"""Programs that are agents, and their boxes: they fail, stay, leave and begin again, by chance.

The invariant: a box ends its program at the limits that a real one has, whatever the program does.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.types.messages import user
from tests.dst.agent_plans import MOST_ROUNDS, AgentPlan
from tests.dst.environments import FaultyEnvironment
from tests.dst.plans import Faults
from tests.gateway.core.rig import Client

_THINK_S = 0.1
_TRIES = 3


class OpenKeys:
    """The sessions of one attempt by the keys that are open; implements `KeyHolder`."""

    def __init__(self) -> None:
        self.sessions: dict[str, CaptureSession] = {}
        self._numbers = count()

    def open(self, session: CaptureSession) -> str:
        key = f"key-{next(self._numbers)}"
        self.sessions[key] = session
        return key

    def close(self, key: str) -> None:
        del self.sessions[key]


class FaultyBox(FaultyEnvironment):
    """The environment of one attempt of a program, which fails as other environments do."""

    def __init__(self, chance: Random, faults: Faults, agents: AgentPlan, keys: OpenKeys) -> None:
        super().__init__(chance, faults)
        self._agents = agents
        self._keys = keys
        self._rounds = 0

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        ((stage, argument),) = json.loads(action).items()
        return await (self._judge(**argument) if stage == "judge" else self._run(argument))

    async def _judge(
        self, last: bool, said: list[str]
    ) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        await self._answer()
        if self._chance.random() < self._faults.environment_nonsense:
            answer: Any = self._chance.choice(self._nonsense)
            return answer  # type: ignore[no-any-return]
        over = last or self._rounds == MOST_ROUNDS or self._chance.random() < 0.8
        info = {"success": self._chance.random() < 0.5} if over else {}
        return "", self._chance.random(), over, False, info

    async def _run(self, key: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        self._rounds += 1
        limits = self._agents.stages
        program = ChanceProgram(self._keys.sessions[key], self._chance, self._agents)
        killed, code = "", 0
        try:
            async with asyncio.timeout(limits.run_s + limits.grace_s):
                code = await program.run()
        except TimeoutError:
            killed = "time"
        if not killed and self._chance.random() < self._agents.outgrows:
            killed = "memory"
        return "", 0.0, False, False, {"exit_code": code, "killed": killed, "said": "bye"}


class ChanceProgram:
    """A program with one conversation, and with what it asks beside it."""

    def __init__(self, session: CaptureSession, chance: Random, plan: AgentPlan) -> None:
        self._session = session
        self._chance = chance
        self._plan = plan
        self._numbers = count()

    async def run(self) -> int:
        """Work until the policy calls no tool; the exit code."""
        chance, plan = self._chance, self._plan
        if chance.random() < plan.silent:
            return 1
        try:
            async with asyncio.TaskGroup() as beside:
                await self._converse(beside)
        except ExceptionGroup:  # a call that was refused
            return 1
        if chance.random() < plan.stays:
            await asyncio.Event().wait()
        return int(chance.random() < plan.fails)

    async def _converse(self, beside: asyncio.TaskGroup) -> None:
        chance, plan = self._chance, self._plan
        client = self._client("go")
        for _ in range(chance.randint(1, plan.turns)):
            if chance.random() < plan.side_calls:
                beside.create_task(self._client("a title?", tools=False).turn())
            if chance.random() < plan.sub_agents:
                await self._work(self._client("help"))
            if await self._turn(client) or chance.random() < plan.rewrites:
                return
            if chance.random() < plan.rewrites:
                client = self._client("go on")

    async def _work(self, client: Client) -> None:
        for _ in range(2):
            if await self._turn(client):
                return

    async def _turn(self, client: Client) -> bool:
        """Ask, and add what the tool says; whether the conversation is over."""
        await asyncio.sleep(self._chance.expovariate(1 / _THINK_S))
        answer = await client.turn(digest=f"d{next(self._numbers)}")
        if not answer.action.tool_calls:
            return True
        client.results(f"r{next(self._numbers)}")
        return False

    def _client(self, text: str, *, tools: bool = True) -> Client:
        first = (user(f"{text} {next(self._numbers)}"),)
        return Client(self._ask, first) if tools else Client(self._ask, first, tools=())

    async def _ask(self, call: ModelCall) -> ModelAnswer:
        """Return the answer to a call, which is sent again while the engine fails."""
        chance, plan = self._chance, self._plan
        draw = chance.random()
        if draw < plan.leaves + plan.retries:
            try:
                async with asyncio.timeout(chance.choice((0.0, 0.05, 0.3))):
                    return await self._session.answer(call)
            except TimeoutError:
                retry = draw >= plan.leaves
                call = replace(call, retry=True) if retry else replace(call, digest="")
        for _ in range(_TRIES):
            try:
                return await self._session.answer(call)
            except CallRefusedError as refused:
                if refused.refusal is not Refusal.ENGINE:
                    raise
                await asyncio.sleep(_THINK_S)
                call = replace(call, retry=True)
        return await self._session.answer(call)
