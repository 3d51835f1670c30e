"""A body whose history is known is read as if nothing of it were known."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.gateway.core.calls import CallRefusedError, ModelCall, Refusal
from rollart_flow.gateway.wires import known_bodies as module
from rollart_flow.gateway.wires.known_bodies import KnownBodies
from rollart_flow.gateway.wires.registry import WIRES
from tests.gateway.wires.test_hostile_requests import NAMES, REQUESTS, changed, places, values

KEYS = {name: WIRES.load(name).history for name in NAMES}
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"separators": (",", ":")},
    {"indent": 1},
    {"ensure_ascii": False},
    {"ensure_ascii": False, "separators": (" , ", "\t:\n")},
)
Body = dict[str, Any]


def read(name: str, body: bytes, known: KnownBodies | None) -> ModelCall | tuple[Refusal, str]:
    """The call that a body is, or its refusal with the message."""
    wire = WIRES.load(name)
    try:
        return wire.parse(REQUESTS[name][0], {}, wire.reader(body, known))
    except CallRefusedError as error:
        return error.refusal, error.message


def unread(name: str, body: bytes, known: KnownBodies) -> int:
    """The bytes of a body that a wire would read."""
    return WIRES.load(name).reader(body, known).unread


def longer(name: str, times: int = 5) -> Body:
    """A request whose history has several turns, each with a text of its own."""
    body, key = REQUESTS[name][1], KEYS[name]
    history = [
        json.loads(json.dumps(each).replace('"x"', json.dumps(f"answer {turn} é\n" * 20)))
        for turn in range(times)
        for each in body[key]
    ]
    return {**body, key: history}


def appended(body: Body, key: str, data: st.DataObject) -> Body:
    new = data.draw(st.lists(st.sampled_from(body[key] or [{}]), min_size=1, max_size=3))
    return {**body, key: [*body[key], *new]}


def cut(body: Body, key: str, data: st.DataObject) -> Body:
    return {**body, key: body[key][: data.draw(st.integers(0, len(body[key])))]}


def edited(body: Body, key: str, data: st.DataObject) -> Body:
    return dict(changed(body, data.draw(st.sampled_from(places(body)[1:])), data.draw(values)))


def rewritten(body: Body, key: str, data: st.DataObject) -> Body:
    """A body with another element at the begin, or one that is gone."""
    first = data.draw(st.lists(st.sampled_from(body[key] or [{}]), max_size=2))
    return {**body, key: [*first, *body[key][1:]]}


def reordered(body: Body, key: str, data: st.DataObject) -> Body:
    return {name: body[name] for name in data.draw(st.permutations([*body]))}


EDITS: tuple[Callable[[Body, str, st.DataObject], Body], ...] = (
    appended, appended, appended, cut, edited, rewritten, reordered,
)  # fmt: skip


def written(body: Body, key: str, data: st.DataObject) -> bytes:
    """The bytes of a request, some of which repeat a key or are damaged."""
    text = json.dumps(body, **data.draw(st.sampled_from(FORMS)))
    again = json.dumps(body.get(key))
    kind = data.draw(st.sampled_from(["as it is"] * 6 + ["before", "after", "escaped", "torn"]))
    if kind == "before":
        text = f'{{"{key}": {again}, "metadata": {{"{key}": {again}}}, {text[1:]}'
    elif kind == "after":
        text = f'{text[:-1]}, "{key}": {json.dumps(data.draw(values))}}}'
    elif kind == "escaped":
        text = text.replace(f'"{key}"', f'"\\u{ord(key[0]):04x}{key[1:]}"', 1)
    raw = text.encode()
    if kind != "torn":
        return raw
    at = data.draw(st.integers(0, len(raw)))
    return raw[:at] + data.draw(st.binary(max_size=2)) + raw[at + data.draw(st.integers(0, 3)) :]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_known_or_not_a_body_is_the_same_call_or_the_same_error(
    name: str, data: st.DataObject
) -> None:
    known, key = KnownBodies(), KEYS[name]
    body = longer(name, 2)
    assert isinstance(read(name, json.dumps(body).encode(), known), ModelCall)
    for _ in range(data.draw(st.integers(1, 6))):
        good = data.draw(st.sampled_from(EDITS))(body, key, data)
        raw = written(good, key, data)
        found = read(name, raw, known)
        assert found == read(name, raw, None)
        if isinstance(found, ModelCall) and isinstance(good.get(key), list):
            body = good


@pytest.mark.parametrize("name", NAMES)
def test_a_body_that_goes_on_is_read_from_where_it_goes_on(name: str) -> None:
    known, key, body = KnownBodies(), KEYS[name], longer(name)
    read(name, json.dumps(body).encode(), known)
    for _ in range(3):
        body = {**body, key: [*body[key], *REQUESTS[name][1][key]]}
        raw = json.dumps(body).encode()
        beside = len(json.dumps({**body, key: []})) + len(json.dumps(REQUESTS[name][1][key]))
        assert unread(name, raw, known) < beside + 100
        assert isinstance(read(name, raw, known), ModelCall)
        assert len(known) == 1, "the longer body stands for the shorter one"


def test_a_changed_system_prompt_before_the_history_makes_no_message_new() -> None:
    body, known = longer("messages", 10), KnownBodies()
    rest = {name: value for name, value in body.items() if name != "system"}
    for number in (1, 2, 33):
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"}
        raw = json.dumps({"system": [billing, *body["system"]], **rest}).encode()
        assert (unread("messages", raw, known) < len(raw) / 2) == (number > 1)
        assert read("messages", raw, known) == read("messages", raw, None)


def test_a_copy_of_the_history_elsewhere_in_a_body_is_what_it_was() -> None:
    body, known = longer("messages"), KnownBodies()
    read("messages", json.dumps(body).encode(), known)
    copy = {"messages": body["messages"]}
    rest = {name: value for name, value in body.items() if name != "thinking"}
    for again in ({"thinking": copy, **rest}, {"metadata": copy, **rest, "thinking": copy}):
        raw = json.dumps(again).encode()
        found = read("messages", raw, known)
        assert isinstance(found, ModelCall)
        assert found == read("messages", raw, None)


def test_a_mark_of_a_cache_that_moves_along_makes_only_the_last_messages_new() -> None:
    body, known, mark = longer("messages", 10), KnownBodies(), {"type": "ephemeral"}
    for turn in range(1, 5):
        said = [{"role": "user", "content": f"{turn}"}, {"role": "assistant", "content": "yes"}]
        body = {**body, "messages": [*body["messages"], *said]}
        last = {"type": "text", "text": "go on", "cache_control": mark}
        sent = {**body, "messages": [*body["messages"], {"role": "user", "content": [last]}]}
        raw = json.dumps(sent).encode()
        assert (unread("messages", raw, known) < len(raw) / 3) == (turn > 1)
        assert read("messages", raw, known) == read("messages", raw, None)


def test_conversations_that_alternate_are_known_all_the_same() -> None:
    known = KnownBodies()
    for turn in range(4):
        for agent in ("a", "b", "c"):
            body = longer("chat", 3 + turn)
            body["messages"][0] = {"role": "system", "content": f"You are {agent}. " * 99}
            raw = json.dumps(body).encode()
            assert (unread("chat", raw, known) < len(raw) / 2) == (turn > 0)
            read("chat", raw, known)
    assert len(known) == 3


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownBodies()
    raws = []
    for agent in range(module.KEPT_BODIES + 3):
        raws.append(json.dumps({"messages": [{"role": "user", "content": str(agent)}]}).encode())
        read("chat", raws[-1], known)
    assert len(known) == module.KEPT_BODIES
    assert unread("chat", raws[0], known) == len(raws[0])
    monkeypatch.setattr(module, "KEPT_BYTES", 2 * len(raws[-1]))
    read("chat", raws[0], known)
    assert len(known) == 2
    monkeypatch.setattr(module, "KEPT_BYTES", 10)
    read("chat", raws[1], known)
    assert unread("chat", raws[1], known) == len(raws[1]), "it is longer than the limit"


def test_the_history_of_another_wire_is_not_known() -> None:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    known, raw = KnownBodies(), json.dumps(body).encode()
    read("chat", raw, known)
    assert unread("messages", raw, known) == len(raw)
