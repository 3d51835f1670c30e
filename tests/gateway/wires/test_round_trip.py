"""An answer that a client sends back in its history is the answer, on every wire.

Streams fold to the same, so that it does not matter which of both a client asked for.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.gateway.core.calls import AnswerEnd, ModelAnswer, ModelCall
from rollart_flow.gateway.wires.events import MALFORMED, NO_CONTENT
from rollart_flow.gateway.wires.registry import WIRES
from rollart_flow.types import Action, Message, Role, ToolCall
from tests.gateway.wires.folding import FOLDS, data_of, history_of, said
from tests.gateway.wires.scripted import ANSWER_ID, SIGNATURE, answer

NAMES = ("chat", "responses", "messages", "google")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True).filter(lambda n: n != MALFORMED)


@st.composite
def actions(draw: Any) -> Action:
    """An action whose calls are well-formed or not."""
    calls = []
    for number in range(draw(st.integers(0, 3))):
        name, call_id = draw(names), f"call{number:05d}"
        if draw(st.integers(0, 4)):
            given = draw(st.dictionaries(texts, values, max_size=3))
            calls.append(ToolCall(call_id, name, given))
        else:
            named = draw(st.sampled_from(["", name]))
            calls.append(ToolCall(call_id, named, {}, "the call is not well-formed", draw(texts)))
    thinking = draw(st.none() | texts.filter(bool))
    return Action(draw(texts.filter(lambda text: text != NO_CONTENT)), thinking, tuple(calls))


def echoes(name: str, action: Action) -> tuple[str, ...]:
    """The minted ids that a wire brings back, beside those of calls."""
    signed = (SIGNATURE,) if action.thinking else ()
    return {
        "chat": (),
        "responses": (ANSWER_ID, *signed),
        "messages": signed,
        "google": signed or (ANSWER_ID,),
    }[name]


def answered(action: Action) -> ModelAnswer:
    end = AnswerEnd.TOOL_CALLS if action.tool_calls else AnswerEnd.STOP
    signature = SIGNATURE if action.thinking else ""
    return replace(answer(), action=action, end=end, signature=signature)


def finite(value: Any) -> bool:
    """Whether a value has no infinity, which JSON does not have."""
    if isinstance(value, float):
        return value - value == 0
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return not isinstance(value, list) or all(map(finite, value))


def expected(action: Action) -> Action:
    """The action as it comes back: a call with an infinity is one that is not well-formed."""
    calls = [
        call if finite(dict(call.arguments)) else replace(call, error="infinite", arguments={})
        for call in action.tool_calls
    ]
    return replace(action, tool_calls=tuple(calls))


def same(found: Message, action: Action) -> bool:
    for call, back in zip(action.tool_calls, found.tool_calls, strict=True):
        assert (back.call_id, back.name, back.arguments) == (
            call.call_id,
            call.name,
            call.arguments,
        )
        assert (back.error is None) == (call.error is None)
        assert back.text == call.text or call.error == "infinite"
    return (found.role, found.text, found.thinking) == (
        Role.ASSISTANT,
        action.text,
        action.thinking,
    )


def asked(name: str) -> ModelCall:
    return ModelCall(wire=name, messages=(), digest="d" * 64)


@pytest.mark.parametrize("name", NAMES)
@given(action=actions())
@settings(max_examples=60, deadline=None)
def test_an_answer_comes_back_as_it_was(name: str, action: Action) -> None:
    wire, made = WIRES.load(name), answered(action)
    kept = said(wire, made, asked(name))
    assert FOLDS[name](data_of(wire.stream(made, asked(name)))) == kept
    target, body = history_of(wire, kept)
    back = wire.parse(target, {}, body)
    assert same(back.messages[0], expected(action))
    assert back.echoes.get(0, ()) == echoes(name, action)
    assert back.messages[1:] == (Message(Role.USER, ""),)


@pytest.mark.parametrize("name", NAMES)
def test_half_a_surrogate_pair_of_a_policy_reaches_no_client(name: str) -> None:
    wire = WIRES.load(name)
    half = "a\ud800"
    calls = (ToolCall("call00000", "read", {"path": half}), ToolCall("b", half, {}, "no", half))
    made = answered(Action(half, half, calls))
    kept = said(wire, made, asked(name))
    assert FOLDS[name](data_of(wire.stream(made, asked(name)))) == kept
    target, body = history_of(wire, kept)
    found = wire.parse(target, {}, body).messages[0]
    assert (found.text, found.thinking) == ("a\ufffd", "a\ufffd")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_without_a_name_has_one_on_the_wire(name: str) -> None:
    made = answered(Action("", None, (ToolCall("call00000", "", {}, "no name", "<call>"),)))
    kept = json.dumps(said(WIRES.load(name), made, asked(name)))
    assert '"name": "malformed_call"' in kept
    assert "<call>" in kept
