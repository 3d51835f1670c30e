"""What the gateway adds to a call over its Unix socket, and what it does for 1,000 agents at once.

The engine is scripted and costs almost nothing, so that the whole way counts as added: the client's
request, HTTP, the wire, the parent of the call, the prompt, the record, the answer. A session has a
history of turns of equal length, and each measured call goes on from the one before with the same
number of new tokens. Time is the process's CPU time, the client's included, so that other work on
the machine has little effect; medians count.

A client sends its whole history with each call, so that some of the time grows with it whatever a
server does: the bytes are sent, received and put together. A server that does nothing else shows
how much that is; what a call takes beyond it should be that of the new tokens.
"""

import asyncio
import resource
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rollart_flow.gateway.server.listening import PrivateFolder, uvicorn_for
from tests.benchmarks.records import Record, record
from tests.gateway.server.crowd import Agent, KeepAliveClient, crowd, talk

SIZES = (8_192, 32_768, 131_072)
"""Tokens of history."""
TURN_TOKENS = 512
MEASURED = 60
_OTHER = bytes(64 << 20)
"""Memory that is read before each measured call, since a gateway serves many sessions: whatever a
call reads is not in the caches of the processor, however short its history is."""
MOST_MS = 3.0
"""Goal at 8 thousand tokens."""
MOST_GROWTH = 1.25
"""Goal for a call at 128 thousand tokens beside one at 8 thousand, without the bytes' own time."""
ROLLOUTS, CALLS = 1_000, 5
_FILES = 8_192
"""Open files that as many connections need, with both ends in this process."""


def run() -> Iterator[Record]:
    """Milliseconds by length of the history, and calls of many agents at once."""
    spent = {tokens: asyncio.run(_spent(tokens)) for tokens in SIZES}
    for tokens, each in spent.items():
        goal = MOST_MS if tokens == SIZES[0] else None
        name = f"gateway: added to a call, {tokens // 1024}k tokens of history"
        peer = f"{each.bytes_ms:.2f} ms of it to send and receive its bytes"
        yield record(name, each.call_ms, "ms", at_most=goal, peer=peer)
    first, last = spent[SIZES[0]], spent[SIZES[-1]]
    name = f"gateway: growth of that from {SIZES[0] // 1024}k to {SIZES[-1] // 1024}k tokens"
    growth = (last.call_ms - last.bytes_ms) / (first.call_ms - first.bytes_ms)
    peer = f"{last.call_ms / first.call_ms:.2f} x with the bytes"
    yield record(name, growth, "x", at_most=MOST_GROWTH, peer=peer)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(_FILES, hard)), hard))
    before = time.process_time()
    talked = asyncio.run(talk(ROLLOUTS, CALLS))
    rate = ROLLOUTS * CALLS / (time.process_time() - before)
    yield record(f"gateway: calls of {ROLLOUTS} agents at once", rate, "calls/CPU-s")
    yield record("gateway: lost calls among them", talked.lost, "calls", at_most=0)
    yield record("gateway: doubled calls among them", talked.doubled, "calls", at_most=0)


@dataclass(frozen=True)
class Spent:
    """CPU time of a call with a history [ms], medians."""

    call_ms: float
    bytes_ms: float
    """Time to send and receive the same bytes."""


async def _spent(tokens: int) -> Spent:
    async with crowd() as made, _bare_server() as bare:
        agent = made.agent("a0", most_calls=10_000)
        assert made.server.socket is not None
        async with (
            KeepAliveClient(made.server.socket, agent.key) as client,
            KeepAliveClient(bare, agent.key) as beside,
        ):
            long = "\n".join(["left " * 7 + "left"] * (TURN_TOKENS // 16))
            for _ in range(tokens // TURN_TOKENS):
                agent.heard(*await client.post(agent.body()), then=long)
            calls, plain = [], []
            for _ in range(MEASURED):  # by turns, since other work slows both down
                plain.append(await _timed(beside, agent.body()))
                calls.append(await _timed(client, agent.body(), agent))
            for each in agent.session.exchanges[-MEASURED:]:
                assert each.answer_start >= tokens, "the history is as long as the name says"
    return Spent(*map(statistics.median, (calls, plain)))


async def _timed(client: KeepAliveClient, body: bytes, agent: Agent | None = None) -> float:
    """Return the CPU time of a request [ms]; an agent goes on with the answer."""
    assert not _OTHER.count(1), "the caches of the processor hold what other sessions use"
    before = time.process_time()
    answer = await client.post(body)
    spent = 1e3 * (time.process_time() - before)
    if agent is not None:
        agent.heard(*answer, then="right")
    return spent


@asynccontextmanager
async def _bare_server() -> AsyncIterator[Path]:
    """Provide the socket of a server that reads bodies and does nothing else."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pieces = [piece async for piece in Request(scope, receive).stream()]
        await Response(str(len(b"".join(pieces))))(scope, receive, send)

    server = uvicorn_for(app)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    folder = PrivateFolder()
    listener = folder.listen()
    await server.startup(sockets=[listener])
    try:
        yield Path(listener.getsockname())
    finally:
        await server.shutdown(sockets=[listener])
        listener.close()
        folder.remove()
