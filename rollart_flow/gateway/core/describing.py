"""The record of a call: what is known of it when it arrives, when it is placed, and at its end."""

import json
from collections.abc import Sequence

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, answer_json
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.prompts import PlacedCall
from rollart_flow.types import Message

UNPLACED_CHARS = 16_384
"""Most characters that are kept of the messages of a call that has no place in its session, and of
its tools: nothing is sampled for it, and its client sends the whole history again and again."""


def exchange_of(call: ModelCall, number: int, arrived: float) -> Exchange:
    """Return the record of a call that has arrived.

    Args:
        call: the call.
        number: its number in the session.
        arrived: time of the running loop [s].
    """
    asked = {} if call.max_tokens is None else {"max_tokens": call.max_tokens}
    return Exchange(
        number=number,
        wire=call.wire,
        client=call.client,
        model=call.model,
        lineage=call.lineage,
        stream=call.stream,
        digest=call.digest,
        request="",
        requested={**call.sampling, **asked},
        dropped=call.dropped,
        arrived=arrived,
        ended=arrived,
    )


def describe_request(exchange: Exchange, call: ModelCall, placed: PlacedCall | None) -> None:
    """Write down what a call asks, without what the call that it goes on from has.

    Of a call without a place, the last messages are kept, the number of those before as `left_out`.
    The time since the answer that it goes on from is what that turn's step took.
    """
    if placed is None:
        exchange.request = _json(_unplaced(call))
        return
    turn = placed.found.turn
    exchange.evidence = placed.found.evidence
    exchange.reused_messages = placed.found.used
    if placed.source is not None:
        exchange.parent = placed.source.exchange.number
    if turn is not None and not turn.chain.step_s:
        turn.chain.step_s = exchange.arrived - turn.exchange.ended
    new = call.messages[exchange.reused_messages :]
    form: dict[str, object] = {"messages": [message.as_json() for message in new]}
    if turn is None and call.tools:
        form["tools"] = [tool.as_json() for tool in call.tools]
    exchange.request = _json(form)


def _unplaced(call: ModelCall) -> dict[str, object]:
    """Return what is kept of a call without a place."""
    tools = [tool.as_json() for tool in call.tools]
    kept = _last(call.messages)
    form: dict[str, object] = {"messages": kept}
    if len(kept) < len(call.messages):
        form["left_out"] = len(call.messages) - len(kept)
    if tools and len(_json(tools)) <= UNPLACED_CHARS:
        form["tools"] = tools
    return form


def _last(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return the forms of the last messages; the last one is cut if it is too long by itself."""
    kept: list[dict[str, object]] = []
    room = UNPLACED_CHARS
    for message in reversed(messages):
        if len(message.text) > room:
            break
        form = message.as_json()
        room -= len(_json(form))
        if room < 0:
            break
        kept.append(form)
    if not kept:
        last = messages[-1]
        kept.append({"role": str(last.role), "content": last.shown[:UNPLACED_CHARS]})
    return kept[::-1]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def describe_outcome(exchange: Exchange, found: ModelAnswer | CallRefusedError) -> None:
    """Write down the answer to a call, or its refusal."""
    if isinstance(found, CallRefusedError):
        exchange.refusal, exchange.error = found.refusal, str(found)
        return
    exchange.answer, exchange.answer_id = answer_json(found), found.answer_id
    exchange.control = found.control
