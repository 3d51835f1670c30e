"""A client compacts its conversation at the gateway, and goes on from the summary."""

import asyncio
from typing import Any

from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.gateway.server.gateway_server import GatewayServer
from tests.gateway.core.rig import Rig, ScriptedEngine
from tests.gateway.server.test_clients import openai_client

SUMMARY = "The user wants the sum of 1 and 2, which is 3; it is still to be doubled."


def test_a_summary_is_sampled_by_the_policy_and_trained_on() -> None:
    rig = Rig(ScriptedEngine("3", SUMMARY, "6"))

    async def main() -> str:
        async with GatewayServer(port=0, unix=False) as server:
            key = server.open(rig.session)
            async with openai_client(server.url or "", key) as client:
                said: list[Any] = [{"role": "user", "content": "Add 1 and 2."}]
                first = await client.responses.create(model="m", input=said)
                said += [item.to_dict() for item in first.output]
                compacted = await client.responses.compact(model="m", input=said)
                kept: Any = [item.to_dict(warnings=False) for item in compacted.output]
                kept.append({"role": "user", "content": "Double it."})
                last = await client.responses.create(model="m", input=kept)
                return last.output_text

    assert asyncio.run(main()) == "6"
    rows = asyncio.run(rig.trajectories())
    assert [each.kind for each in rig.exchanges] == [
        CallKind.MAIN, CallKind.COMPACTION, CallKind.MAIN,
    ]  # fmt: skip
    assert [each.parent for each in rig.exchanges] == [None, 0, None]
    assert len(rows) == 2, "the summary goes on from the conversation, which begins anew with it"
    assert sum(sum(row.action_mask) for row in rows) == len(rig.engine.sampled)
