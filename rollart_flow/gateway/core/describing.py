"""The record of a call: what is known of it when it arrives, when it is placed, and at its end."""

import json

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, answer_json
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.prompts import PlacedCall


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

    The time since the answer that it goes on from is what that turn's step took.
    """
    turn = None if placed is None else placed.found.turn
    if placed is not None:
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
    exchange.request = json.dumps(form, ensure_ascii=False, separators=(",", ":"))


def describe_outcome(exchange: Exchange, found: ModelAnswer | CallRefusedError) -> None:
    """Write down the answer to a call, or its refusal."""
    if isinstance(found, CallRefusedError):
        exchange.refusal, exchange.error = found.refusal, str(found)
        return
    exchange.answer, exchange.answer_id = answer_json(found), found.answer_id
    exchange.control = found.control
