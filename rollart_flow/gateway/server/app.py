"""GatewayApp: the ASGI application that answers clients on all wires.

The invariant: whatever a client sends, it gets an answer or an error in the form of its wire, and
other requests go on.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from rollart_flow.gateway.core.calls import CallRefusedError, ModelCall, Refusal
from rollart_flow.gateway.server.connections import ClientConnection, connection_of
from rollart_flow.gateway.server.counters import GatewayCounters
from rollart_flow.gateway.server.keys import Answering, KeyRing
from rollart_flow.gateway.server.requests import (
    LONGEST_BODY_BYTES,
    HttpRefusedError,
    RequestBody,
    check_host,
)
from rollart_flow.gateway.server.sending import ClientLeftError, ResponseSender
from rollart_flow.gateway.server.streaming import AnswerStream, AnswerWait
from rollart_flow.gateway.wires.base import JSON_HEADERS, ProviderWire, WireReply, refusal_headers
from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.events import json_bytes
from rollart_flow.gateway.wires.registry import Operation, Route, find_route, presented_key

PARSED_IN_LOOP_BYTES = 128 << 10
"""Longest body that is parsed in the event loop, which takes about a millisecond; without what its
session has read before."""

_FAILED = CallRefusedError(Refusal.ENGINE, "the gateway failed to answer this request")


class GatewayApp:
    """The application.

    Args:
        keys: the sessions.
        counters: figures of the server.
        model: name of the model that clients are told; a call may name any other.
        longest_body_bytes: longest body of a request.
        on_unknown_key: called for each request with a key that no session has, once it is counted.
    """

    def __init__(
        self,
        keys: KeyRing,
        counters: GatewayCounters,
        *,
        model: str,
        longest_body_bytes: int = LONGEST_BODY_BYTES,
        on_unknown_key: Callable[[], None] = lambda: None,
    ) -> None:
        self._keys, self._counters, self._model = keys, counters, model
        self._on_unknown_key = on_unknown_key
        self._longest_body_bytes = longest_body_bytes
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Refuse what is under way, and what comes from now on."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request, sender = Request(scope, receive), ResponseSender(send)
        found = find_route(request.method, _target(scope), request.headers)
        if isinstance(found, WireReply):
            await sender.reply(found)
            return
        try:
            await self._answer(request, found, sender)
        except CallRefusedError as error:
            self._counters.refused[error.refusal] += 1
            if error.refusal is Refusal.KEY:
                self._on_unknown_key()
            await sender.reply(_refused(found.wire, error))
        except (ClientLeftError, ClientDisconnect):
            self._counters.hang_ups += 1
        except Exception:
            # The server logs it and closes the connection; the client may send the request again.
            if not sender.begun:
                await sender.reply(found.wire.refused(_FAILED))
            raise

    async def _answer(self, request: Request, route: Route, sender: ResponseSender) -> None:
        check_host(request)
        if route.operation is Operation.ALIVE:
            await sender.reply(WireReply(200, JSON_HEADERS, b"{}"))
            return
        keyed = self._keys.find(presented_key(_target(request.scope), request.headers))
        session, wire = keyed.session, route.wire
        match route.operation:
            case Operation.MODELS:
                await sender.json(wire.models([self._model]))
            case Operation.MODEL:
                await sender.json(wire.model(route.model))
            case Operation.COUNT | Operation.ANSWER:
                with RequestBody(request, keyed.budget, self._longest_body_bytes) as body:
                    call = await self._parse(
                        request, wire.reader(await body.read(), keyed.known), wire
                    )
                    if route.operation is Operation.ANSWER:
                        await self._call(session, call, request, wire, sender)
                        return
                    self._counters.counts += 1
                    await sender.json(wire.count(await session.count(call)))

    async def _parse(self, request: Request, body: BodyReader, wire: ProviderWire) -> ModelCall:
        """Return the call that a request is."""
        created = int(time.time())
        target, headers = _target(request.scope), request.headers
        if body.unread <= PARSED_IN_LOOP_BYTES:
            call = wire.parse(target, headers, body)
        else:
            call = await asyncio.to_thread(wire.parse, target, headers, body)
        return replace(call, created=created)

    async def _call(
        self,
        session: Answering,
        call: ModelCall,
        request: Request,
        wire: ProviderWire,
        sender: ResponseSender,
    ) -> None:
        """Send the answer of a session."""
        self._counters.calls += 1
        self._counters.under_way += 1
        connection = connection_of(request)
        connection.begin()
        wait = AnswerWait(session, call, request, self._stopping)
        try:
            async with wait:
                if call.stream:
                    await AnswerStream(wire, call, sender, self._counters).run(wait)
                else:
                    await sender.json(wire.answer(await wait.answer(), call))
                _note_sent(session, call, connection)  # before anything else can happen
        except ClientLeftError:
            if wait.answered:
                session.unread(call, sent=False)
            raise
        except CallRefusedError as error:
            self._counters.refused[error.refusal] += 1
            await sender.reply(wire.refused(error, call))
        finally:
            self._counters.under_way -= 1


def _note_sent(session: Answering, call: ModelCall, connection: ClientConnection) -> None:
    """Tell a session of an answer that was written to a connection which had ended, or ends soon.

    Only the latter of streams: clients that read none often open a connection for each call.
    """
    if connection.ended:
        session.unread(call, sent=False)
    elif call.stream:
        now = asyncio.get_running_loop().time()
        connection.answered(now, partial(session.unread, call, sent=True))


def _target(scope: Scope) -> str:
    """Return path and query of a request as they were sent."""
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _refused(wire: ProviderWire, error: CallRefusedError) -> WireReply:
    if not isinstance(error, HttpRefusedError):
        return wire.refused(error)
    body = json_bytes(wire.error(error, error.status))
    return WireReply(error.status, refusal_headers(error.refusal), body)
