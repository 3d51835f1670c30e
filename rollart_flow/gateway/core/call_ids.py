"""Ids of calls, answers and thinking: those that clients get, and those of the chain.

A client gets ids that are unique in its session, by which its next call is known. Chat templates
and conversations have ids of their own.
"""

import hashlib
import re
from collections.abc import Container
from dataclasses import replace

from rollart_flow.gateway.core.forest import CapturedTurn
from rollart_flow.types import Message, Role

_CHAIN_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""Form of the ids of calls that every chat template and every client takes."""
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CALL_LENGTH = 9
_ANSWER_LENGTH = 24


def mint_answer_id(name: str, number: int, purpose: str = "answer") -> str:
    """Return an id of letters and digits that no other call of any session has.

    Args:
        name: unique name of the session.
        number: number of the call.
        purpose: what the id is of.
    """
    return _minted(f"{name}/{number}/{purpose}", _ANSWER_LENGTH)


def mint_call_id(name: str, number: int, index: int, taken: Container[str]) -> str:
    """Return an id for a call of a tool that no other one of the session has.

    Args:
        name: unique name of the session.
        number: number of the call that the answer is to.
        index: index of the call among those of the answer.
        taken: ids that the session has given away.
    """
    tries = 0
    while (made := _minted(f"{name}/{number}/{index}/{tries}", _CALL_LENGTH)) in taken:
        tries += 1
    return made


def _minted(seed: str, length: int) -> str:
    value = int.from_bytes(hashlib.sha256(seed.encode("utf-8", "replace")).digest(), "big")
    letters = []
    for _ in range(length):
        value, digit = divmod(value, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return "".join(letters)


class CallIds:
    """Ids of calls in the chain, by those of the client."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._open: list[str] = []
        """Calls of the last answer that no message of a tool answers yet, in the chain."""

    def answered(self, turn: CapturedTurn) -> None:
        """Learn the ids of the calls of an answer."""
        self._known |= turn.call_ids
        self._open = [*turn.call_ids.values()]

    def in_chain(self, message: Message) -> Message:
        """Return a message with the ids that its calls have in the chain."""
        if message.tool_calls:
            ids = {call.call_id: _chain_id(call.call_id) for call in message.tool_calls}
            self._known |= ids
            self._open = [*ids.values()]
            calls = tuple(replace(call, call_id=ids[call.call_id]) for call in message.tool_calls)
            return replace(message, tool_calls=calls)
        if message.role is not Role.TOOL:
            return message
        call_id = self._known.get(message.call_id or "")
        if call_id is None:  # the client has no ids, or ids of its own: answers are in order
            call_id = self._open[0] if self._open else _chain_id(message.call_id or "")
        if call_id in self._open:
            self._open.remove(call_id)
        return replace(message, call_id=call_id)


def _chain_id(call_id: str) -> str:
    """Return an id that every chat template takes, the same for the same id."""
    if _CHAIN_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
