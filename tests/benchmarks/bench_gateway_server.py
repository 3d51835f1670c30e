"""What the gateway adds to a call over its Unix socket, and what it does for 1,000 agents at once.

The engine is scripted and costs almost nothing, so that the whole way counts as added: the client's
request, HTTP, the wire, the parent of the call, the prompt, the record, the answer. A session has a
history of turns of equal length, and each measured call goes on from the one before with a few
tokens more. Time is the process's CPU time, the client's included, so that other work on the
machine has no effect; medians count.
"""

import asyncio
import resource
import statistics
import time
from collections.abc import Iterator

from tests.benchmarks.records import Record, record
from tests.gateway.server.crowd import KeepAliveClient, crowd, talk

SIZES = (8_192, 32_768, 131_072)
"""Tokens of history."""
TURN_TOKENS = 1_024
MEASURED = 50
ROLLOUTS, CALLS = 1_000, 5
_FILES = 8_192
"""Open files that as many connections need, with both ends in this process."""


def run() -> Iterator[Record]:
    """Milliseconds by length of the history, and calls of many agents at once."""
    for tokens in SIZES:
        added_ms = statistics.median(asyncio.run(_added_ms(tokens)))
        goal = 3.0 if tokens == SIZES[0] else None
        name = f"gateway: added to a call, {tokens // 1024}k tokens of history"
        yield record(name, added_ms, "ms", at_most=goal)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(_FILES, hard)), hard))
    before = time.process_time()
    talked = asyncio.run(talk(ROLLOUTS, CALLS))
    rate = ROLLOUTS * CALLS / (time.process_time() - before)
    yield record(f"gateway: calls of {ROLLOUTS} agents at once", rate, "calls/CPU-s")
    yield record("gateway: lost calls among them", talked.lost, "calls", at_most=0)
    yield record("gateway: doubled calls among them", talked.doubled, "calls", at_most=0)


async def _added_ms(tokens: int) -> list[float]:
    async with crowd() as made:
        agent = made.agent("a0")
        assert made.server.socket is not None
        async with KeepAliveClient(made.server.socket, agent.key) as client:
            long = " ".join(["left"] * (TURN_TOKENS // 2))
            for _ in range(tokens // TURN_TOKENS):
                agent.heard(*await client.post(agent.body()), then=long)
            spent = []
            for _ in range(MEASURED):
                body = agent.body()
                before = time.process_time()
                answer = await client.post(body)
                spent.append(1e3 * (time.process_time() - before))
                agent.heard(*answer, then="right")
            await agent.session.seal()
            (recorder, _), *_ = agent.session.rows("a0")
            assert len(recorder.token_ids) >= tokens, "the history is as long as the name says"
    return spent
