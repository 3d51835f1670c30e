"""Requests that ask for the same answer: joins of a call under way, and replays of an answer.

The invariant: a caller that leaves takes nothing with it; the call goes on in a task of its own.
"""

import asyncio
from collections.abc import Collection

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall
from rollart_flow.gateway.core.exchange import Exchange


class CallUnderWay:
    """A call that was placed, and its outcome.

    Args:
        exchange: record of the call.
        outcome: the answer, or the refusal.
    """

    __slots__ = ("_callers", "doubted", "exchange", "outcome", "settled")

    def __init__(
        self, exchange: Exchange, outcome: asyncio.Future[ModelAnswer | CallRefusedError]
    ) -> None:
        self.exchange = exchange
        self.outcome = outcome
        self._callers = 0
        """Callers that wait for the outcome or got it."""
        self.doubted = False
        """Whether the connection of a caller ended as soon as the answer was sent, so that the
        client may not have read it."""
        self.settled = False
        """Whether the answer was replayed for such a doubt, which happens once."""

    @property
    def delivered(self) -> bool:
        """Whether a caller got the outcome, or will."""
        return self._callers > 0

    @property
    def answered(self) -> bool:
        """Whether there is an answer of the policy."""
        if not self.outcome.done() or self.outcome.cancelled():
            return False
        found = self.outcome.result()
        return isinstance(found, ModelAnswer) and not found.control

    def settled_by(self, parents: Collection[int | None]) -> bool:
        """Return whether its client has the answer, or never will.

        Args:
            parents: numbers of the calls that later ones go on from.
        """
        if not self.outcome.done():
            return False
        return not self.answered or self.delivered or self.exchange.number in parents

    def lose(self) -> None:
        """Note that the answer did not reach a caller that had got it."""
        self._callers -= 1
        self.exchange.hung_up = True

    async def answer(self) -> ModelAnswer:
        """Return the answer.

        Raises:
            CallRefusedError: there is none.
        """
        self._callers += 1
        try:
            found = await asyncio.shield(self.outcome)
        except asyncio.CancelledError:
            self._callers -= 1
            self.exchange.hung_up = True
            raise
        if isinstance(found, CallRefusedError):
            # Callers that share the refusal get an error each, with a traceback of its own.
            raise CallRefusedError(
                found.refusal, str(found), tokens=found.tokens, limit=found.limit
            )
        return found


class Retries:
    """The calls of a session by the digests of their requests.

    Args:
        repeats_lost: whether the client repeats a request only where its answer was lost, though it
            may end its connections after answers that it has read.
    """

    def __init__(self, *, repeats_lost: bool = False) -> None:
        self._calls: dict[str, CallUnderWay] = {}
        self._repeats_lost = repeats_lost
        self._closes = False
        """Whether the client ends its connections after answers that it has read, so that the end
        of one raises no doubt."""

    def known(self, call: ModelCall) -> CallUnderWay | None:
        """Return the call that a request repeats, which is counted; None if it is a new one.

        A request repeats a call that is under way. After its answer, it repeats the call if the
        client says so, if no client got the whole answer, or, once, if its connection ended as
        soon as the answer was sent; otherwise the client wants another sample.
        """
        under_way = self._calls.get(call.digest) if call.digest else None
        if under_way is None:
            return None
        if not under_way.outcome.done():
            under_way.exchange.joins += 1
            return under_way
        doubted = under_way.doubted and not under_way.settled and not self._closes
        if not under_way.answered or not (call.retry or doubted or not under_way.delivered):
            return None
        under_way.settled |= doubted
        under_way.exchange.replays += 1
        return under_way

    def unread(self, call: ModelCall, *, sent: bool) -> None:
        """Note that an answer was not read by the client, or may not have been.

        Args:
            call: the request.
            sent: whether the whole answer was sent, and the connection ended right after it.
        """
        under_way = self._calls.get(call.digest)
        if under_way is None or not under_way.outcome.done():
            return
        if sent:
            under_way.doubted = True
        elif under_way.delivered:
            under_way.lose()

    def shown(self, under_way: CallUnderWay) -> None:
        """Note that a later call has an answer: its client has read it, whatever was doubted."""
        if under_way.doubted and not under_way.settled and not self._repeats_lost:
            self._closes = True

    def add(self, call: ModelCall, under_way: CallUnderWay) -> None:
        """Add a new call."""
        if call.digest:
            self._calls[call.digest] = under_way
