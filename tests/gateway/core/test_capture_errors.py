"""A bad capture is a row, not a crash."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rollart_flow.errors import SettingsError, TemplateRefusedError
from rollart_flow.gateway.core.calls import CallRefusedError, Refusal
from rollart_flow.types import Action, Observation, Reason, Tool
from rollart_flow.types.messages import messages_of, user
from rollart_flow.types.token_ids import TokenBuffer, TokenIds
from tests.gateway.core.rig import ADDED, CODEC, FIRST, Client, Rig, Script, ScriptedEngine
from tests.gateway.core.test_retries import settle


class Wrapped:
    """A codec whose conversations can be made to fail."""

    branches_history = False

    def __init__(self) -> None:
        self.fails_to_parse = False
        self.decode = CODEC.decode

    def converse(self, tools: Sequence[Tool] = ()) -> Any:
        if any(tool.name == "no place" for tool in tools):
            raise SettingsError("the chat template has no place for tools")
        return Faulty(self, CODEC.converse(tools))


class Faulty:
    def __init__(self, codec: Wrapped, inner: Any) -> None:
        self._codec, self._inner = codec, inner
        self.rewritten_at = inner.rewritten_at

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        tokens: tuple[int, ...] = self._inner.observe(observation, ended=ended)
        if any(message.text == "refuse me" for message in messages_of(observation)):
            raise TemplateRefusedError("roles must alternate")
        return tokens

    def act(self, token_ids: Sequence[int]) -> Action:
        if self._codec.fails_to_parse:
            raise RuntimeError("the parser broke")
        action: Action = self._inner.act(token_ids)
        return action


async def test_tokens_that_differ_from_what_was_sampled_are_not_trained() -> None:
    rig = Rig(ScriptedEngine(ADDED, "one", "two"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    await client.turn()
    await Client(rig.session.answer, (*FIRST, user("other"))).turn()
    await rig.session.seal()
    recorder, _ = rig.session.rows("g1-00")[0]
    damaged = rig.session._prompts.branches[0].recorder
    ids = [*damaged.token_ids]
    ids[rig.exchanges[0].answer_start] += 1
    damaged._chain = TokenBuffer(TokenIds.of(ids))
    (bad, _), (good, _) = rig.session.rows("g1-00")
    assert recorder.withheld is None
    assert bad.withheld is not None
    assert bad.withheld.reason is Reason.CAPTURE_ERROR
    assert "1 token of the chain differ from those that call 0 sent and got" in str(bad.withheld)
    assert good.withheld is None
    first = rig.exchanges[0]
    assert (first.mismatches, rig.exchanges[2].mismatches) == (1, 0)
    assert first.prompt_ids == rig.engine.prompts[0]
    assert first.answer_ids is not None
    assert rig.codec.decode(first.answer_ids) == ADDED
    await rig.proxy.close()


async def test_a_chain_that_changes_during_a_call_is_not_trained() -> None:
    go = asyncio.Event()
    rig = Rig(ScriptedEngine(Script("one", waits=go)))
    task = asyncio.ensure_future(Client(rig.session.answer).turn())
    await settle()
    rig.session._prompts.branches[0].recorder._chain.extend([7])
    go.set()
    await task
    await rig.session.seal()
    ((recorder, _),) = rig.session.rows("g1-00")
    assert recorder.withheld is not None
    assert recorder.withheld.reason is Reason.CAPTURE_ERROR
    await rig.proxy.close()


async def test_a_template_that_refuses_messages_refuses_the_call_alone() -> None:
    rig = Rig(ScriptedEngine(ADDED, "ok"), codec=Wrapped())
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    client.say("refuse me")
    with pytest.raises(CallRefusedError, match="roles must alternate") as refused:
        await client.turn()
    assert refused.value.refusal is Refusal.INVALID
    client.messages.pop()
    await client.turn()
    (row,) = await rig.trajectories()
    assert "refuse me" not in CODEC.decode(row.token_ids)


async def test_tools_that_the_template_does_not_take_are_refused() -> None:
    rig = Rig(ScriptedEngine("ok"), codec=Wrapped())
    tool = Tool("no place", "", {})
    with pytest.raises(CallRefusedError, match="no place for tools") as refused:
        await Client(rig.session.answer, tools=(tool,)).turn()
    assert refused.value.refusal is Refusal.UNSUPPORTED
    await rig.trajectories()


async def test_a_parser_that_breaks_loses_no_token() -> None:
    codec = Wrapped()
    rig = Rig(ScriptedEngine(ADDED, "lost", "ok"), codec=codec)
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    codec.fails_to_parse = True
    with pytest.raises(CallRefusedError, match="the parser broke") as refused:
        await client.turn()
    assert refused.value.refusal is Refusal.ENGINE
    codec.fails_to_parse = False
    await client.turn()
    codec.fails_to_parse = True  # also where the conversation of the chain is made again
    main, lost, good = await rig.trajectories()
    assert (main.reason, lost.reason, good.reason) == (None, Reason.UNANSWERED, None)
    assert "the parser broke" in (lost.error or "")
