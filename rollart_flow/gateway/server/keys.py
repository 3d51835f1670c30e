"""KeyRing: the keys by which requests find their sessions.

The invariant: the ring holds no key, only its SHA-256; a key stands for one session, and once it is
closed for none.
"""

import hmac
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.server.requests import LONGEST_BODY_BYTES, SESSION_BYTES, BodyBudget
from rollart_flow.gateway.wires.known_bodies import KnownBodies

_KEY_BYTES = 32
_PREFIX_BYTES = 8
"""Leading bytes of a hash that select an entry; the whole hash is compared in constant time."""
_REMEMBERED = 65_536
"""Closed keys that are told apart from unknown ones."""


class Answering(Protocol):
    """Object that a key stands for: a `CaptureSession`, or several of them one after the other."""

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """Calls in the order of their arrival."""

    async def answer(self, call: ModelCall) -> ModelAnswer:
        """Answer a call; see `CaptureSession.answer`."""

    def unread(self, call: ModelCall, *, sent: bool) -> None:
        """Take note that an answer did not reach its client; see `CaptureSession.unread`."""

    async def count(self, call: ModelCall) -> int:
        """Return the number of tokens of a call's prompt; see `CaptureSession.count`."""


@dataclass(frozen=True, slots=True)
class KeyedSession:
    """A session that a key stands for."""

    digest: bytes
    """SHA-256 of the key."""
    session: Answering
    budget: BodyBudget
    known: KnownBodies
    """Known parts of the session's bodies; gone when the key is closed."""


class KeyRing:
    """The open sessions by the hashes of their keys.

    Args:
        at_once_bytes: most bytes of bodies of a session's requests under way.
        session_bytes: most bytes of all bodies of a session; None for any number.
    """

    def __init__(
        self,
        at_once_bytes: int = 4 * LONGEST_BODY_BYTES,
        session_bytes: int | None = SESSION_BYTES,
    ) -> None:
        self._at_once_bytes, self._session_bytes = at_once_bytes, session_bytes
        self._entries: dict[bytes, KeyedSession] = {}
        self._closed: BoundedDict[bytes, None] = BoundedDict(_REMEMBERED)

    def open(self, session: Answering) -> str:
        """Return a new key of 256 bits for a session."""
        while (digest := _digest(key := secrets.token_urlsafe(_KEY_BYTES)))[:_PREFIX_BYTES] in (
            self._entries
        ):
            pass
        budget = BodyBudget(self._at_once_bytes, self._session_bytes)
        self._entries[digest[:_PREFIX_BYTES]] = KeyedSession(digest, session, budget, KnownBodies())
        return key

    def close(self, key: str) -> Answering | None:
        """Forget the session of a key and return it; None if the key has none.

        Requests with the key are refused as sealed from now on.
        """
        digest = _digest(key)
        found = self._found(digest)
        if found is None:
            return None
        del self._entries[digest[:_PREFIX_BYTES]]
        self._closed.add(digest, None)
        return found.session

    def __len__(self) -> int:
        """Number of open sessions."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Answering]:
        """Iterate over the open sessions."""
        return (entry.session for entry in self._entries.values())

    def find(self, key: str | None) -> KeyedSession:
        """Return the session of the key that a request presents, if it presents any.

        Raises:
            CallRefusedError: the session of the key has ended, or the key is unknown.
        """
        if key is None:
            raise CallRefusedError(
                Refusal.KEY, "the request has no key; send the key of a session as the API key"
            )
        digest = _digest(key)
        if (found := self._found(digest)) is not None:
            return found
        if digest in self._closed:
            raise CallRefusedError(Refusal.SEALED, "the session of this key has ended")
        raise CallRefusedError(Refusal.KEY, "the key is of no session")

    def _found(self, digest: bytes) -> KeyedSession | None:
        entry = self._entries.get(digest[:_PREFIX_BYTES])
        held = b"" if entry is None else entry.digest
        return entry if hmac.compare_digest(held, digest) else None


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
