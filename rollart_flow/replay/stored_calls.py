"""The calls of a stored attempt as their client made them, for a session that begins anew.

A new session mints ids of its own. The client of a replay sends those where the client of the
attempt sent the ids that it got.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall, answer_from_json
from rollart_flow.gateway.core.exchange import Evidence
from rollart_flow.types import Image, Message, Tool
from rollart_flow.types.exchanges import StoredExchange
from rollart_flow.types.messages import message_from_json, tool_from_json


class StoredClient:
    """The client of a stored attempt.

    Args:
        images: images of the attempt, by name.
    """

    def __init__(self, images: Mapping[str, Image]) -> None:
        self._images = images
        self._messages: dict[int, tuple[Message, ...]] = {}
        """Whole conversation up to and with the answer, by call."""
        self._tools: dict[int, tuple[Tool, ...]] = {}
        self._minted: dict[int, ModelAnswer] = {}
        self._ids: dict[str, str] = {}
        """Ids of the new session by those of the stored one."""

    def call(self, stored: StoredExchange) -> ModelCall:
        """Return a call as the client made it.

        Raises:
            KeyError: the call goes on from one that has no answer.
            ValueError, TypeError: the stored request is damaged.
        """
        form: dict[str, Any] = json.loads(stored.request)
        new = tuple(self._message(each) for each in form["messages"])
        before: tuple[Message, ...] = ()
        tools = tuple(map(tool_from_json, form.get("tools", ())))
        echoes: dict[int, tuple[str, ...]] = {}
        if stored.reused_messages:
            assert stored.parent is not None, "reused messages are those of a parent"
            before = self._messages[stored.parent]
            tools = tools or self._tools[stored.parent]
            if stored.evidence == Evidence.ECHO:
                answer = self._minted[stored.parent]
                echoes = {
                    len(before) - 1: tuple(filter(None, (answer.answer_id, answer.signature)))
                }
        messages = (*before, *new)
        self._messages[stored.number], self._tools[stored.number] = messages, tools
        return ModelCall(
            wire=stored.wire,
            messages=messages,
            tools=tools,
            echoes=echoes,
            sampling=_stops(stored),
            digest=f"{stored.digest}/{stored.number}",
            stream=stored.stream,
        )

    def answered(self, stored: StoredExchange, answer: ModelAnswer) -> None:
        """Take the answer of the new session to a call, which later calls send back."""
        said = answer.action
        self._minted[stored.number] = answer
        self._messages[stored.number] += (said.as_message(),)
        if stored.answer is None:
            return
        before = answer_from_json(stored.answer)
        self._ids[before.answer_id] = answer.answer_id
        pairs = zip(before.action.tool_calls, said.tool_calls, strict=False)
        self._ids |= {old.call_id: new.call_id for old, new in pairs}

    def _message(self, form: Mapping[str, Any]) -> Message:
        message = message_from_json(form, self._images)
        calls = tuple(
            replace(call, call_id=self._ids.get(call.call_id, call.call_id))
            for call in message.tool_calls
        )
        call_id = message.call_id and self._ids.get(message.call_id, message.call_id)
        return replace(message, tool_calls=calls, call_id=call_id)


def _stops(stored: StoredExchange) -> dict[str, object]:
    """Return the stop texts of a call, which cut its answer; nothing else has an effect."""
    asked: dict[str, object] = json.loads(stored.requested)
    return {name: value for name, value in asked.items() if "stop" in name.lower()}
