"""Requests with keys that no attempt has are reported, however many a program sends."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx

from rollart_flow.control.plane import InferenceClients, RolloutPlane
from rollart_flow.envs.process import WarmProcesses
from rollart_flow.operators.agents import Agents
from rollart_flow.types import Event, EventKind
from tests.builders import MOMENT
from tests.gateway.core.rig import CODEC, ScriptedEngine


async def events_of(requests: int) -> list[Event]:
    """Events of a process of agents that gets some requests with an unknown key."""
    events: list[Event] = []
    engine: Any = ScriptedEngine()
    plane = RolloutPlane(
        "host", InferenceClients([engine]), CODEC,
        lambda seconds: MOMENT + timedelta(seconds=seconds), events.append,
    )  # fmt: skip
    processes = WarmProcesses(1)
    agents = Agents({}, {}, {}, plane, CODEC, processes, None)
    try:
        await agents.start()
        socket = str(agents._gateway.socket)
        transport = httpx.AsyncHTTPTransport(uds=socket)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"authorization": "Bearer stranger"}
            for _ in range(requests):
                answer = await client.get("/v1/models", headers=headers)
                assert answer.status_code == 401
    finally:
        await plane.close()
        await agents.close()
        await processes.close()
    return events


def test_unknown_keys_are_few_events_that_count_every_request() -> None:
    events = asyncio.run(events_of(7))
    assert {(event.kind, event.subject) for event in events} == {(EventKind.UNKNOWN_KEY, "host")}
    assert [event.detail["requests"] for event in events] == [1, 1, 2, 3]
    assert asyncio.run(events_of(0)) == []
