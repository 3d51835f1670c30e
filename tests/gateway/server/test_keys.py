"""Keys: long, different, not held, and of one session."""

import pickle

import pytest

from rollart_flow.gateway.core.calls import CallRefusedError, Refusal
from rollart_flow.gateway.server.keys import KeyRing
from tests.gateway.server.scripted import ScriptedSession


def refusal(keys: KeyRing, key: str | None) -> Refusal:
    with pytest.raises(CallRefusedError) as caught:
        keys.find(key)
    assert not key or key not in str(caught.value)
    return caught.value.refusal


def test_each_key_is_of_its_session() -> None:
    keys = KeyRing()
    sessions = [ScriptedSession() for _ in range(3)]
    given = [keys.open(session) for session in sessions]
    assert [keys.find(key).session for key in given] == sessions
    assert [*keys] == sessions
    assert len(set(given)) == 3
    assert all(len(key) >= 43 for key in given), "256 bits in URL-safe base64"


def test_wrong_missing_and_closed_keys_are_refused() -> None:
    keys = KeyRing()
    key = keys.open(ScriptedSession())
    assert refusal(keys, None) is Refusal.KEY
    assert refusal(keys, "") is Refusal.KEY
    assert refusal(keys, key[:-1]) is Refusal.KEY
    assert refusal(keys, "\udc80é") is Refusal.KEY
    keys.close(key)
    assert refusal(keys, key) is Refusal.SEALED
    assert not len(keys)


def test_no_key_is_held() -> None:
    keys = KeyRing()
    open_key, closed_key = (keys.open(ScriptedSession()) for _ in range(2))
    keys.close(closed_key)
    held = pickle.dumps([[entry.digest for entry in keys._entries.values()], keys._closed])
    assert open_key.encode() not in held
    assert closed_key.encode() not in held
